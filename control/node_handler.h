// SPDX-License-Identifier: Apache-2.0
//
// NodeHandler: what a compute or memory node does when the coordinator speaks. NodeLink calls it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plan/epoch_config.h"
#include "plan/policy_times.h"
#include "plan/stages.h"
#include "plan/step_plan.h"
#include "telemetry/node_counters.h"

namespace lamina::control {

// A memory node's file for K and V of sequences that have given up their slots.
struct SpillTier {
  uint64_t capacity_bytes = 0;  // 0: there is none.
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;
};

// A link that the reporting node has measured, when the epoch began.
struct LinkReport {
  std::string peer;
  std::string path;  // What carries the data: "shm", "ucx tcp/eth0".
  double latency_seconds = 0;
  double bytes_per_second = 0;
  double r_squared = 0;  // A line's, through the times of bursts over their bytes; 0: none.
};

// A node's part in an epoch, as others need it.
struct PreparedNode {
  std::string region;   // Descriptor of its region.
  std::string windows;  // For people: where it lies, and how the network reaches it.
  // Names the memory that the slots of a node that holds KV lie in. If it is that of the epoch
  // before, slots hold what they held. 0: not known.
  uint64_t kv_arena = 0;
};

// Stands in NodeIdentity::kernels of a compute node between the loop of its dense layers, which
// decides on bits, and how it holds weights, which does not.
inline constexpr absl::string_view kWeightsWord = ", weights ";

// What a node says of itself when it joins.
struct NodeIdentity {
  std::string name;
  bool is_memory = false;
  std::string device = "cpu";
  // Threads that a memory node spreads its attention over, (row, KV head) each.
  uint32_t threads = 1;
  // Bytes for KV. A compute node has them under policy local and auto.
  uint64_t capacity_bytes = 0;
  double bandwidth_bytes_per_second = 0;
  std::string kernels;
  // What it is to attend in where attention is chosen: pairs or tiles if its processor multiplies
  // bf16 fast in these, and nobody asked for f32.
  AttentionArithmetic fast_attention = AttentionArithmetic::kCanonical;
  std::string model_fingerprint;
  // Stages whose layers are to be chosen: weights that the node's dense layers work off in a
  // second.
  double dense_speed = 0;
  // With policy auto: of compute nodes that hold a replica alone, of others once they have loaded
  // their layers; of memory nodes attention_local, if they measure it.
  plan::PolicyTimes policy_times = {};
  SpillTier spill = {};  // Memory nodes alone have one.
};

// The loop of a compute node's dense layers: nodes with the same one make the same bits.
inline absl::string_view LoopOf(const NodeIdentity& compute) {
  const absl::string_view kernels = compute.kernels;
  return kernels.substr(0, kernels.find(kWeightsWord));
}

// Threading: every call comes from the link's reader thread, except Counters() (any thread).
class NodeHandler {
 public:
  virtual ~NodeHandler() = default;

  // A stage loads the weights of these layers, if they are not there. Between epochs.
  // Errors: kInvalidArgument  the model has others; those of loading.
  virtual absl::Status LoadLayers(const plan::Stage& stage) = 0;

  // What a compute node of `policy: auto` has measured of the layers that are there. Between
  // epochs. Errors: those of the device.
  virtual absl::StatusOr<plan::PolicyTimes> MeasurePolicies() = 0;

  // Leaves the epoch before, if any, and makes the region of this one.
  // Errors: whatever stops the node from taking part; it goes to the coordinator as a fault. What
  // the transport says is marked as its fault (transport_fault.h).
  virtual absl::StatusOr<PreparedNode> Configure(const plan::EpochConfig& config) = 0;

  // Opens the peers' regions and starts working on plans.
  virtual absl::Status Connect(const plan::EpochPeers& peers) = 0;

  // Takes the next plan of a lane. Does not wait.
  virtual void TakePlan(plan::StepPlan plan) = 0;

  // The coordinator is gone, or goes on without this node: leaves the epoch. Returns when no data
  // thread works on it any more.
  virtual void LeaveEpoch() = 0;

  virtual telemetry::NodeCounters Counters() const = 0;

  // The timeline of the data thread; lives as long as the handler. Start(), Stop() and Take() come
  // from the link's reader thread.
  virtual telemetry::TraceRing& ring() = 0;
};

// A node's part of a timeline, in answer to the collection `id`.
struct NodeTrace {
  uint64_t id = 0;
  std::vector<telemetry::TraceEvent> events;
  uint64_t dropped = 0;
};

// What a node tells the coordinator while it works. Threading: any thread; never waits on the
// network.
class NodeReporter {
 public:
  virtual ~NodeReporter() = default;
  virtual void ReportResult(plan::StepResult result) = 0;
  // The node cannot go on in `epoch`; the error names the peer that it blames, if any.
  virtual void ReportFault(uint64_t epoch, const absl::Status& status) = 0;
  virtual void ReportSpill(const plan::SpillReport& report) = 0;
  virtual void ReportLinks(uint64_t epoch, std::vector<LinkReport> links) = 0;
};

}  // namespace lamina::control
