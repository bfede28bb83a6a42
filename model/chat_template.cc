// SPDX-License-Identifier: Apache-2.0
#include "model/chat_template.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/json_value.h"

namespace lamina::model {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Value;

// The reasoning of a message: the first of these that is there.
constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

Json Normalized(const Json& message, bool keep_null_content) {
  Json out = Json::object();
  const char* reasoning = nullptr;
  for (const char* name : kReasoning) {
    if (reasoning == nullptr && message.contains(name) && !message[name].is_null()) {
      reasoning = name;
    }
  }
  if (reasoning != nullptr) {
    out["thinking"] = message[reasoning];
  }
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null() || (keep_null_content && key == "content")) {
      out[key] = value;
    }
  }
  if (reasoning != nullptr) {
    out["reasoning_content"] = message[reasoning];
  }
  return out;
}

absl::StatusOr<Value> MessagesOf(const ChatTemplateInput& input) {
  const Json& messages = input.messages;
  if (!messages.is_array() || messages.empty()) {
    return absl::InvalidArgumentError("the chat has no messages");
  }
  Json out = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", out.size(), " of the chat is not an object"));
    }
    out.push_back(Normalized(message, input.keep_null_content));
  }
  return jinja::FromJson(out);
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Create(absl::string_view source, std::string bos,
                                                  std::string eos) {
  LAMINA_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  return ChatTemplate(std::move(parsed), std::move(bos), std::move(eos));
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatTemplateInput& input,
                                                 const std::tm& now) const {
  std::vector<std::pair<Value, Value>> variables;
  const auto add = [&variables](absl::string_view name, Value value) {
    variables.emplace_back(Value::String(std::string(name)), std::move(value));
  };
  LAMINA_ASSIGN_OR_RETURN(Value messages, MessagesOf(input));
  LAMINA_ASSIGN_OR_RETURN(Value tools, jinja::FromJson(input.tools));
  LAMINA_ASSIGN_OR_RETURN(Value documents, jinja::FromJson(input.documents));
  if (!bos_.empty()) {
    add("bos_token", Value::String(bos_));
  }
  if (!eos_.empty()) {
    add("eos_token", Value::String(eos_));
  }
  for (const auto& [name, argument] : input.arguments.items()) {
    LAMINA_ASSIGN_OR_RETURN(Value value, jinja::FromJson(argument));
    add(name, std::move(value));
  }
  // Last, so that no argument replaces them.
  add("messages", std::move(messages));
  add("tools", std::move(tools));
  add("documents", std::move(documents));
  add("add_generation_prompt", Value::Bool(input.add_generation_prompt));
  LAMINA_ASSIGN_OR_RETURN(const Value all, Value::Dict(std::move(variables)));
  return template_.Render(all, now);
}

}  // namespace lamina::model
