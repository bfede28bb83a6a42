// SPDX-License-Identifier: Apache-2.0
#include "daemon/line_limit.h"

#include <utility>

namespace lamina::daemon {

LineLimit::Verdict LineLimit::Take(absl::string_view file, int line, Nanos now) {
  const std::lock_guard lock(mutex_);
  Place& place = places_[{std::string(file), line}];
  if (place.began == 0 || now - place.began >= kWindow) {
    place.began = now;
    place.logged = 0;
  }
  if (place.logged == kLinesMax) {
    ++place.dropped;
    return {.logs = false};
  }
  ++place.logged;
  return {.dropped = std::exchange(place.dropped, 0)};
}

}  // namespace lamina::daemon
