// SPDX-License-Identifier: Apache-2.0
//
// ChatForm: renders a conversation for models whose template is of the ChatML form.
//
// The template itself is Jinja; this recognises one family of templates by their markers and
// renders it directly. Other templates are refused by name rather than guessed at.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::coordinator {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Renders `messages` and opens the assistant's turn.
//
// A conversation without a leading system message gets the template's own, if it has one.
// Errors: kUnimplemented    the model has no template, or one that is not ChatML.
//         kInvalidArgument  no messages.
absl::StatusOr<std::string> RenderChat(absl::string_view chat_template,
                                       const std::vector<ChatMessage>& messages);

}  // namespace lamina::coordinator
