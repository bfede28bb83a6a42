// SPDX-License-Identifier: Apache-2.0
//
// Parameters of requests that OpenAI's API does not have, as vLLM's users send them, and those of
// chats that concern the template, tools and thoughts.

#pragma once

#include "absl/status/status.h"
#include "gateway/completion_request.h"
#include "gateway/json_object.h"

namespace lamina::gateway {

// Reads the parameters of chats and plain completions into `request`, or refuses what is not
// obeyed, by name.
// Errors: kInvalidArgument  with the field and OpenAI's code for the mistake.
absl::Status ReadExtraParameters(JsonObject& body, CompletionRequest& request);

// Reads the parameters of chats: tools, thoughts, and what the template gets.
absl::Status ReadChatParameters(JsonObject& body, CompletionRequest& request);

// Reads the variables of the template, and how it ends. For /tokenize too.
absl::Status ReadTemplateParameters(JsonObject& body, client::ChatOptions& chat);

}  // namespace lamina::gateway
