// SPDX-License-Identifier: Apache-2.0
//
// TraceLog: what the coordinator adds to a timeline: steps, requests, how the clocks of the nodes
// stand to its own, and what nodes have sent of theirs.
//
// A timeline has three phases: Start() tells everybody to record; Collect() asks the nodes for what
// they have; then each node's part arrives in its own time.
//
// Threading: the engine's thread.
// Limits: kStepsMax steps and kRequestsMax requests; what is beyond is counted and left out.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "control/node_handler.h"
#include "coordinator/request_record.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

struct TracedStep {
  uint64_t epoch = 0;
  uint32_t lane = 0;
  uint64_t step = 0;
  Nanos planned = 0;
  Nanos done = 0;  // 0: not yet.
  uint32_t rows = 0;
  uint32_t chunk_tokens = 0;
  std::vector<uint32_t> requests;  // Indices of EngineTrace::names.
};

struct EngineTrace {
  uint64_t epoch = 0;
  std::vector<std::string> compute_nodes;
  std::vector<std::string> memory_nodes;
  std::vector<TracedStep> steps;
  std::vector<std::string> names;       // What logs call the requests of steps.
  std::vector<RequestRecord> requests;  // Ended meanwhile, or still running.
  uint64_t dropped = 0;
  Nanos began = 0;
  Nanos ended = 0;
  uint32_t prefill_nodes = 0;  // The last of compute_nodes, for prefill only;
  uint32_t prefill_lane = 0;   // and the lane of the first of them.
};

// How a node's clock stands to the coordinator's.
struct ClockEstimate {
  Nanos offset = 0;  // The node's less the coordinator's.
  Nanos error = INT64_MAX;
};

// One answer to a ping: sent and received by the coordinator's clock, between them the node's.
struct ClockSample {
  Nanos sent = 0;
  Nanos node_received = 0;
  Nanos node_sent = 0;
  Nanos received = 0;
};

struct TracedNode {
  control::NodeTrace trace;
  ClockEstimate clock;
};

class TraceLog {
 public:
  static constexpr size_t kStepsMax = 1 << 17;
  static constexpr size_t kRequestsMax = 1 << 16;
  // Pings of a node's clock for one timeline. The fastest answer counts.
  static constexpr int kPings = 32;
  // Nodes are asked for one timeline once in so long: each time they send all that they have.
  static constexpr Nanos kAskInterval = Seconds(10);

  void Start(Nanos now, Nanos length);
  bool on(Nanos now) const { return now < until_; }

  void Planned(const plan::StepPlan& plan, Nanos now,
               const std::function<std::string(plan::SequenceId)>& name_of);
  void Done(uint64_t epoch, uint32_t lane, uint64_t step, Nanos now);
  void Ended(const RequestRecord& record);

  // Whether another ping of this node is wanted.
  bool TakeClock(const std::string& node, const ClockSample& sample);

  // Ends the recording. The id that nodes are to send what they have with; nothing: they were asked
  // less than kAskInterval ago, and what has come since stays.
  std::optional<uint64_t> Collect(Nanos now);
  EngineTrace Take(const std::vector<RequestRecord>& running) const;
  void TakeNode(const std::string& node, control::NodeTrace trace);
  // Errors: kUnavailable  its part has not come yet.
  absl::StatusOr<TracedNode> NodeOf(const std::string& node) const;

 private:
  struct Clock {
    ClockEstimate estimate;
    int pings_left = kPings;
  };

  uint64_t id_ = 0;
  Nanos began_ = 0;
  Nanos until_ = 0;
  Nanos ended_ = 0;
  Nanos asked_ = 0;  // The nodes, for this timeline; 0: not yet.
  std::vector<TracedStep> steps_;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> indices_;  // Indices into names_.
  std::vector<RequestRecord> requests_;
  uint64_t dropped_ = 0;
  std::map<std::string, Clock> clocks_;
  std::map<std::string, control::NodeTrace> nodes_;
};

}  // namespace lamina::coordinator
