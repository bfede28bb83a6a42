// SPDX-License-Identifier: Apache-2.0
//
// The messages of a chat, as /v1/chat/completions and /tokenize take them.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "gateway/json_object.h"

namespace lamina::gateway {

// Errors: kInvalidArgument  with the place ("messages[2].role") and OpenAI's code for the mistake.
absl::StatusOr<std::vector<client::ChatMessage>> ParseMessages(const Json& messages);

}  // namespace lamina::gateway
