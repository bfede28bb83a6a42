// SPDX-License-Identifier: Apache-2.0
//
// CompletionFormat: the JSON of answers: whole ones, and the events of streams, in the shapes of
// OpenAI's API for plain completions and for chats.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/client.h"
#include "gateway/answer_part.h"
#include "gateway/tools/called_function.h"

namespace lamina::gateway {

struct CompletionHead {
  bool chat = false;
  std::string id;
  std::string model;
  int64_t created = 0;  // Seconds since 1970.
  std::string lossy;    // ModelInfo::lossy; part of the fingerprint.
};

struct TokenCounts {
  uint32_t prompt = 0;
  uint32_t completion = 0;
  uint32_t cached = 0;  // Prompt tokens whose K and V were there already.
  // Tokens of the completion that are thoughts, if the model thinks in tags.
  std::optional<uint32_t> reasoning;
};

// What a choice shows for one of its tokens, or for one of the prompt when it is echoed.
struct ShownToken {
  TokenId token = 0;
  std::string text;              // Bytes; may be part of a character.
  std::optional<float> logprob;  // The first token of a prompt has none.
  uint32_t rank = 0;             // Among all of the vocabulary, from 1; of prompts only.
  std::vector<client::TokenLogprob> top;
};

// One finished choice of an answer that is not streamed.
struct FinishedChoice {
  uint32_t index = 0;
  std::string text;
  std::string reasoning;
  std::vector<CalledFunction> calls;
  std::vector<ShownToken> tokens;           // With log-probabilities only.
  int64_t text_offset = 0;                  // Where they begin, as TextMembers() has it.
  std::optional<std::vector<TokenId>> ids;  // With return_token_ids, and the prompt's:
  std::vector<TokenId> prompt_ids;
  // With prompt_logprobs only; of a chat, in choice 0 alone.
  std::vector<ShownToken> prompt_tokens;
  client::FinishReason finish = client::FinishReason::kNotFinished;
  std::string stop;     // The stop string that ended it; empty: none did.
  bool called = false;  // It has ended with calls that the model chose to make.
};

// How answers show tokens.
struct TokenForm {
  bool logprobs = false;  // Events and choices have them, else null.
  // Alternatives of each token: 0 leaves the list of a plain completion null.
  uint32_t alternatives = 0;
  bool as_ids = false;  // "token_id:12" instead of the text.
};

class CompletionFormat {
 public:
  CompletionFormat(CompletionHead head, TokenForm form);

  std::string Whole(const std::vector<FinishedChoice>& choices, const TokenCounts& usage) const;

  // Events: "data: {...}\n\n". `usage`: what `stream_options` asks for in each event: absent is no
  // field, see Usage below.
  enum class Usage : uint8_t { kAbsent, kNull, kCounts };
  // The first event of a chat's choice.
  std::string RoleEvent(uint32_t index, Usage usage, const TokenCounts& counts) const;
  // `text_offset`: characters of the choice before this event; plain completions only.
  std::string TextEvent(uint32_t index, absl::string_view text,
                        const std::vector<ShownToken>& tokens, uint32_t text_offset, Usage usage,
                        const TokenCounts& counts) const;
  // An event of members that TextMembers() has written: several choices may show them.
  std::string TextEvent(uint32_t index, absl::string_view members, Usage usage,
                        const TokenCounts& counts) const;
  // `text_offset`: below 0 where the first tokens are no part of the choice's text, as a prompt's
  // special ones: they are shown at 0.
  std::string TextMembers(absl::string_view text, const std::vector<ShownToken>& tokens,
                          int64_t text_offset) const;
  // An event of a chat: a thought, the beginning of call `number` (with its id), or more of its
  // arguments.
  std::string PartEvent(uint32_t index, const AnswerPart& part, size_t number,
                        const std::string& id, const std::vector<ShownToken>& tokens, Usage usage,
                        const TokenCounts& counts) const;
  // Ids of new tokens, or of the prompt's.
  std::string IdsEvent(uint32_t index, const std::vector<TokenId>& ids,
                       const std::vector<TokenId>& prompt_ids, Usage usage,
                       const TokenCounts& counts) const;
  // `called`: as of FinishedChoice.
  std::string FinishEvent(uint32_t index, client::FinishReason finish, bool called, Usage usage,
                          const TokenCounts& counts) const;
  // The last event, without choices.
  std::string UsageEvent(const TokenCounts& counts) const;

 private:
  // `members`: further members of the event, each with a comma before it.
  std::string Event(absl::string_view choice, Usage usage, const TokenCounts& counts,
                    absl::string_view members = "") const;
  std::string Logprobs(const std::vector<ShownToken>& tokens, int64_t text_offset) const;

  const CompletionHead head_;
  const TokenForm form_;
  const std::string event_prefix_;
};

// "data: [DONE]\n\n".
extern const char kDoneEvent[];
// A comment, which clients skip.
extern const char kKeepAliveComment[];
// "data: {"error": ...}\n\n" of an ApiError's JSON.
std::string ErrorEvent(absl::string_view error_json);

// Characters of UTF-8 text; of token texts in sequence when a token may be part of a character.
uint32_t CountCharacters(absl::string_view text);

}  // namespace lamina::gateway
