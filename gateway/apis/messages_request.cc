// SPDX-License-Identifier: Apache-2.0
//
// A request to Anthropic's Messages in the words of OpenAI's chats.

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/apis/answer_format.h"
#include "gateway/apis/messages_format.h"

namespace lamina::gateway {
namespace {

constexpr size_t kStopsMax = 16;

// Text, or a list of blocks of text.
absl::StatusOr<std::string> TextOf(const Json& value, const std::string& path) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return WrongType(path, "a string or an array of blocks", value);
  }
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    const bool is_text = value[i].is_object() && value[i].value("type", Json()) == "text" &&
                         value[i].value("text", Json()).is_string();
    if (!is_text) {
      return BadField(place, "unsupported_parameter",
                      absl::StrCat("'", place, "' is no block of text; only text is served"));
    }
    JoinPart(text, value[i]["text"].get<std::string>());
  }
  return text;
}

// Messages of one role that follow each other are one turn, as Anthropic has it. Its blocks become
// one message of text, thoughts and calls, and one for each result. Unknown keys are ignored, as in
// messages of chats.
class TurnReader {
 public:
  explicit TurnReader(std::string role) : role_(std::move(role)) {}

  const std::string& role() const { return role_; }

  // A message's content that is no list of blocks.
  void ReadText(const std::string& words) { JoinPart(text_, words); }

  absl::Status Read(const Json& value, const std::string& path) {
    if (!value.is_object()) {
      return WrongType(path, "an object", value);
    }
    JsonObject block(value, path + ".");
    LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_type, block.String("type"));
    const std::string type = given_type.value_or("");
    if (type == "text") {
      LAMINA_ASSIGN_OR_RETURN(const std::string words, Required(block, "text"));
      JoinPart(text_, words);
      return absl::OkStatus();
    }
    if (type == "tool_use") {
      return ReadCall(block);
    }
    if (type == "tool_result") {
      return ReadResult(block);
    }
    if (type == "thinking") {
      LAMINA_ASSIGN_OR_RETURN(const std::string words, Required(block, "thinking"));
      thought_ += words;
      return absl::OkStatus();
    }
    return BadField(block.PathOf("type"), "unsupported_parameter",
                    absl::StrCat("'", block.PathOf("type"), "' is '", type,
                                 "'; text, thinking, tool_use and tool_result are served"));
  }

  void AddTo(Json& messages) {
    for (Json& result : results_) {
      messages.push_back(std::move(result));
    }
    if (text_.empty() && calls_.empty() && thought_.empty() && !results_.empty()) {
      return;
    }
    Json message = {{"role", role_}, {"content", text_}};
    if (!calls_.empty()) {
      message["tool_calls"] = std::move(calls_);
    }
    if (!thought_.empty()) {
      message["reasoning_content"] = thought_;
    }
    messages.push_back(std::move(message));
  }

 private:
  static absl::StatusOr<std::string> Required(JsonObject& block, const char* name) {
    LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> value, block.String(name));
    if (!value.has_value()) {
      return Missing(block.PathOf(name));
    }
    return *std::move(value);
  }

  absl::Status ReadCall(JsonObject& block) {
    LAMINA_ASSIGN_OR_RETURN(const std::string id, Required(block, "id"));
    LAMINA_ASSIGN_OR_RETURN(const std::string name, Required(block, "name"));
    const Json* input = block.Find("input");
    const Json arguments = input == nullptr ? Json::object() : *input;
    calls_.push_back({{"id", id},
                      {"type", "function"},
                      {"function", {{"name", name}, {"arguments", arguments.dump()}}}});
    return absl::OkStatus();
  }

  absl::Status ReadResult(JsonObject& block) {
    LAMINA_ASSIGN_OR_RETURN(const std::string id, Required(block, "tool_use_id"));
    LAMINA_RETURN_IF_ERROR(block.Bool("is_error").status());
    std::string text;
    if (const Json* content = block.Find("content"); content != nullptr) {
      LAMINA_ASSIGN_OR_RETURN(text, TextOf(*content, block.PathOf("content")));
    }
    results_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    return absl::OkStatus();
  }

  const std::string role_;
  std::string text_;
  std::string thought_;
  Json calls_ = Json::array();
  Json results_ = Json::array();
};

// Reads a message into the turn, or adds the turn and begins the next one.
absl::Status ReadMessage(const Json& value, const std::string& path,
                         std::optional<TurnReader>& turn, Json& messages) {
  if (!value.is_object()) {
    return WrongType(path, "an object", value);
  }
  JsonObject message(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_role, message.String("role"));
  const std::string role = given_role.value_or("");
  if (role != "user" && role != "assistant") {
    return BadField(message.PathOf("role"), "invalid_value",
                    absl::StrCat("'", message.PathOf("role"), "' must be user or assistant"));
  }
  const Json* content = message.Find("content");
  if (content == nullptr) {
    return Missing(message.PathOf("content"));
  }
  if (!content->is_string() && !content->is_array()) {
    return WrongType(message.PathOf("content"), "a string or an array of blocks", *content);
  }
  if (turn.has_value() && turn->role() != role) {
    turn->AddTo(messages);
    turn.reset();
  }
  if (!turn.has_value()) {
    turn.emplace(role);
  }
  if (content->is_string()) {
    turn->ReadText(content->get<std::string>());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < content->size(); ++i) {
    LAMINA_RETURN_IF_ERROR(
        turn->Read((*content)[i], absl::StrCat(message.PathOf("content"), "[", i, "]")));
  }
  return absl::OkStatus();
}

absl::Status AddMessages(JsonObject& body, Json& chat) {
  Json messages = Json::array();
  if (const Json* system = body.Find("system"); system != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(const std::string text, TextOf(*system, "system"));
    messages.push_back({{"role", "system"}, {"content", text}});
  }
  const Json* given = body.Find("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return BadField("messages", "missing_required_parameter",
                    "'messages' must be an array with messages");
  }
  std::optional<TurnReader> turn;
  for (size_t i = 0; i < given->size(); ++i) {
    LAMINA_RETURN_IF_ERROR(
        ReadMessage((*given)[i], absl::StrCat("messages[", i, "]"), turn, messages));
  }
  if (turn.has_value()) {
    turn->AddTo(messages);
  }
  // An answer that the client has begun is continued; one that has nothing yet is none.
  const Json& last = messages.back();
  if (given->back()["role"] == "assistant" && last["role"] == "assistant") {
    const bool is_empty = last["content"] == "" && last.size() == 2;
    if (is_empty && messages.size() > 1) {
      messages.erase(messages.size() - 1);
    } else {
      chat["continue_final_message"] = true;
    }
  }
  chat["messages"] = std::move(messages);
  return absl::OkStatus();
}

absl::Status AddTools(JsonObject& body, Json& chat, FieldNames& names) {
  const Json* tools = body.Find("tools");
  if (tools == nullptr) {
    return absl::OkStatus();
  }
  if (!tools->is_array()) {
    return WrongType("tools", "an array", *tools);
  }
  Json out = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!(*tools)[i].is_object()) {
      return WrongType(path, "an object", (*tools)[i]);
    }
    JsonObject tool((*tools)[i], path + ".");
    LAMINA_RETURN_IF_ERROR(tool.Refuse("type", {"custom"}, "only tools of the client's own"));
    tool.Ignore("cache_control");
    tool.Ignore("input_examples");
    Json function = Json::object();
    for (const auto& [name, ours] :
         {std::pair("name", "name"), std::pair("description", "description"),
          std::pair("input_schema", "parameters"), std::pair("strict", "strict")}) {
      if (const Json* value = tool.Find(name); value != nullptr) {
        function[ours] = *value;
      }
    }
    LAMINA_RETURN_IF_ERROR(tool.RefuseUnknown());
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
    names.Add(path + ".function", path);
    names.Add(path + ".function.parameters", path + ".input_schema");
  }
  chat["tools"] = std::move(out);
  return absl::OkStatus();
}

absl::Status AddToolChoice(JsonObject& body, Json& chat) {
  LAMINA_ASSIGN_OR_RETURN(const Json* value, body.Object("tool_choice"));
  if (value == nullptr) {
    return absl::OkStatus();
  }
  JsonObject choice(*value, "tool_choice.");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_type, choice.String("type"));
  const std::string type = given_type.value_or("");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> name, choice.String("name"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> one, choice.Bool("disable_parallel_tool_use"));
  if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name.value_or("")}}}};
  } else if (type == "any" || type == "auto" || type == "none") {
    chat["tool_choice"] = type == "any" ? "required" : type;
  } else {
    return BadField("tool_choice.type", "invalid_value",
                    "'tool_choice.type' must be auto, any, tool or none");
  }
  if (one.value_or(false)) {
    chat["parallel_tool_calls"] = false;
  }
  return choice.RefuseUnknown();
}

absl::Status AddThinking(JsonObject& body, Json& chat) {
  LAMINA_ASSIGN_OR_RETURN(const Json* value, body.Object("thinking"));
  if (value == nullptr) {
    return absl::OkStatus();
  }
  JsonObject thinking(*value, "thinking.");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_type, thinking.String("type"));
  const std::string type = given_type.value_or("");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> budget,
                          thinking.Integer("budget_tokens", 0, INT32_MAX));
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return BadField("thinking.type", "invalid_value",
                    "'thinking.type' must be enabled, adaptive or disabled");
  }
  chat["chat_template_kwargs"] = {{"enable_thinking", type != "disabled"}};
  if (type == "enabled" && budget.has_value()) {
    chat["thinking_token_budget"] = *budget;
  }
  return thinking.RefuseUnknown();
}

}  // namespace

absl::StatusOr<TranslatedRequest> TranslateMessages(const Json& json, bool count) {
  JsonObject body(json);
  Json chat = Json::object();
  FieldNames names;
  names.Add("stop", "stop_sequences");
  names.Add("parallel_tool_calls", "tool_choice.disable_parallel_tool_use");
  names.Add("thinking_token_budget", "thinking.budget_tokens");
  for (const char* name : {"model", "max_tokens", "temperature", "top_p", "top_k", "stream"}) {
    if (const Json* value = body.Find(name); value != nullptr) {
      chat[name] = *value;
    }
  }
  if (!count && !chat.contains("max_tokens")) {
    return Missing("max_tokens");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> stops,
                          body.Strings("stop_sequences", kStopsMax));
  if (!stops.empty()) {
    chat["stop"] = stops;
  }
  LAMINA_RETURN_IF_ERROR(AddMessages(body, chat));
  LAMINA_RETURN_IF_ERROR(AddTools(body, chat, names));
  LAMINA_RETURN_IF_ERROR(AddToolChoice(body, chat));
  LAMINA_RETURN_IF_ERROR(AddThinking(body, chat));
  for (const char* name : {"metadata", "service_tier", "cache_control"}) {
    body.Ignore(name);
  }
  LAMINA_RETURN_IF_ERROR(body.RefuseUnknown());
  const Json model = chat.value("model", Json());
  return TranslatedRequest{
      .chat = std::move(chat),
      .format = std::make_shared<MessagesFormat>(model.is_string() ? model.get<std::string>() : ""),
      .names = std::move(names)};
}

}  // namespace lamina::gateway
