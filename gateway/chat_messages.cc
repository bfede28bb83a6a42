// SPDX-License-Identifier: Apache-2.0
#include "gateway/chat_messages.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr size_t kMessagesMax = 4096;

// The text of a message: a string, or parts of text.
absl::StatusOr<std::string> ParseContent(const Json* value, const std::string& path) {
  if (value == nullptr) {
    return std::string();
  }
  if (value->is_string()) {
    return value->get<std::string>();
  }
  if (!value->is_array()) {
    return BadField(path, "invalid_type",
                    absl::StrCat("'", path, "' must be a string or an array of parts, and is ",
                                 JsonTypeName(*value)));
  }
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    if (!(*value)[i].is_object()) {
      return BadField(
          part_path, "invalid_type",
          absl::StrCat("'", part_path, "' must be an object, and is ", JsonTypeName((*value)[i])));
    }
    JsonObject part((*value)[i], part_path + ".");
    LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given, part.String("type"));
    const std::string type = given.value_or("");
    if (type != "text") {
      return BadField(part.PathOf("type"), "unsupported_parameter",
                      absl::StrCat("'", part.PathOf("type"), "' is '", type,
                                   "'; only parts of type 'text' are served"));
    }
    LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> words, part.String("text"));
    if (!words.has_value()) {
      return BadField(part.PathOf("text"), "missing_required_parameter",
                      absl::StrCat("'", part.PathOf("text"), "' is missing"));
    }
    text += *words;
  }
  return text;
}

absl::StatusOr<client::ChatMessage> ParseMessage(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return BadField(path, "invalid_type",
                    absl::StrCat("'", path, "' must be an object, and is ", JsonTypeName(value)));
  }
  JsonObject message(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> role, message.String("role"));
  if (!role.has_value()) {
    return BadField(message.PathOf("role"), "missing_required_parameter",
                    absl::StrCat("'", message.PathOf("role"), "' is missing"));
  }
  // OpenAI's newer word for the system's part; templates know the older one.
  const std::string known = *role == "developer" ? "system" : *role;
  if (known != "system" && known != "user" && known != "assistant") {
    return BadField(message.PathOf("role"), "invalid_value",
                    absl::StrCat("'", message.PathOf("role"), "' is '", *role,
                                 "'; it must be system, developer, user or assistant"));
  }
  const Json* content = message.Find("content");
  if (content == nullptr && known != "assistant") {
    return BadField(message.PathOf("content"), "missing_required_parameter",
                    absl::StrCat("'", message.PathOf("content"), "' is missing"));
  }
  message.Ignore("name");
  message.Ignore("refusal");
  message.Ignore("annotations");
  for (const char* name : {"tool_calls", "function_call", "audio"}) {
    LAMINA_RETURN_IF_ERROR(message.Refuse(name, {Json::array()}, "messages are text only"));
  }
  LAMINA_RETURN_IF_ERROR(message.RefuseUnknown());
  LAMINA_ASSIGN_OR_RETURN(std::string text, ParseContent(content, message.PathOf("content")));
  return client::ChatMessage{.role = known, .content = std::move(text)};
}

}  // namespace

absl::StatusOr<std::vector<client::ChatMessage>> ParseMessages(const Json& messages) {
  if (!messages.is_array()) {
    return BadField("messages", "invalid_type",
                    absl::StrCat("'messages' must be an array, and is ", JsonTypeName(messages)));
  }
  if (messages.empty()) {
    return BadField("messages", "empty_array", "'messages' is an empty array");
  }
  if (messages.size() > kMessagesMax) {
    return BadField("messages", "array_above_max_length",
                    absl::StrCat("'messages' has ", messages.size(), " messages; at most ",
                                 kMessagesMax, " are allowed"));
  }
  std::vector<client::ChatMessage> parsed;
  for (size_t i = 0; i < messages.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(client::ChatMessage message,
                            ParseMessage(messages[i], absl::StrCat("messages[", i, "]")));
    parsed.push_back(std::move(message));
  }
  return parsed;
}

}  // namespace lamina::gateway
