// SPDX-License-Identifier: Apache-2.0
#include "coordinator/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace lamina::coordinator {
namespace {

// The length of the longest end of `text` that is a proper beginning of `stop`.
size_t OpenPrefix(absl::string_view text, absl::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) {
      return n;
    }
  }
  return 0;
}

}  // namespace

std::string StopMatcher::Push(absl::string_view text, bool may_stop) {
  if (stopped_) {
    return "";
  }
  held_.append(text.data(), text.size());
  exempt_ = may_stop ? exempt_ : held_.size();
  size_t first = std::string::npos;
  size_t open = 0;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const size_t from = exempt_ < stop.size() ? 0 : exempt_ - stop.size() + 1;
    const size_t place = held_.find(stop, from);
    // If two begin together the shorter one was whole first.
    if (place < first || (place == first && found != nullptr && stop.size() < found->size())) {
      first = place;
      found = &stop;
    }
    open = std::max(open, OpenPrefix(held_, stop));
  }
  if (found != nullptr) {
    stopped_ = true;
    matched_ = *found;
    std::string shown = held_.substr(0, first + (inclusive_ ? matched_.size() : 0));
    held_.clear();
    return shown;
  }
  std::string shown = held_.substr(0, held_.size() - open);
  held_.erase(0, shown.size());
  exempt_ -= std::min(exempt_, shown.size());
  return shown;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace lamina::coordinator
