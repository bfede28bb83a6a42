// SPDX-License-Identifier: Apache-2.0
//
// LLaMA 3.1 to 3.3: an answer that is calls and nothing else, each an object, parted by ";":
// {"name": "f", "parameters": {"x": 1}}
// Before the first may stand <|python_tag|>.

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kTag = "<|python_tag|>";
constexpr char kSpaces[] = " \t\r\n";
constexpr char kParting[] = " \t\r\n;";  // Between two calls.

class Llama3Reader final : public PartReader {
 public:
  explicit Llama3Reader(const ToolRequest& tools) : tools_(tools), text_(tools.parallel) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    held_ += text;
    while (!is_text_ && Take(parts)) {
    }
    if (is_text_) {
      text_.Add(std::exchange(held_, {}), parts);
    }
  }

  void Finish(std::vector<AnswerPart>& parts) override {
    // What parts a call from none is no text.
    if (!called_ || held_.find_first_not_of(kParting) != std::string::npos) {
      text_.Add(held_, parts);
    }
    text_.Finish(parts);
  }

 private:
  // Takes a call, or finds that the rest is text. False when more text is needed.
  bool Take(std::vector<AnswerPart>& parts) {
    const size_t begin = Begin();
    if (begin == std::string::npos) {
      return false;
    }
    if (held_[begin] != '{') {
      is_text_ = true;
      return false;
    }
    scanned_ = std::max(scanned_, begin);
    scanned_ += end_.Scan(absl::string_view(held_).substr(scanned_));
    if (!end_.done()) {
      return false;
    }
    std::optional<ReadCall> call =
        ParseCall(absl::string_view(held_).substr(begin, scanned_ - begin), tools_);
    if (!call.has_value()) {
      is_text_ = true;
      return false;
    }
    text_.AddCall(*std::move(call), parts);
    held_.erase(0, std::exchange(scanned_, 0));
    end_ = JsonEnd();
    called_ = true;
    return true;
  }

  // Where a call may begin; npos when that cannot be said yet.
  size_t Begin() const {
    const absl::string_view parting = called_ ? kParting : kSpaces;
    size_t begin = held_.find_first_not_of(parting.data(), 0, parting.size());
    const absl::string_view rest =
        begin == std::string::npos ? "" : absl::string_view(held_).substr(begin);
    if (absl::StartsWith(rest, kTag)) {
      begin = held_.find_first_not_of(kSpaces, begin + kTag.size());
    } else if (!rest.empty() && absl::StartsWith(kTag, rest)) {
      begin = std::string::npos;
    }
    return begin;
  }

  const ToolRequest& tools_;
  TextAroundCalls text_;
  std::string held_;    // What may be a call.
  JsonEnd end_;         // Looks for the call's end,
  size_t scanned_ = 0;  // and has come so far in what is held.
  bool is_text_ = false;
  bool called_ = false;
};

}  // namespace

const ToolFamily& Llama3Family() {
  static const auto* const family = new ToolFamily{
      .name = "llama3",
      .matches =
          [](absl::string_view t) {
            return absl::StrContains(t, kTag) || (absl::StrContains(t, "\"parameters\"") &&
                                                  absl::StrContains(t, "<|start_header_id|>"));
          },
      .syntax = {.before = "{\"name\": \"",
                 .between = "\", \"parameters\": ",
                 .end = "}",
                 .separator = "; "},
      .make_reader = [](const ToolRequest& tools) -> std::unique_ptr<PartReader> {
        return std::make_unique<Llama3Reader>(tools);
      }};
  return *family;
}

}  // namespace lamina::gateway
