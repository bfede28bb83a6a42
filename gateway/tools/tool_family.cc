// SPDX-License-Identifier: Apache-2.0
#include "gateway/tools/tool_family.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/json_bounds.h"

namespace lamina::gateway {

const ToolFamily* ChooseToolFamily(absl::string_view name, absl::string_view chat_template) {
  for (const ToolFamily* family : {&HarmonyFamily(), &MistralFamily(), &Qwen3CoderFamily(),
                                   &HermesFamily(), &Llama3Family()}) {
    if (name == "auto" ? family->matches(chat_template) : family->name == name) {
      return family;
    }
  }
  return nullptr;
}

std::optional<ReadCall> CallOf(const Json& json, const ToolRequest& tools) {
  if (!json.is_object() || !json.value("name", Json()).is_string()) {
    return std::nullopt;
  }
  ReadCall call{.name = json["name"].get<std::string>()};
  const bool older = json.contains("parameters");
  Json arguments = json.value(older ? "parameters" : "arguments", Json::object());
  if (arguments.is_string()) {
    const auto text = arguments.get<std::string>();
    if (!CheckRequestJson(text, "arguments").ok()) {
      return std::nullopt;
    }
    arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  if (!arguments.is_object() || !tools.Has(call.name)) {
    return std::nullopt;
  }
  call.arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
  return call;
}

std::optional<ReadCall> ParseCall(absl::string_view text, const ToolRequest& tools) {
  if (!CheckRequestJson(text, "a call").ok()) {
    return std::nullopt;
  }
  return CallOf(Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false), tools);
}

size_t JsonEnd::Scan(absl::string_view text) {
  for (size_t i = 0; i < text.size() && !done_; ++i) {
    const char c = text[i];
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_text_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ <= 0) {
      done_ = true;
      return i + 1;
    }
  }
  return done_ ? 0 : text.size();
}

void TextAroundCalls::Add(absl::string_view text, std::vector<AnswerPart>& parts) {
  const absl::string_view shown = absl::StripTrailingAsciiWhitespace(text);
  if (!shown.empty()) {
    parts.push_back({AnswerPart::Kind::kText, std::exchange(spaces_, {}) + std::string(shown)});
  }
  spaces_.append(text.data() + shown.size(), text.size() - shown.size());
}

void TextAroundCalls::AddCall(ReadCall call, std::vector<AnswerPart>& parts) {
  spaces_.clear();
  if (std::exchange(called_, true) && !parallel_) {
    return;
  }
  parts.push_back({AnswerPart::Kind::kCall, std::move(call.name)});
  parts.push_back({AnswerPart::Kind::kArguments, std::move(call.arguments)});
}

void TextAroundCalls::Finish(std::vector<AnswerPart>& parts) {
  if (!spaces_.empty() && !called_) {
    parts.push_back({AnswerPart::Kind::kText, std::exchange(spaces_, {})});
  }
}

size_t OpenMark(absl::string_view text, absl::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) {
      return n;
    }
  }
  return 0;
}

}  // namespace lamina::gateway
