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

namespace lamina::gateway {

struct CompletionHead {
  bool chat = false;
  std::string id;
  std::string model;
  int64_t created = 0;  // Seconds since 1970.
};

struct TokenCounts {
  uint32_t prompt = 0;
  uint32_t completion = 0;
  uint32_t cached = 0;  // Of the prompts, whose K and V were there already.
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
  std::vector<ShownToken> tokens;  // With log-probabilities only.
  // With prompt_logprobs only; of a chat, in choice 0 alone.
  std::vector<ShownToken> prompt_tokens;
  client::FinishReason finish = client::FinishReason::kNotFinished;
};

class CompletionFormat {
 public:
  // `logprobs`: events and choices have them, else null. `alternatives` beside each token: 0 leaves
  // the list of a plain completion null.
  CompletionFormat(CompletionHead head, bool logprobs, uint32_t alternatives);

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
  std::string FinishEvent(uint32_t index, client::FinishReason finish, Usage usage,
                          const TokenCounts& counts) const;
  // The last event, without choices.
  std::string UsageEvent(const TokenCounts& counts) const;

 private:
  std::string Event(absl::string_view choice, Usage usage, const TokenCounts& counts) const;
  std::string Logprobs(const std::vector<ShownToken>& tokens, uint32_t text_offset) const;

  const CompletionHead head_;
  const bool logprobs_;
  const uint32_t alternatives_;
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
