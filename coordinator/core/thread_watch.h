// SPDX-License-Identifier: Apache-2.0
//
// ThreadWatch: since when the data thread of each node has not moved, and which nodes are stuck. A
// pure state machine; its owner passes in the time, which counts only while its own loop turns
// (NodeSilence::awake()).
//
// A node whose control threads live says twice a second how often its data thread has beaten
// (common/thread_beat.h). The thread beats between ops, between the tiles of an op and between
// naps, so what stands still for Limits::working hangs. What the coordinator has asked for (layers,
// an epoch's memory, its connections) has a limit of its own, counted from when it was asked, and
// anew from every beat: weights may take minutes, and beat with every tensor.
//
// Limits: the longest pieces of work without a beat are one tile of an op, or what a pool of one
//         thread does at once: the longest op of a prompt chunk (512 tokens) of a layer with 1e9
//         weights, 1e12 operations, on a core that does 50e9 in a second, takes 20 s.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/thread_beat.h"

namespace lamina::core {

class ThreadWatch {
 public:
  struct Limits {
    Nanos working = Seconds(30);     // 0: nobody is ever stuck, whatever it does.
    Nanos loading = Seconds(300);    // One tensor, from a slow file.
    Nanos preparing = Seconds(120);  // A whole arena is touched.
    Nanos connecting = Seconds(60);
  };
  struct Stuck {
    std::string name;
    ThreadActivity doing = ThreadActivity::kNone;
    Nanos still = 0;
  };

  explicit ThreadWatch(const Limits& limits) : limits_(limits) {}

  // A status of the node came.
  void Seen(const std::string& name, ThreadActivity activity, uint64_t beats, Nanos now);
  // The node was asked to load, to prepare or to connect; until Answered().
  void Asked(const std::string& name, ThreadActivity activity, Nanos now);
  void Answered(const std::string& name, Nanos now);
  void Forget(const std::string& name) { nodes_.erase(name); }

  // Nodes that have stood still for longer than what they do may take.
  std::vector<Stuck> Late(Nanos now) const;
  // How long the node's thread has stood still; 0 for one that is not known.
  Nanos StillFor(const std::string& name, Nanos now) const;

 private:
  struct Node {
    ThreadActivity activity = ThreadActivity::kNone;  // As it says,
    ThreadActivity asked = ThreadActivity::kNone;     // and what it owes an answer to.
    uint64_t beats = 0;
    Nanos moved = 0;
  };
  static ThreadActivity DoneBy(const Node& node);
  Nanos LimitOf(ThreadActivity activity) const;

  const Limits limits_;
  std::map<std::string, Node> nodes_;
};

// "its data thread has not moved for 30.5 s, working"
std::string Describe(const ThreadWatch::Stuck& stuck);

}  // namespace lamina::core
