// SPDX-License-Identifier: Apache-2.0
//
// A request to OpenAI's Responses in the words of its chats. Nothing is stored: a conversation
// comes whole with each request.

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/apis/answer_format.h"
#include "gateway/apis/responses_format.h"

namespace lamina::gateway {
namespace {

// Parts of input and output, which differ in their types' names only.
absl::StatusOr<std::string> TextOf(const Json& value, const std::string& path) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return WrongType(path, "a string or an array of parts", value);
  }
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const Json type = value[i].is_object() ? value[i].value("type", Json()) : Json();
    const bool known = type == "input_text" || type == "output_text" || type == "text" ||
                       type == "reasoning_text" || type == "summary_text";
    if (!known || !value[i].value("text", Json()).is_string()) {
      const std::string place = absl::StrCat(path, "[", i, "]");
      return BadField(place, "unsupported_parameter",
                      absl::StrCat("'", place, "' is no part of text; only text is served"));
    }
    JoinPart(text, value[i]["text"].get<std::string>());
  }
  return text;
}

// Items of a conversation: messages, calls and their outputs, thoughts.
class ItemReader {
 public:
  // `messages`: those that come before. `names` learns of which items the others are.
  ItemReader(Json messages, FieldNames& names) : messages_(std::move(messages)), names_(names) {}

  absl::Status Read(const Json& item, const std::string& path) {
    if (!item.is_object()) {
      return WrongType(path, "an object", item);
    }
    const Json type = item.value("type", Json());
    if (type.is_null() || type == "message") {
      return ReadMessage(item, path);
    }
    if (type == "function_call") {
      return ReadCall(item, path);
    }
    if (type == "function_call_output") {
      LAMINA_ASSIGN_OR_RETURN(const std::string text,
                              TextOf(item.value("output", Json()), path + ".output"));
      Push({{"role", "tool"}, {"tool_call_id", item.value("call_id", Json())}, {"content", text}},
           path);
      names_.Add(LastName() + ".tool_call_id", path + ".call_id");
      return absl::OkStatus();
    }
    if (type == "reasoning") {
      return ReadThought(item, path);
    }
    return BadField(path + ".type", "unsupported_parameter",
                    absl::StrCat("'", path, ".type' is ", type.dump(),
                                 "; messages, functions and reasoning are served"));
  }

  Json Take() { return std::move(messages_); }

 private:
  absl::Status ReadMessage(const Json& item, const std::string& path) {
    LAMINA_ASSIGN_OR_RETURN(const std::string text,
                            TextOf(item.value("content", Json()), path + ".content"));
    Json message = {{"role", item.value("role", Json())}, {"content", text}};
    AddThought(message);
    Push(std::move(message), path);
    return absl::OkStatus();
  }

  // A thought without content (its summary alone, or encrypted) is none that a template shows.
  absl::Status ReadThought(const Json& item, const std::string& path) {
    const Json content = item.value("content", Json());
    if (!content.is_null()) {
      LAMINA_ASSIGN_OR_RETURN(const std::string text, TextOf(content, path + ".content"));
      thought_ += text;
    }
    return absl::OkStatus();
  }

  // Calls that follow each other are of one message.
  absl::Status ReadCall(const Json& item, const std::string& path) {
    Json call = {
        {"id", item.value("call_id", Json())},
        {"type", "function"},
        {"function",
         {{"name", item.value("name", Json())}, {"arguments", item.value("arguments", Json())}}}};
    if (!call["function"]["name"].is_string()) {
      return Missing(path + ".name");
    }
    const bool behind = !messages_.empty() && messages_.back()["role"] == "assistant";
    if (!behind) {
      Push({{"role", "assistant"}, {"content", ""}}, path);
    }
    AddThought(messages_.back());
    if (!messages_.back().contains("tool_calls")) {
      messages_.back()["tool_calls"] = Json::array();
    }
    Json& calls = messages_.back()["tool_calls"];
    const std::string name = absl::StrCat(LastName(), ".tool_calls[", calls.size(), "]");
    names_.Add(name + ".id", path + ".call_id");
    names_.Add(name + ".function", path);
    calls.push_back(std::move(call));
    return absl::OkStatus();
  }

  // Adds the message that the item at `path` is, or begins.
  void Push(Json message, const std::string& path) {
    messages_.push_back(std::move(message));
    names_.Add(LastName(), path);
  }

  std::string LastName() const { return absl::StrCat("messages[", messages_.size() - 1, "]"); }

  void AddThought(Json& message) {
    if (!thought_.empty()) {
      message["reasoning_content"] = std::exchange(thought_, {});
    }
  }

  Json messages_;
  FieldNames& names_;
  std::string thought_;
};

absl::Status AddInput(JsonObject& body, Json& chat, FieldNames& names) {
  Json messages = Json::array();
  names.Add("messages", "input");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> instructions,
                          body.String("instructions"));
  if (instructions.has_value()) {
    messages.push_back({{"role", "system"}, {"content", *instructions}});
    names.Add("messages[0]", "instructions");
  }
  const Json* input = body.Find("input");
  if (input == nullptr) {
    return Missing("input");
  }
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    ItemReader items(std::move(messages), names);
    for (size_t i = 0; i < input->size(); ++i) {
      LAMINA_RETURN_IF_ERROR(items.Read((*input)[i], absl::StrCat("input[", i, "]")));
    }
    messages = items.Take();
  } else {
    return WrongType("input", "a string or an array of items", *input);
  }
  chat["messages"] = std::move(messages);
  return absl::OkStatus();
}

absl::Status AddTools(JsonObject& body, Json& chat, FieldNames& names) {
  if (const Json* tools = body.Find("tools"); tools != nullptr) {
    if (!tools->is_array()) {
      return WrongType("tools", "an array", *tools);
    }
    Json out = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string path = absl::StrCat("tools[", i, "]");
      if (!(*tools)[i].is_object()) {
        return WrongType(path, "an object", (*tools)[i]);
      }
      Json function = (*tools)[i];
      const Json type = function.value("type", Json());
      if (type != "function") {
        return BadField(path + ".type", "unsupported_parameter",
                        absl::StrCat("'", path, ".type' is ", type.dump(),
                                     "; only tools of type 'function' are served"));
      }
      function.erase("type");
      out.push_back({{"type", "function"}, {"function", std::move(function)}});
      names.Add(path + ".function", path);
    }
    chat["tools"] = std::move(out);
  }
  if (const Json* choice = body.Find("tool_choice"); choice != nullptr) {
    chat["tool_choice"] = *choice;
    if (choice->is_object() && choice->value("type", Json()) == "function" &&
        choice->contains("name")) {
      chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
    }
  }
  return absl::OkStatus();
}

absl::Status AddText(JsonObject& body, Json& chat) {
  LAMINA_ASSIGN_OR_RETURN(const Json* value, body.Object("text"));
  if (value == nullptr) {
    return absl::OkStatus();
  }
  JsonObject text(*value, "text.");
  LAMINA_RETURN_IF_ERROR(text.Refuse("verbosity", {"medium"}, "say it in the prompt"));
  if (const Json* format = text.Find("format"); format != nullptr) {
    if (format->is_object() && format->value("type", Json()) == "json_schema") {
      Json schema = *format;
      schema.erase("type");
      chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    } else {
      chat["response_format"] = *format;
    }
  }
  return text.RefuseUnknown();
}

absl::Status AddReasoning(JsonObject& body, Json& chat) {
  LAMINA_ASSIGN_OR_RETURN(const Json* value, body.Object("reasoning"));
  if (value == nullptr) {
    return absl::OkStatus();
  }
  JsonObject reasoning(*value, "reasoning.");
  for (const char* name : {"summary", "generate_summary"}) {
    LAMINA_RETURN_IF_ERROR(
        reasoning.Refuse(name, {"auto"}, "thoughts are shown whole, not summed up"));
  }
  if (const Json* effort = reasoning.Find("effort"); effort != nullptr) {
    chat["reasoning_effort"] = *effort;
  }
  return reasoning.RefuseUnknown();
}

// What a response repeats of its request, with OpenAI's defaults.
Json Echoed(const Json& body) {
  const auto or_default = [&body](const char* name, Json otherwise) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? std::move(otherwise) : *found;
  };
  Json out = Json::object();
  for (const char* name : {"instructions", "max_output_tokens", "temperature", "top_p", "user"}) {
    out[name] = or_default(name, nullptr);
  }
  out["model"] = or_default("model", "");
  out["metadata"] = or_default("metadata", Json::object());
  out["parallel_tool_calls"] = or_default("parallel_tool_calls", true);
  out["previous_response_id"] = nullptr;
  out["reasoning"] = or_default("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  out["store"] = false;
  out["text"] = or_default("text", {{"format", {{"type", "text"}}}});
  out["tool_choice"] = or_default("tool_choice", "auto");
  out["tools"] = or_default("tools", Json::array());
  out["truncation"] = or_default("truncation", "disabled");
  return out;
}

absl::Status AddOthers(JsonObject& body, Json& chat) {
  for (const auto& [name, ours] :
       {std::pair("model", "model"), std::pair("temperature", "temperature"),
        std::pair("top_p", "top_p"), std::pair("stream", "stream"),
        std::pair("max_output_tokens", "max_tokens"),
        std::pair("parallel_tool_calls", "parallel_tool_calls")}) {
    if (const Json* value = body.Find(name); value != nullptr) {
      chat[ours] = *value;
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_truncation,
                          body.String("truncation"));
  const std::string truncation = given_truncation.value_or("disabled");
  if (truncation == "auto") {
    chat["truncate_prompt_tokens"] = -1;
  } else if (truncation != "disabled") {
    return BadField("truncation", "invalid_value", "'truncation' must be auto or disabled");
  }
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier",
                           "prompt_cache_key", "prompt_cache_retention", "stream_options"}) {
    body.Ignore(name);
  }
  const char* stateless = "nothing is stored: send the conversation in 'input'";
  LAMINA_RETURN_IF_ERROR(body.Refuse("previous_response_id", {}, stateless));
  LAMINA_RETURN_IF_ERROR(body.Refuse("conversation", {}, stateless));
  LAMINA_RETURN_IF_ERROR(body.Refuse("background", {false}, stateless));
  LAMINA_RETURN_IF_ERROR(body.Refuse("prompt", {}, "there are no stored prompts"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("top_logprobs", {0}, "use /v1/chat/completions"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("max_tool_calls", {}, "tools are the client's own"));
  // What is encrypted is for servers that keep thoughts from the client.
  return body.Refuse("include", {Json::array(), Json::array({"reasoning.encrypted_content"})},
                     "all that is known is part of the answer");
}

}  // namespace

absl::StatusOr<TranslatedRequest> TranslateResponses(const Json& json) {
  JsonObject body(json);
  Json chat = Json::object();
  FieldNames names;
  names.Add("max_tokens", "max_output_tokens");
  names.Add("reasoning_effort", "reasoning.effort");
  names.Add("response_format", "text.format");
  names.Add("truncate_prompt_tokens", "truncation");
  LAMINA_RETURN_IF_ERROR(AddInput(body, chat, names));
  LAMINA_RETURN_IF_ERROR(AddTools(body, chat, names));
  LAMINA_RETURN_IF_ERROR(AddText(body, chat));
  LAMINA_RETURN_IF_ERROR(AddReasoning(body, chat));
  LAMINA_RETURN_IF_ERROR(AddOthers(body, chat));
  LAMINA_RETURN_IF_ERROR(body.RefuseUnknown());
  return TranslatedRequest{.chat = std::move(chat),
                           .format = std::make_shared<ResponsesFormat>(Echoed(json)),
                           .names = std::move(names)};
}

}  // namespace lamina::gateway
