// SPDX-License-Identifier: Apache-2.0
//
// AttachedNodes: the nodes that have a stream to the coordinator, what each has said of itself, and
// who of them is silent or stuck. Which of them take part in an epoch is core/membership.h's.
//
// Threading: the engine's thread.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/thread_beat.h"
#include "coordinator/core/link_belief.h"
#include "coordinator/core/serving_bandwidth.h"
#include "coordinator/core/silence.h"
#include "coordinator/core/thread_watch.h"
#include "coordinator/node_port.h"

namespace lamina::coordinator {

// Whether a node may take part in epochs, or has to load its layers before (ReplicaSplits).
enum class Joining : uint8_t {
  kJoined,
  kAwaitsLayers,  // Which ones shows when its replica is complete.
  kLoads,
};

struct AttachedNode {
  NodeHello hello;
  std::shared_ptr<NodePort> port;
  double busy_share = 0;
  telemetry::NodeCounters counters;
  uint64_t reports = 0;  // How often it has told its counters since it attached.
  // What the current epoch has of it: links as measured, and where windows that peers write lie.
  std::vector<control::LinkReport> links;
  std::string windows;
  uint64_t kv_arena = 0;  // The arena of its slots since it was prepared; 0: not known.
  core::AttentionRate attention_rate;  // Memory nodes.
  uint32_t slots = 0;
  Joining joining = Joining::kJoined;
};

// What was measured of each of the node's links in the epoch, and what use has shown since.
std::vector<core::KnownLink> KnownLinksOf(const AttachedNode& node);

class AttachedNodes {
 public:
  struct Limits {
    Nanos silence_max = 0;  // EngineOptions::node_silence_max
    Nanos stuck_after = 0;  // EngineOptions::stuck_after
  };
  // A node to be left out, and the reason for the log and for itself.
  struct Lost {
    std::string name;
    std::string why;
  };

  AttachedNodes(const Limits& limits, Nanos now);

  // In place of one of that name.
  AttachedNode& Add(AttachedNode node);
  void Remove(const std::string& name);
  // Null where no node of that name is attached.
  AttachedNode* Find(const std::string& name);
  const AttachedNode* Find(const std::string& name) const;
  // Requires: it is attached.
  AttachedNode& at(const std::string& name) { return nodes_.at(name); }
  const AttachedNode& at(const std::string& name) const { return nodes_.at(name); }
  // Whether the node is attached over that very port.
  bool Has(const NodeSource& from) const;
  // By name.
  std::map<std::string, AttachedNode>& all() { return nodes_; }
  const std::map<std::string, AttachedNode>& all() const { return nodes_; }

  // A turn of the event loop, before its events. Returns by how much it came late: a coordinator
  // that stood still has heard nobody.
  Nanos Turn(Nanos now) { return silence_.Turn(now); }
  // The node was asked to do something, and answered.
  void Asked(const std::string& name, ThreadActivity activity);
  void Answered(const std::string& name);
  // The node tells how it is. Requires: it is attached.
  void TakeStatus(const std::string& name, double busy_share,
                  const telemetry::NodeCounters& counters);
  // "c0, c1 load their layers; c2 waits for the other nodes of its replica"; empty where all have
  // joined.
  std::string DescribeJoining() const;
  // Nodes that were not heard of, or whose data thread does not move, for too long.
  std::vector<Lost> Silent() const;
  std::vector<Lost> Stuck() const;
  // For how long the node's data thread has not moved.
  Nanos StillFor(const std::string& name) const;

  // How fast these memory nodes attend. Requires: they are attached.
  core::ServingBandwidth BandwidthOf(const std::vector<std::string>& names) const;

 private:
  const Limits limits_;
  std::map<std::string, AttachedNode> nodes_;
  core::NodeSilence silence_;  // When they were heard,
  core::ThreadWatch threads_;  // and when their data threads moved.
};

}  // namespace lamina::coordinator
