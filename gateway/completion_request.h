// SPDX-License-Identifier: Apache-2.0
//
// CompletionRequest: the body of POST /v1/completions or /v1/chat/completions, checked and turned
// into what the coordinator understands.
//
// What the coordinator can judge better (the prompt's length, token ids) is left to it.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "gateway/answer_reader.h"
#include "gateway/apis/field_names.h"
#include "gateway/json_object.h"
#include "gateway/tools/tool_family.h"
#include "gateway/tools/tool_request.h"

namespace lamina::gateway {

class AnswerFormat;

struct CompletionRequest {
  bool chat = false;
  std::string model;
  std::vector<client::Prompt> prompts;  // One for a chat.
  client::GenerateOptions options;  // For every prompt; its own prompt and request id are empty.

  uint32_t choices = 1;    // For each prompt; options.n is the same.
  bool logprobs = false;   // Show them; options.logprobs says how many alternatives.
  bool echo = false;       // Show the prompt before the text.
  bool no_tokens = false;  // With echo: max_tokens was 0.
  bool max_tokens_given = false;
  // Show so many alternatives of each token of the prompt. Not streamed.
  std::optional<uint32_t> prompt_logprobs;

  std::vector<std::string> bad_words;
  bool truncate_to_fit = false;  // Cut a prompt that would not fit.
  bool return_ids = false;       // Show ids of tokens, and of the prompt's.
  bool tokens_as_ids = false;    // Log-probabilities name tokens by their ids.

  // The field that the form comes from; empty without one. That of response_format is of what the
  // model says; its calls have a form of their own.
  std::string form_field;

  ToolRequest tools;
  bool include_reasoning = true;
  std::optional<uint32_t> thinking_tokens_max;
  // Set by FitToModel().
  const ToolFamily* family = nullptr;  // Null: answers have no calls.
  AnswerReader::Thought thought = AnswerReader::Thought::kNone;
  // Whether answers may have thoughts.
  bool thinks() const {
    return thought != AnswerReader::Thought::kNone || (family != nullptr && family->always_marks());
  }

  // Whether the prompt goes through the model before the answer: for its log-probabilities, or
  // where no token follows, so that the coordinator judges what the request names.
  bool scores_prompt() const {
    return logprobs || prompt_logprobs.has_value() ||
           (no_tokens && (!options.policy.empty() || !options.kv.empty()));
  }
  // Alternatives of each token that are shown with its log-probability.
  uint32_t alternatives() const { return options.logprobs.value_or(0); }
  // Whether the ids of the prompt are shown and no generation tells them.
  bool shows_ids_alone() const { return no_tokens && return_ids; }
  // What truncate_prompt_tokens leaves of a prompt, as the coordinator cuts it.
  std::vector<TokenId> Kept(std::vector<TokenId> tokens) const;

  // How another API writes the answer, null for OpenAI's completions, and what it calls fields.
  std::shared_ptr<AnswerFormat> format;
  FieldNames names;

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

struct RequestLimits {
  uint32_t choices_max = 128;  // Prompts times choices generated for each.
};

// Errors: kInvalidArgument  with the field and OpenAI's code for the mistake; names the fields that
//         this server does not serve.
absl::StatusOr<CompletionRequest> ParseCompletion(const Json& json, const RequestLimits& limits);
absl::StatusOr<CompletionRequest> ParseChatCompletion(const Json& json,
                                                      const RequestLimits& limits);

// An array of token ids.
absl::StatusOr<std::vector<TokenId>> ParseTokens(const Json& tokens, absl::string_view path);

}  // namespace lamina::gateway
