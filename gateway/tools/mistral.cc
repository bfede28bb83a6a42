// SPDX-License-Identifier: Apache-2.0
//
// Mistral: calls behind a special token, as one array, or with newer tokenizers each by itself,
// where an id that may stand behind the name is left out:
// [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, ...]
// [TOOL_CALLS]f[ARGS]{"x": 1}
// [TOOL_CALLS]f[CALL_ID]abc123456[ARGS]{"x": 1}

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/json_bounds.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kMark = "[TOOL_CALLS]";
constexpr absl::string_view kId = "[CALL_ID]";
constexpr absl::string_view kArguments = "[ARGS]";
constexpr size_t kNameBytesMax = 128;  // With what may stand around it.

class MistralReader final : public PartReader {
 public:
  explicit MistralReader(const ToolRequest& tools) : tools_(tools), text_(tools.parallel) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    held_ += text;
    while (inside_ ? TakeCalls(parts) : TakeText(parts)) {
    }
  }

  void Finish(std::vector<AnswerPart>& parts) override {
    text_.Add(absl::StrCat(inside_ ? kMark : "", held_), parts);
    text_.Finish(parts);
  }

 private:
  bool TakeText(std::vector<AnswerPart>& parts) {
    const size_t mark = absl::string_view(held_).find(kMark);
    const size_t shown = mark == std::string::npos ? held_.size() - OpenMark(held_, kMark) : mark;
    text_.Add(absl::string_view(held_).substr(0, shown), parts);
    held_.erase(0, shown);
    if (mark == std::string::npos) {
      return false;
    }
    held_.erase(0, kMark.size());
    inside_ = true;
    return true;
  }

  // False when more text is needed.
  bool TakeCalls(std::vector<AnswerPart>& parts) {
    const size_t first = held_.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) {
      return false;
    }
    const bool is_array = held_[first] == '[';
    const size_t begin = is_array ? first : held_.find('{', first);
    if (begin == std::string::npos && held_.size() - first <= kNameBytesMax) {
      return false;
    }
    if (begin == std::string::npos) {
      return GiveUp(parts);
    }
    scanned_ = std::max(scanned_, begin);
    scanned_ += end_.Scan(absl::string_view(held_).substr(scanned_));
    if (!end_.done()) {
      return false;
    }
    const std::string name = held_.substr(first, begin - first);
    const std::string json = held_.substr(begin, scanned_ - begin);
    if (!(is_array ? AddArray(json, parts) : AddNamed(name, json, parts))) {
      return GiveUp(parts);
    }
    held_.erase(0, scanned_);
    Leave();
    return true;
  }

  void Leave() {
    inside_ = false;
    end_ = JsonEnd();
    scanned_ = 0;
  }

  bool GiveUp(std::vector<AnswerPart>& parts) {
    text_.Add(kMark, parts);
    Leave();
    return true;
  }

  // All of an array, or nothing.
  bool AddArray(const std::string& text, std::vector<AnswerPart>& parts) {
    if (!CheckRequestJson(text, "calls").ok()) {
      return false;
    }
    std::vector<ReadCall> calls;
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    for (const Json& entry : json.is_array() ? json : Json::array()) {
      std::optional<ReadCall> call = CallOf(entry, tools_);
      if (!call.has_value()) {
        return false;
      }
      calls.push_back(*std::move(call));
    }
    for (ReadCall& call : calls) {
      text_.AddCall(std::move(call), parts);
    }
    return !calls.empty();
  }

  bool AddNamed(absl::string_view name, const std::string& arguments,
                std::vector<AnswerPart>& parts) {
    name = name.substr(0, name.find(kId));
    name =
        absl::StripAsciiWhitespace(absl::StripSuffix(absl::StripAsciiWhitespace(name), kArguments));
    std::optional<ReadCall> call =
        ParseCall(absl::StrCat("{\"name\": ", Json(std::string(name)).dump(),
                               ", \"arguments\": ", arguments, "}"),
                  tools_);
    if (call.has_value()) {
      text_.AddCall(*std::move(call), parts);
    }
    return call.has_value();
  }

  const ToolRequest& tools_;
  TextAroundCalls text_;
  std::string held_;  // Outside: what may begin a mark. Inside: what is behind it.
  bool inside_ = false;
  JsonEnd end_;         // Inside: looks for the end of the calls,
  size_t scanned_ = 0;  // and has come so far in what is held.
};

}  // namespace

const ToolFamily& MistralFamily() {
  static const auto* const family =
      new ToolFamily{.name = "mistral",
                     .matches = [](absl::string_view t) { return absl::StrContains(t, kMark); },
                     .syntax = {.in_prompt = std::string(kMark),
                                .lead = "[",
                                .before = "{\"name\": \"",
                                .between = "\", \"arguments\": ",
                                .end = "}",
                                .separator = ", ",
                                .close = "]"},
                     .make_reader = [](const ToolRequest& tools) -> std::unique_ptr<PartReader> {
                       return std::make_unique<MistralReader>(tools);
                     },
                     .keep_special = true,
                     .id_prefix = "",
                     .id_digits = 9};  // Its templates take no others.
  return *family;
}

}  // namespace lamina::gateway
