// SPDX-License-Identifier: Apache-2.0
//
// StopMatcher: passes text through until a stop string appears, over any cuts of the text. Text
// that may be the beginning of a stop string is held back; nothing of the stop string that ends the
// text is ever passed on, unless that was asked for.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::coordinator {

class StopMatcher {
 public:
  // `inclusive`: the stop string is passed on too.
  explicit StopMatcher(std::vector<std::string> stops, bool inclusive = false)
      : stops_(std::move(stops)), inclusive_(inclusive) {}

  // Returns what can be shown. After a match `stopped()` holds and further text is dropped. Without
  // `may_stop` no stop string ends within this text; one that begins in it may end in later text.
  std::string Push(absl::string_view text, bool may_stop = true);

  // What was held back, when the text ends without a match.
  std::string Finish();

  bool stopped() const { return stopped_; }
  // The stop string that ended the text; empty until then.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  bool inclusive_;
  std::string held_;
  size_t exempt_ = 0;  // No match ends within so many bytes of what is held.
  bool stopped_ = false;
  std::string matched_;
};

}  // namespace lamina::coordinator
