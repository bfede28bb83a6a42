// SPDX-License-Identifier: Apache-2.0
#include "gateway/answer_reader.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

constexpr absl::string_view kOpen = "<think>";
constexpr absl::string_view kClose = "</think>";

// What belongs to no mark yet, without spaces that may stand before one.
size_t ShownBefore(absl::string_view text, absl::string_view mark) {
  const absl::string_view known = text.substr(0, text.size() - OpenMark(text, mark));
  return absl::StripTrailingAsciiWhitespace(known).size();
}

}  // namespace

AnswerReader::AnswerReader(Thought thought, std::unique_ptr<PartReader> calls)
    : calls_(std::move(calls)),
      place_(thought == Thought::kNone    ? Place::kAfter
             : thought == Thought::kMayBe ? Place::kBefore
                                          : Place::kInside) {}

void AnswerReader::Push(const std::string& text, std::vector<AnswerPart>& parts) {
  if (place_ == Place::kAfter) {
    TakeText(text, parts);
    return;
  }
  held_ += text;
  while (Step(parts)) {
  }
}

// False when more text is needed, or nothing is held.
bool AnswerReader::Step(std::vector<AnswerPart>& parts) {
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
  switch (place_) {
    case Place::kBefore:
      if (absl::StartsWith(kOpen, rest) && rest.size() < kOpen.size()) {
        return false;  // Nothing, or what may become the mark.
      }
      if (absl::StartsWith(rest, kOpen)) {
        held_ = std::string(rest.substr(kOpen.size()));
        place_ = Place::kInside;
      } else {
        place_ = Place::kAfter;
      }
      return true;
    case Place::kInside:
      return TakeThought(parts);
    case Place::kBehind:
      if (rest.empty()) {
        return false;
      }
      held_ = std::string(rest);
      place_ = Place::kAfter;
      return true;
    case Place::kAfter:
      TakeText(std::exchange(held_, {}), parts);
      return false;
  }
  return false;
}

bool AnswerReader::TakeThought(std::vector<AnswerPart>& parts) {
  if (!begun_) {
    held_ = std::string(absl::StripLeadingAsciiWhitespace(held_));
    if (absl::StartsWith(held_, kOpen)) {  // A model may open again what the prompt opened.
      held_.erase(0, kOpen.size());
      return true;
    }
    if (held_.empty() || absl::StartsWith(kOpen, held_)) {
      return false;
    }
  }
  const size_t close = absl::string_view(held_).find(kClose);
  const absl::string_view thought = absl::string_view(held_).substr(0, close);
  const size_t shown = close == std::string::npos
                           ? ShownBefore(held_, kClose)
                           : absl::StripTrailingAsciiWhitespace(thought).size();
  if (shown > 0) {
    begun_ = true;
    parts.push_back({AnswerPart::Kind::kReasoning, held_.substr(0, shown)});
  }
  held_.erase(0, close == std::string::npos ? shown : close + kClose.size());
  if (close == std::string::npos) {
    return false;
  }
  place_ = Place::kBehind;
  return true;
}

void AnswerReader::TakeText(const std::string& text, std::vector<AnswerPart>& parts) {
  if (calls_ != nullptr) {
    calls_->Push(text, parts);
  } else if (!text.empty()) {
    parts.push_back({AnswerPart::Kind::kText, text});
  }
}

void AnswerReader::Finish(std::vector<AnswerPart>& parts) {
  if (place_ == Place::kInside && !held_.empty()) {
    parts.push_back({AnswerPart::Kind::kReasoning, std::exchange(held_, {})});
  } else if (!held_.empty() && place_ != Place::kBehind) {  // Behind a thought it is white space.
    TakeText(std::exchange(held_, {}), parts);
  }
  if (calls_ != nullptr) {
    calls_->Finish(parts);
  }
}

}  // namespace lamina::gateway
