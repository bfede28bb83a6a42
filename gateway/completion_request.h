// SPDX-License-Identifier: Apache-2.0
//
// CompletionRequest: the body of POST /v1/completions or /v1/chat/completions, checked and turned
// into what the coordinator understands.
//
// What the coordinator can judge better (the prompt's length, token ids) is left to it.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "gateway/json_object.h"

namespace lamina::gateway {

struct CompletionRequest {
  bool chat = false;
  std::string model;
  std::vector<client::Prompt> prompts;  // One for a chat.
  client::GenerateOptions options;      // Of every prompt; its own prompt and request id are empty.

  uint32_t choices = 1;    // Shown for each prompt; options.n may be more (best_of).
  bool logprobs = false;   // Show them; options.logprobs says how many alternatives.
  bool echo = false;       // Show the prompt before the text.
  bool no_tokens = false;  // Of echo: max_tokens was 0.
  // Show so many alternatives beside each token of the prompt. Not streamed.
  std::optional<uint32_t> prompt_logprobs;

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
