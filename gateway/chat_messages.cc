// SPDX-License-Identifier: Apache-2.0
#include "gateway/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr size_t kMessagesMax = 4096;

// The text of a message: a string, or parts of text, each on a line of its own.
absl::StatusOr<std::string> ParseContent(const Json* value, const std::string& path) {
  if (value == nullptr) {
    return std::string();
  }
  if (value->is_string()) {
    return value->get<std::string>();
  }
  if (!value->is_array()) {
    return WrongType(path, "a string or an array of parts", *value);
  }
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    if (!(*value)[i].is_object()) {
      return WrongType(part_path, "an object", (*value)[i]);
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
      return Missing(part.PathOf("text"));
    }
    JoinPart(text, *words);
  }
  return text;
}

constexpr absl::string_view kRoles[] = {"system", "user", "assistant", "tool"};

// {"name", "arguments"} of a call; arguments are JSON in a text, as OpenAI has them, or an object.
absl::StatusOr<Json> ParseFunction(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return WrongType(path, "an object", value);
  }
  JsonObject function(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> name, function.String("name"));
  if (!name.has_value()) {
    return Missing(function.PathOf("name"));
  }
  const Json* arguments = function.Find("arguments");
  if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
    return WrongType(function.PathOf("arguments"), "a string", *arguments);
  }
  return Json{{"name", *name}, {"arguments", arguments == nullptr ? Json("{}") : *arguments}};
}

absl::StatusOr<Json> ParseCalls(const Json& calls, const std::string& path) {
  if (!calls.is_array()) {
    return WrongType(path, "an array", calls);
  }
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    if (!calls[i].is_object()) {
      return WrongType(place, "an object", calls[i]);
    }
    JsonObject call(calls[i], place + ".");
    LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> id, call.String("id"));
    LAMINA_RETURN_IF_ERROR(call.Refuse("type", {"function"}, "all calls are of functions"));
    const Json* function = call.Find("function");
    if (function == nullptr) {
      return Missing(call.PathOf("function"));
    }
    LAMINA_ASSIGN_OR_RETURN(Json read, ParseFunction(*function, call.PathOf("function")));
    out.push_back({{"id", id.value_or("")}, {"type", "function"}, {"function", std::move(read)}});
  }
  return out;
}

// What templates read of a message besides its role and text.
absl::StatusOr<Json> ParseExtras(JsonObject& message, const std::string& role) {
  Json extras = Json::object();
  if (const Json* calls = message.Find("tool_calls"); calls != nullptr && !calls->empty()) {
    LAMINA_ASSIGN_OR_RETURN(extras["tool_calls"], ParseCalls(*calls, message.PathOf("tool_calls")));
  }
  // The older way to write a call.
  if (const Json* call = message.Find("function_call"); call != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(Json function, ParseFunction(*call, message.PathOf("function_call")));
    extras["tool_calls"] =
        Json::array({Json{{"id", ""}, {"type", "function"}, {"function", std::move(function)}}});
  }
  if (extras.contains("tool_calls") && role != "assistant") {
    return BadField(
        message.PathOf("tool_calls"), "invalid_value",
        absl::StrCat("'", message.PathOf("tool_calls"), "' is only for messages of the assistant"));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> id, message.String("tool_call_id"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> name, message.String("name"));
  if (role == "tool" && id.has_value()) {
    extras["tool_call_id"] = *id;
  }
  if (role == "tool" && name.has_value()) {
    extras["name"] = *name;
  }
  for (const char* word : {"reasoning", "reasoning_content"}) {
    LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> thought, message.String(word));
    if (thought.has_value() && !thought->empty()) {
      extras["reasoning_content"] = *thought;
    }
  }
  return extras;
}

// Unknown keys are ignored, in calls too: clients send answers back as they got them, with what
// their libraries added.
absl::StatusOr<client::ChatMessage> ParseMessage(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return WrongType(path, "an object", value);
  }
  JsonObject message(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> role, message.String("role"));
  if (!role.has_value()) {
    return Missing(message.PathOf("role"));
  }
  // OpenAI's newer word for the system's part, and its older one for a tool's; templates know the
  // others.
  const std::string known = *role == "developer" ? "system" : *role == "function" ? "tool" : *role;
  if (std::find(std::begin(kRoles), std::end(kRoles), known) == std::end(kRoles)) {
    return BadField(
        message.PathOf("role"), "invalid_value",
        absl::StrCat("'", message.PathOf("role"), "' is '", *role,
                     "'; it must be system, developer, user, assistant, tool or function"));
  }
  const Json* content = message.Find("content");
  if (content == nullptr && known != "assistant") {
    return Missing(message.PathOf("content"));
  }
  LAMINA_RETURN_IF_ERROR(message.Refuse("audio", {}, "messages are text only"));
  LAMINA_ASSIGN_OR_RETURN(const Json extras, ParseExtras(message, known));
  LAMINA_ASSIGN_OR_RETURN(std::string text, ParseContent(content, message.PathOf("content")));
  client::ChatMessage out{.role = known, .content = std::move(text)};
  if (!extras.empty() || known == "tool") {
    Json whole = {{"role", known}, {"content", out.content}};
    whole.update(extras);
    out.json = whole.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return out;
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
