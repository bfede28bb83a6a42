// SPDX-License-Identifier: Apache-2.0
//
// Harmony, the format of gpt-oss: an answer is messages on channels, each with a header. The prompt
// ends with "<|start|>assistant".
//
//   message = header "<|message|>" content ( "<|end|>" | "<|return|>" | "<|call|>" )
//   header  = "<|channel|>" channel [ " to=" recipient ] [ "<|constrain|>json" ],
//             where the recipient may also stand before the channel
//
// What is on `analysis`, or goes to a recipient that is none of the client's functions, is thought;
// on `commentary` to "functions.NAME" a call with its arguments as content; all else is text.

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kStart = "<|start|>";
constexpr absl::string_view kChannel = "<|channel|>";
constexpr absl::string_view kMessage = "<|message|>";
constexpr absl::string_view kTo = "to=";
constexpr absl::string_view kFunctions = "functions.";
// What ends a content; a new header ends one that was not closed.
constexpr absl::string_view kEnds[] = {"<|end|>", "<|return|>", "<|call|>", kStart, kChannel};
constexpr size_t kHeaderBytesMax = 512;

class HarmonyReader final : public PartReader {
 public:
  explicit HarmonyReader(const ToolRequest& tools) : tools_(tools), text_(tools.parallel) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    held_ += text;
    while (inside_ ? TakeContent(parts) : TakeHeader(parts)) {
    }
  }

  void Finish(std::vector<AnswerPart>& parts) override {
    // A header that was cut says nothing to anybody.
    if (inside_ || (!absl::StrContains(held_, "<") && !Blank())) {
      AddContent(std::exchange(held_, {}), parts);
      EndContent(parts);
    }
    text_.Finish(parts);
  }

 private:
  enum class Kind : uint8_t { kText, kThought, kCall };

  // False when more text is needed.
  bool TakeHeader(std::vector<AnswerPart>& parts) {
    const bool may_be = MayBeHeader();
    const size_t end = absl::string_view(held_).find(kMessage);
    if (may_be && end == std::string::npos && held_.size() <= kHeaderBytesMax) {
      return false;
    }
    inside_ = true;
    if (may_be && end != std::string::npos) {
      ReadHeader(absl::string_view(held_).substr(0, end));
      held_.erase(0, end + kMessage.size());
      return true;
    }
    kind_ = Kind::kText;  // The prompt had the header, or it is none.
    if (may_be) {         // Too long for one: its mark is text, not another header.
      const size_t mark = held_.find('<') + 1;
      AddContent(held_.substr(0, mark), parts);
      held_.erase(0, mark);
    }
    return true;
  }

  bool Blank() const { return absl::StripAsciiWhitespace(held_).empty(); }

  bool MayBeHeader() const {
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(held_);
    const auto begins = [text](absl::string_view mark) {
      const size_t size = std::min(text.size(), mark.size());
      return text.substr(0, size) == mark.substr(0, size);
    };
    return begins(kStart) || begins(kChannel) || begins(kMessage) || begins(kTo);
  }

  void ReadHeader(absl::string_view header) {
    const size_t channel = header.find(kChannel);
    const absl::string_view name =
        channel == absl::string_view::npos ? "" : header.substr(channel + kChannel.size());
    const size_t to = header.find(kTo);
    kind_ = absl::StartsWith(name, "analysis") ? Kind::kThought : Kind::kText;
    if (to == absl::string_view::npos) {
      return;
    }
    const absl::string_view rest = header.substr(to + kTo.size());
    absl::string_view recipient = rest.substr(0, rest.find_first_of(" <\n"));
    const bool function = absl::ConsumePrefix(&recipient, kFunctions);
    kind_ = function ? Kind::kCall : Kind::kThought;
    function_ = std::string(recipient);
  }

  // False when more text is needed.
  bool TakeContent(std::vector<AnswerPart>& parts) {
    const absl::string_view held = held_;
    size_t at = absl::string_view::npos;
    absl::string_view found;
    size_t open = 0;  // Bytes at the end that may begin a mark.
    for (const absl::string_view mark : kEnds) {
      const size_t place = held.find(mark);
      if (place < at) {
        at = place;
        found = mark;
      }
      open = std::max(open, OpenMark(held, mark));
    }
    const bool ended = at != absl::string_view::npos;
    const size_t shown = ended ? at : held.size() - open;
    AddContent(held_.substr(0, shown), parts);
    const bool header_follows = found == kStart || found == kChannel;
    held_.erase(0, shown + (header_follows ? 0 : found.size()));
    if (ended) {
      EndContent(parts);
    }
    return ended;
  }

  void AddContent(const std::string& content, std::vector<AnswerPart>& parts) {
    if (content.empty()) {
      return;
    }
    if (kind_ == Kind::kCall) {
      call_ += content;  // Passed on when it is whole.
      return;
    }
    const bool text = kind_ == Kind::kText;
    bool& before = text ? had_text_ : had_thought_;
    const absl::string_view gap = begun_ || !before ? "" : "\n\n";  // Between two messages.
    if (text) {
      text_.Add(absl::StrCat(gap, content), parts);
    } else {
      parts.push_back({AnswerPart::Kind::kReasoning, absl::StrCat(gap, content)});
    }
    begun_ = true;
    before = true;
  }

  void EndContent(std::vector<AnswerPart>& parts) {
    if (kind_ == Kind::kCall) {
      std::optional<ReadCall> call =
          ParseCall(absl::StrCat("{\"name\": ", Json(function_).dump(),
                                 ", \"arguments\": ", call_.empty() ? "{}" : call_, "}"),
                    tools_);
      if (call.has_value()) {
        text_.AddCall(*std::move(call), parts);
      } else {
        text_.Add(call_, parts);
      }
      call_.clear();
    }
    inside_ = false;
    begun_ = false;
  }

  const ToolRequest& tools_;
  TextAroundCalls text_;
  std::string held_;     // All of a header so far; of a content, what may begin a mark.
  bool inside_ = false;  // Inside a content.
  Kind kind_ = Kind::kText;
  bool begun_ = false;  // Something of this content was passed on.
  bool had_text_ = false;
  bool had_thought_ = false;
  std::string function_;
  std::string call_;
};

}  // namespace

// A call that must be is one JSON object in a message of its own: a grammar is of bytes, and has no
// tokens like <|constrain|> between a name and its arguments.
const ToolFamily& HarmonyFamily() {
  static const auto* const family = new ToolFamily{
      .name = "harmony",
      .matches =
          [](absl::string_view t) {
            return absl::StrContains(t, kChannel) && absl::StrContains(t, kMessage);
          },
      .syntax = {.in_prompt = "<|channel|>commentary to=functions <|constrain|>json<|message|>",
                 .before = "{\"name\": \"",
                 .between = "\", \"arguments\": ",
                 .end = "}",
                 .separator = "; "},
      .make_reader = [](const ToolRequest& tools) -> std::unique_ptr<PartReader> {
        return std::make_unique<HarmonyReader>(tools);
      },
      .keep_special = true,
      .before_text = "<|channel|>final<|message|>"};
  return *family;
}

}  // namespace lamina::gateway
