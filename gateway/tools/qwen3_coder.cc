// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-Coder: text, and calls anywhere in it, whose arguments stand in tags:
// <tool_call>
// <function=f>
// <parameter=x>
// 1
// </parameter>
// </function>
// </tool_call>
// The outer tags may be missing: such models leave them out at times. An argument is a text, unless
// the function's schema has it be something else, and it reads as that. A call that a grammar makes
// is one of hermes.cc, which the reader here knows too.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/json_bounds.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
constexpr absl::string_view kFunction = "<function=";
constexpr absl::string_view kFunctionEnd = "</function>";
constexpr absl::string_view kParameter = "<parameter=";
constexpr absl::string_view kParameterEnd = "</parameter>";
constexpr size_t kNameBytesMax = 256;  // With the ">" behind it.

bool IsOfType(const Json& value, const Json& type) {
  return (type == "integer" && (value.is_number_integer() || ExactInteger(value).has_value())) ||
         (type == "number" && value.is_number()) || (type == "boolean" && value.is_boolean()) ||
         (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
         (type == "null" && value.is_null());
}

// Whether `schema` by itself, without the parts that it is made of, is of values like this one.
bool IsOf(const Json& schema, const Json& value) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    return type->is_array() ? std::any_of(type->begin(), type->end(),
                                          [&](const Json& one) { return IsOfType(value, one); })
                            : IsOfType(value, *type);
  }
  if (const auto constant = schema.find("const"); constant != schema.end()) {
    return *constant == value;
  }
  if (const auto values = schema.find("enum"); values != schema.end()) {
    return std::find(values->begin(), values->end(), value) != values->end();
  }
  return (schema.contains("properties") && value.is_object()) ||
         (schema.contains("items") && value.is_array());
}

// Whether `schema`, a part of `root`, is of values like this one in any of its alternatives.
bool MayBe(const Json& schema, const Json& root, const Json& value) {
  std::vector<const Json*> left = {&schema};
  std::set<const Json*> seen;
  while (!left.empty()) {
    const Json* const part = left.back();
    left.pop_back();
    if (part == nullptr || !part->is_object() || !seen.insert(part).second) {
      continue;
    }
    if (IsOf(*part, value)) {
      return true;
    }
    const auto reference = part->find("$ref");
    if (reference != part->end() && reference->is_string()) {
      left.push_back(PlaceOf(reference->get<std::string>(), root));
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      const auto list = part->find(keyword);
      if (list != part->end() && list->is_array()) {
        for (const Json& alternative : *list) {
          left.push_back(&alternative);
        }
      }
    }
  }
  return false;
}

// The schema of an argument; null where there is none.
const Json* SchemaOf(const std::string& argument, const Json& parameters) {
  const auto properties = parameters.find("properties");
  if (properties != parameters.end() && properties->is_object()) {
    const auto schema = properties->find(argument);
    if (schema != properties->end()) {
      return &*schema;
    }
  }
  const auto others = parameters.find("additionalProperties");
  return others == parameters.end() ? nullptr : &*others;
}

// What a text reads as: a JSON value, also in Python's words, in which templates show earlier calls
// to the model; else a discarded value.
Json Parsed(absl::string_view text) {
  const absl::string_view word = absl::StripAsciiWhitespace(text);
  if (word == "True" || word == "False") {
    return Json(word == "True");
  }
  if (word == "None") {
    return Json(nullptr);
  }
  if (!CheckRequestJson(text, "an argument").ok()) {
    return Json(Json::value_t::discarded);
  }
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

Json ArgumentOf(absl::string_view text, const std::string& name, const Json& parameters) {
  if (const Json* const schema = SchemaOf(name, parameters); schema != nullptr) {
    Json value = Parsed(text);
    if (!value.is_discarded() && !value.is_string() && MayBe(*schema, parameters, value)) {
      return value;
    }
  }
  return Json(std::string(text));
}

class Qwen3CoderReader final : public PartReader {
 public:
  explicit Qwen3CoderReader(const ToolRequest& tools) : tools_(tools), text_(tools.parallel) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    held_ += text;
    while (Step(parts)) {
    }
  }

  void Finish(std::vector<AnswerPart>& parts) override {
    if (place_ != Place::kBehind) {
      text_.Add(held_, parts);  // A call that was cut is text.
    }
    held_.clear();
    text_.Finish(parts);
  }

 private:
  enum class Place : uint8_t {
    kText,
    kOpened,      // Behind <tool_call>, or before a function that has none.
    kJson,        // In a call of hermes.cc.
    kName,        // In a function's name,
    kParameters,  // behind it, or behind an argument;
    kKey,         // in an argument's name,
    kValue,       // and in its value.
    kBehind,      // Where a call may be closed.
  };
  enum class Found : uint8_t { kNo, kYes, kMayBe };

  // False when more text is needed.
  bool Step(std::vector<AnswerPart>& parts) {
    const Found found = place_ == Place::kText ? TakeText(parts) : TakePiece(parts);
    if (found == Found::kNo) {  // What was taken of the call is text, and so is what follows.
      text_.Add(absl::string_view(held_).substr(0, at_), parts);
      Leave(Place::kText);
    }
    return found != Found::kMayBe;
  }

  Found TakePiece(std::vector<AnswerPart>& parts) {
    switch (place_) {
      case Place::kText:
        break;
      case Place::kOpened:
        return TakeBegin();
      case Place::kJson:
        return TakeJson(parts);
      case Place::kName:
        return TakeFunction();
      case Place::kParameters:
        return TakeParameters(parts);
      case Place::kKey:
        return TakeName(Place::kValue);
      case Place::kValue:
        return TakeValue();
      case Place::kBehind:
        return TakeClose();
    }
    return Found::kNo;
  }

  Found TakeText(std::vector<AnswerPart>& parts) {
    const absl::string_view held = held_;
    const size_t mark = std::min(held.find(kOpen), held.find(kFunction));
    const bool found = mark != absl::string_view::npos;
    const size_t shown =
        found ? mark : held.size() - std::max(OpenMark(held, kOpen), OpenMark(held, kFunction));
    text_.Add(held.substr(0, shown), parts);
    held_.erase(0, shown);
    if (!found) {
      return Found::kMayBe;
    }
    at_ = absl::StartsWith(held_, kOpen) ? kOpen.size() : 0;
    place_ = Place::kOpened;
    return Found::kYes;
  }

  Found TakeBegin() {
    const Found function = Take(kFunction);
    if (function == Found::kYes) {
      place_ = Place::kName;
    }
    if (function != Found::kNo) {
      return function;
    }
    const Found json = Take("{");
    if (json == Found::kYes) {
      --at_;
      scanned_ = at_;
      end_ = JsonEnd();
      place_ = Place::kJson;
    }
    return json;
  }

  Found TakeJson(std::vector<AnswerPart>& parts) {
    scanned_ += end_.Scan(absl::string_view(held_).substr(scanned_));
    if (!end_.done()) {
      return Found::kMayBe;
    }
    std::optional<ReadCall> call =
        ParseCall(absl::string_view(held_).substr(at_, scanned_ - at_), tools_);
    at_ = scanned_;
    if (!call.has_value()) {
      return Found::kNo;
    }
    text_.AddCall(*std::move(call), parts);
    Leave(Place::kBehind);
    return Found::kYes;
  }

  Found TakeFunction() {
    const Found name = TakeName(Place::kParameters);
    if (name != Found::kYes) {
      return name;
    }
    const auto function =
        std::find_if(tools_.functions.begin(), tools_.functions.end(),
                     [this](const ToolFunction& offered) { return offered.name == name_; });
    if (function == tools_.functions.end()) {
      return Found::kNo;
    }
    function_ = &*function;
    arguments_ = Json::object();
    return Found::kYes;
  }

  Found TakeParameters(std::vector<AnswerPart>& parts) {
    const Found parameter = Take(kParameter);
    if (parameter == Found::kYes) {
      place_ = Place::kKey;
    }
    if (parameter != Found::kNo) {
      return parameter;
    }
    const Found end = Take(kFunctionEnd);
    if (end == Found::kYes) {
      text_.AddCall({.name = function_->name,
                     .arguments = arguments_.dump(-1, ' ', false, Json::error_handler_t::replace)},
                    parts);
      Leave(Place::kBehind);
    }
    return end;
  }

  // One line end belongs to each tag around a value.
  Found TakeValue() {
    const absl::string_view held = held_;
    const size_t end = held.find(kParameterEnd, scanned_);
    if (end == absl::string_view::npos) {
      scanned_ = held.size() - OpenMark(held, kParameterEnd);
      return Found::kMayBe;
    }
    absl::string_view value = held.substr(at_, end - at_);
    absl::ConsumePrefix(&value, "\n");
    absl::ConsumeSuffix(&value, "\n");
    arguments_[name_] = ArgumentOf(value, name_, function_->parameters);
    at_ = end + kParameterEnd.size();
    place_ = Place::kParameters;
    return Found::kYes;
  }

  Found TakeClose() {
    const Found close = Take(kClose);
    if (close == Found::kYes) {
      Leave(Place::kText);
    }
    return close;
  }

  // Takes `mark`, behind any spaces.
  Found Take(absl::string_view mark) {
    const absl::string_view rest =
        absl::StripLeadingAsciiWhitespace(absl::string_view(held_).substr(at_));
    if (absl::StartsWith(rest, mark)) {
      at_ = held_.size() - rest.size() + mark.size();
      return Found::kYes;
    }
    return absl::StartsWith(mark, rest) ? Found::kMayBe : Found::kNo;
  }

  // Takes a name and the ">" behind it.
  Found TakeName(Place next) {
    const absl::string_view rest = absl::string_view(held_).substr(at_, kNameBytesMax);
    const size_t end = rest.find('>');
    if (end == absl::string_view::npos) {
      return rest.size() < kNameBytesMax ? Found::kMayBe : Found::kNo;
    }
    name_ = std::string(absl::StripAsciiWhitespace(rest.substr(0, end)));
    at_ += end + 1;
    scanned_ = at_;
    place_ = next;
    return Found::kYes;
  }

  // Lets go of what was taken.
  void Leave(Place next) {
    held_.erase(0, at_);
    at_ = 0;
    place_ = next;
  }

  const ToolRequest& tools_;
  TextAroundCalls text_;
  std::string held_;  // In a text: what may begin a mark. In a call: all of it so far.
  Place place_ = Place::kText;
  size_t at_ = 0;       // So much of what is held was taken,
  size_t scanned_ = 0;  // and in so much the value does not end.
  JsonEnd end_;
  std::string name_;
  const ToolFunction* function_ = nullptr;
  Json arguments_;
};

}  // namespace

const ToolFamily& Qwen3CoderFamily() {
  static const auto* const family = new ToolFamily{
      .name = "qwen3_coder",
      .matches =
          [](absl::string_view t) {
            return absl::StrContains(t, kFunction) && absl::StrContains(t, kParameter);
          },
      .syntax = HermesFamily().syntax,
      .make_reader = [](const ToolRequest& tools) -> std::unique_ptr<PartReader> {
        return std::make_unique<Qwen3CoderReader>(tools);
      }};
  return *family;
}

}  // namespace lamina::gateway
