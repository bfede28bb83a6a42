// SPDX-License-Identifier: Apache-2.0
//
// NodeSilence: since when nothing was heard of each node. A pure state machine; its owner passes
// the time in.
//
// A coordinator that was itself stopped, or got no processor, has heard nobody: that is its own
// silence and no node's. Time counts only while its event loop turns, at most kTurnMost for a turn.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/clock.h"

namespace lamina::core {

class NodeSilence {
 public:
  // Twice the pause after which the loop turns though nothing happens.
  static constexpr Nanos kTurnMost = Seconds(2);

  // A node silent for longer than `most` is lost; 0: none ever is.
  NodeSilence(Nanos most, Nanos now) : most_(most), last_turn_(now) {}

  void Heard(const std::string& name);
  void Forget(const std::string& name) { heard_.erase(name); }
  // A turn of the loop, before its events are handled. Returns by how much it came late.
  Nanos Turn(Nanos now);
  // Nodes to be declared lost, after the events of the turn.
  std::vector<std::string> Lost() const;
  // Time that has counted since the start.
  Nanos awake() const { return awake_; }
  // What the coordinator itself did meanwhile: "; its own event loop stood still for 2.5 s of that
  // time, which do not count", or nothing.
  std::string OwnDelays(const std::string& name) const;

 private:
  struct Mark {
    Nanos awake = 0;  // What awake_ was,
    Nanos late = 0;   // and late_.
  };

  const Nanos most_;
  Nanos last_turn_;
  Nanos awake_ = 0;  // Time that has counted since the start,
  Nanos late_ = 0;   // and that has not.
  std::map<std::string, Mark> heard_;
};

}  // namespace lamina::core
