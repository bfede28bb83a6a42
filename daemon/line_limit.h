// SPDX-License-Identifier: Apache-2.0
//
// LineLimit: how many lines of a library are logged. Strangers who reach a port make the library
// say the same as often as they like, and each line that is an error is waited for. So of each
// place in its source a few lines in a while are, and then a number.
//
// Threading: any thread.
// Limits:    kLinesMax lines of a place in each kWindow. Memory: a few words for each place that
//            has logged.

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina::daemon {

class LineLimit {
 public:
  static constexpr uint32_t kLinesMax = 20;
  static constexpr Nanos kWindow = Seconds(10);

  struct Verdict {
    bool logs = true;
    uint64_t dropped = 0;  // Lines of the place that were not, to be told with this one.
  };

  // A line of that place comes at `now`, which does not go back.
  Verdict Take(absl::string_view file, int line, Nanos now);

 private:
  struct Place {
    Nanos began = 0;  // The window's beginning; 0: there was none.
    uint32_t logged = 0;
    uint64_t dropped = 0;
  };

  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Place> places_;  // Guarded by mutex_.
};

}  // namespace lamina::daemon
