// SPDX-License-Identifier: Apache-2.0
//
// SimEvents: what happens next in a simulated fleet, in virtual time. Events of one time happen in
// the order in which they were made, so that the same inputs give the same run.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "common/clock.h"

namespace lamina::planner {

enum class SimEventKind : uint8_t {
  kRequest,    // The coordinator has read a request. Subject: the request.
  kTurn,       // The coordinator takes what has come, and plans.
  kPlan,       // A plan reaches the nodes. Subject: the lane.
  kReady,      // A lane's next slice may run. Subject: the lane.
  kSliceDone,  // Subject: the stage that ran it.
  kReport,     // A step's result reaches the coordinator. Subject: the lane.
  kServe,      // The nodes of an epoch are ready.
  kFail,       // Some node is lost.
  kRepair,     // A node is back. Subject: the node.
};

struct SimEvent {
  Nanos time = 0;
  uint64_t order = 0;  // Set by Push().
  uint64_t epoch = 0;
  uint32_t cell = 0;
  uint32_t subject = 0;
  SimEventKind kind = SimEventKind::kTurn;
};

class SimEvents {
 public:
  void Push(SimEvent event) {
    event.order = ++count_;
    queue_.push(event);
  }
  bool empty() const { return queue_.empty(); }
  const SimEvent& Next() const { return queue_.top(); }
  SimEvent Pop() {
    const SimEvent event = queue_.top();
    queue_.pop();
    return event;
  }
  uint64_t count() const { return count_; }

 private:
  struct Later {
    bool operator()(const SimEvent& a, const SimEvent& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  std::priority_queue<SimEvent, std::vector<SimEvent>, Later> queue_;
  uint64_t count_ = 0;
};

}  // namespace lamina::planner
