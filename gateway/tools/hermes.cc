// SPDX-License-Identifier: Apache-2.0
//
// Hermes and Qwen: text, and calls anywhere in it:
// <tool_call>
// {"name": "f", "arguments": {"x": 1}}
// </tool_call>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
// GLM's calls stand in the same tags, and are no JSON.
constexpr absl::string_view kGlmsKey = "<arg_key>";

class HermesReader final : public PartReader {
 public:
  explicit HermesReader(const ToolRequest& tools) : tools_(tools), text_(tools.parallel) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    held_ += text;
    while (inside_ ? TakeCall(parts) : TakeText(parts)) {
    }
  }

  void Finish(std::vector<AnswerPart>& parts) override {
    if (std::exchange(inside_, false)) {
      End(held_, "", parts);  // Some models end their turn instead of closing the last call.
    } else {
      text_.Add(held_, parts);
    }
    held_.clear();
    text_.Finish(parts);
  }

 private:
  // False when more text is needed.
  bool TakeText(std::vector<AnswerPart>& parts) {
    const size_t open = absl::string_view(held_).find(kOpen);
    if (open == std::string::npos) {
      const size_t shown = held_.size() - OpenMark(held_, kOpen);
      text_.Add(absl::string_view(held_).substr(0, shown), parts);
      held_.erase(0, shown);
      return false;
    }
    text_.Add(absl::string_view(held_).substr(0, open), parts);
    held_.erase(0, open + kOpen.size());
    inside_ = true;
    return true;
  }

  bool TakeCall(std::vector<AnswerPart>& parts) {
    const size_t close = absl::string_view(held_).find(kClose);
    if (close == std::string::npos) {
      return false;
    }
    const std::string body = held_.substr(0, close);
    held_.erase(0, close + kClose.size());
    inside_ = false;
    End(body, kClose, parts);
    return true;
  }

  void End(const std::string& body, absl::string_view close, std::vector<AnswerPart>& parts) {
    if (std::optional<ReadCall> call = ParseCall(body, tools_); call.has_value()) {
      text_.AddCall(*std::move(call), parts);
    } else {
      text_.Add(absl::StrCat(kOpen, body, close), parts);
    }
  }

  const ToolRequest& tools_;
  TextAroundCalls text_;
  std::string held_;  // Outside: what may begin a call. Inside: the call so far.
  bool inside_ = false;
};

}  // namespace

const ToolFamily& HermesFamily() {
  static const auto* const family =
      new ToolFamily{.name = "hermes",
                     .matches =
                         [](absl::string_view t) {
                           return absl::StrContains(t, kOpen) && !absl::StrContains(t, kGlmsKey);
                         },
                     .syntax = {.before = "<tool_call>\n{\"name\": \"",
                                .between = "\", \"arguments\": ",
                                .end = "}\n</tool_call>",
                                .separator = "\n"},
                     .make_reader = [](const ToolRequest& tools) -> std::unique_ptr<PartReader> {
                       return std::make_unique<HermesReader>(tools);
                     }};
  return *family;
}

}  // namespace lamina::gateway
