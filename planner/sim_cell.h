// SPDX-License-Identifier: Apache-2.0
//
// SimCell: one cluster in virtual time. Its scheduler, KV directory, pipeline schedule and
// membership are coordinator/core, unmodified; its nodes are SimNodes.
//
// The coordinator takes time too: for each row that it plans or takes the result of, and for each
// message to or from a node. It takes everything that has come in one turn, and plans once.
//
// Threading: one thread.   Determinism: same specification, requests and seed, same run.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/burst_wait.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/scheduler.h"
#include "planner/arrivals.h"
#include "planner/sim_events.h"
#include "planner/sim_nodes.h"

namespace lamina::planner {

// Seconds of the coordinator's one thread. The defaults: bench/run.sh plan, 10,000 rows on Zen 5
// (docs/performance.md); messages and turns are assumed.
struct CoordinatorSeconds {
  double request =
      100e-6;  // Reading one: those that come together are taken in one by one. Assumed.
  double turn = 20e-6;
  double row_planned = 0.12e-6;
  double row_encoded = 0.08e-6;  // Once for compute nodes and once for memory nodes; on Zen 4.
  double row_taken = 0.12e-6;
  double message = 5e-6;        // Sending encoded bytes, or taking a message.
  double message_way = 100e-6;  // Between coordinator and node, one way.
};

struct SimFailures {
  double per_node_hour = 0;  // Failures of one node in an hour; 0: none fails.
  double form_seconds = 1;   // From a loss, or a return, to the next epoch. Assumed.
  double repair_seconds = 120;
};

// Layers of each stage, as the coordinator cuts them where all nodes are alike: by cost, the LM
// head counted as of the last. Requires: 1 <= stages <= shape.layers.
std::vector<uint32_t> LayersOfStages(const cost::ModelShape& shape, uint32_t stages);

struct SimCellSpec {
  cost::ModelShape shape;
  cost::Cluster cluster;
  core::SchedulerOptions scheduler;  // Memory nodes and prefill lanes are filled in.
  uint64_t kv_tokens = 0;  // Tokens of each memory node; with KV on compute nodes, of each replica.
  CoordinatorSeconds coordinator;
  SimFailures failures;
  // Price of one compute node (of one device) for an hour, nodes for prompts too.
  double compute_price = 0;
  double memory_price = 0;

  uint32_t compute_nodes() const {
    return (cluster.replicas + cluster.prompt_replicas) * cluster.stages * cluster.shards;
  }
};

// What became of requests, told as it happens. `request` is as in Submit().
class SimListener {
 public:
  virtual ~SimListener() = default;
  // `cached`: tokens of the prompt that were found computed.
  virtual void OnToken(uint64_t request, uint32_t cached, Nanos now) = 0;
  virtual void OnEnd(uint64_t request, bool answered) = 0;
};

struct SimCellStats {
  uint64_t preemptions = 0;
  uint64_t epochs = 0;
  uint64_t nodes_lost = 0;
  // One for each compute node (shards are one); those for prompts last.
  std::vector<SimWork> stages;
  std::vector<SimWork> memory;
  double coordinator_busy = 0;
  // One for each node that holds K and V: its busy time times the share of its slots that is kept
  // for nobody yet. Not part of its work.
  std::vector<double> kept;
};

class SimCell {
 public:
  // `spec` outlives it. `failing_until`: no node is lost after that.
  SimCell(const SimCellSpec& spec, uint32_t index, uint64_t seed, Nanos failing_until,
          SimEvents& events, SimListener& listener);

  // Errors: as of core::Scheduler::Submit().
  absl::Status Submit(uint64_t request, const TraceRequest& what, Nanos now);

  void OnEvent(const SimEvent& event);

  SimCellStats Stats() const;
  const core::Scheduler& scheduler() const { return scheduler_; }

 private:
  void Push(SimEventKind kind, Nanos time, uint32_t subject = 0);
  void Wake(Nanos now);
  void Turn(Nanos now);
  double TakeReports(Nanos now);
  double Plan(Nanos now, double spent);
  void Tell(const core::Events& events, Nanos now);
  void Form(Nanos now);
  void Serve(uint64_t epoch, Nanos now);
  cost::LaneCosts CostsOf(const cost::Cluster& cluster) const;
  SimNodesOptions NodesOf(uint64_t epoch, cost::Cluster& cluster);
  std::vector<core::MemoryNodeShare> SharesOf(const cost::Cluster& cluster) const;
  void AppendStages(uint32_t replica, const std::vector<uint32_t>& layers,
                    std::vector<plan::Stage>& stages) const;
  void FailOne(Nanos now);
  void PlanFailure(Nanos now);
  uint64_t ArenaOf(const std::string& name) const;
  void KeepWork();
  void CountKept(Nanos now);

  const SimCellSpec& spec_;
  const uint32_t index_;
  const Nanos failing_until_;
  SimEvents& events_;
  SimListener& listener_;
  Prng random_;
  core::Scheduler scheduler_;
  core::Membership membership_;
  core::BurstWait burst_wait_;
  double prompt_rate_ = 0;  // Tokens of prompts in a second; a coordinator has measured it before.
  std::unique_ptr<SimNodes> nodes_;  // Nodes of the epoch that serves; none while one forms.
  std::unique_ptr<StepPricer> pricer_;
  uint64_t epoch_ = 0;
  uint32_t nodes_there_ = 0;
  plan::PrefillLanes prefill_lanes_;
  std::vector<uint32_t> reports_;  // Lanes whose reports have come.
  std::vector<std::string> lost_;  // Nodes lost since the last epoch.
  std::map<std::string, uint64_t> times_lost_;
  uint32_t shares_ = 0;  // Nodes that share KV: memory nodes, or with heads spread 1.
  Nanos kept_counted_ = 0;
  std::vector<double> busy_counted_;  // As of stats_.kept.
  bool waking_ = false;
  Nanos busy_until_ = 0;
  SimCellStats stats_;
};

}  // namespace lamina::planner
