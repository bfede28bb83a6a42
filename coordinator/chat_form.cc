// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat_form.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace lamina::coordinator {
namespace {

constexpr absl::string_view kTurnStart = "<|im_start|>";
constexpr absl::string_view kTurnEnd = "<|im_end|>";

// The system message that the template puts in front when there is none: the literal text of its
// own system turn, if that turn is literal.
std::string DefaultSystem(absl::string_view chat_template) {
  // Inside a Jinja string a line break may be written either way.
  const std::string text = absl::StrReplaceAll(chat_template, {{"\\n", "\n"}});
  const std::string marker = absl::StrCat(kTurnStart, "system\n");
  const size_t start = text.find(marker);
  if (start == std::string::npos) {
    return "";
  }
  const size_t first = start + marker.size();
  const size_t end = text.find(std::string(kTurnEnd), first);
  if (end == std::string::npos) {
    return "";
  }
  const std::string content = text.substr(first, end - first);
  // A quote or brace would mean that the turn is computed.
  return content.find_first_of("'{}+") == std::string::npos ? content : "";
}

}  // namespace

absl::StatusOr<std::string> RenderChat(absl::string_view chat_template,
                                       const std::vector<ChatMessage>& messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("the chat has no messages");
  }
  if (!absl::StrContains(chat_template, kTurnStart) ||
      !absl::StrContains(chat_template, kTurnEnd)) {
    return absl::UnimplementedError(
        chat_template.empty()
            ? "the model has no chat template; send a plain prompt"
            : "the model's chat template is not of the ChatML form, the only one rendered so far; "
              "send a plain prompt");
  }
  std::string text;
  const std::string system = DefaultSystem(chat_template);
  if (messages.front().role != "system" && !system.empty()) {
    absl::StrAppend(&text, kTurnStart, "system\n", system, kTurnEnd, "\n");
  }
  for (const ChatMessage& message : messages) {
    absl::StrAppend(&text, kTurnStart, message.role, "\n", message.content, kTurnEnd, "\n");
  }
  absl::StrAppend(&text, kTurnStart, "assistant\n");
  return text;
}

}  // namespace lamina::coordinator
