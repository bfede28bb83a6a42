// SPDX-License-Identifier: Apache-2.0
//
// InboundViews: the views that one sender has of the regions which this process lends. A view is
// numbered by its sender, and so is bounded in number here: the sender cannot make the owner keep
// more than `views_max` of them.
//
// ControlLimits: what any peer may cost the control thread before it has proved to be a sender, and
// after, and what it may cost who sends to it.
//
// Threading: guarded by the control thread's mutex.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "common/clock.h"

namespace lamina::transport {

struct ControlLimits {
  // A connection that has not said kHello for so long is ended. A sender says it at once.
  Nanos hello_wait = Seconds(10);
  // The most views of one sender. A node opens a few for each epoch, and drops those of the epoch
  // before.
  size_t views_max = 4096;
  // Connections at the same time; one more is closed at once.
  size_t inbound_max = 4096;
  // An owner is reached at one of its addresses within so long, or not at all, however many of them
  // are silent. Who opens a region does not beat meanwhile, nor while it awaits the region itself
  // for up to 10 s more, and is left out after 60 s without a beat.
  Nanos reach_wait = Seconds(45);
};

class InboundViews {
 public:
  explicit InboundViews(size_t views_max) : views_max_(views_max) {}

  // False when the sender has `views_max` others.
  bool Open(uint64_t view, uint64_t region) {
    if (views_.size() >= views_max_ && !views_.contains(view)) {
      return false;
    }
    views_[view] = {.region = region};
    return true;
  }
  // The sender posts nothing to it any more. A view that is not there is passed over.
  void Close(uint64_t view) {
    if (const auto found = views_.find(view); found != views_.end()) {
      found->second.closed = true;
    }
  }
  void Drop(uint64_t view) { views_.erase(view); }

  // Whether some view looks at the region; with `unclosed_only`, one that is not closed.
  bool Uses(uint64_t region, bool unclosed_only) const {
    return std::any_of(views_.begin(), views_.end(), [&](const auto& item) {
      return item.second.region == region && !(unclosed_only && item.second.closed);
    });
  }
  // Calls `visit(view)` for each view of the region.
  template <typename Visit>
  void ForEachOf(uint64_t region, Visit visit) const {
    for (const auto& [number, view] : views_) {
      if (view.region == region) {
        visit(number);
      }
    }
  }
  size_t size() const { return views_.size(); }

 private:
  struct View {
    uint64_t region = 0;
    bool closed = false;
  };

  const size_t views_max_;
  std::map<uint64_t, View> views_;
};

}  // namespace lamina::transport
