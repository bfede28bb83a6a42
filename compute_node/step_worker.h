// SPDX-License-Identifier: Apache-2.0
//
// StepWorker: the data thread of a compute node in one epoch. Runs the slices of all lanes, and has
// its parts send and take what these need.
//
// Each lane is a small state machine; the thread runs ready lanes in the order of LaneTurns. While
// a lane's attention is away, another lane's slice runs: with two lanes and balanced times neither
// this node nor the memory nodes wait.
//
//   idle --plan--> ready --slice k, put q k v--> away --replies--> ready (k + 1) ... --tail--> idle
//
// With several replicas a lane's slices run in turn on all of them, as PipelineSchedule says. Every
// replica keeps the tables of every lane. The one that ran slice k puts the context to the one that
// runs slice k + 1, where the attention outputs go too; the one that samples puts the tokens to all
// others. A lane whose step goes on elsewhere is `elsewhere` until these tokens come.
//
// A replica for prompts alone (prefill.mode dedicated) has lanes of its own, of chunks, and forgets
// a sequence once it has sampled its first token; the others take that token and go on.
//
// A replica may have stages, each on a compute node of its own (plan/stages.h). To this
// worker that is another schedule: the next slice runs on another node, which gets the context. So
// here "replicas" are the other compute nodes. What they get of prompt chunks besides is the
// attention output, which was computed here.
//
// Under policy local there are no memory nodes: decode rows and chunks attend here, over the KV of
// this node (local_attention.h), and a lane is never away.
//
// A replica may have shards (tensor parallelism): the configuration and the executor's graph are
// this shard's own, with some heads and columns. Where a slice needs a sum over shards, the lane
// puts its part to the others and is away until theirs have come; other lanes run meanwhile, so
// that shards need not agree on an order of lanes. The LM head is shard 0's: the others' steps end
// when its tokens come.
//
// Parts: step_layout.h the rows of a step; memory_exchange.h what goes to memory nodes and comes
// back, or device_exchange.h where the device does that by itself; replica_exchange.h what compute
// nodes tell each other; shard_exchange.h what shards do; step_tail.h the LM head and sampling;
// link_measurement.h how fast the links are, before any of that.
//
// Threading: Run() on one thread; PushPlan() and Stop() from any other.
// Allocation: per step (plans, results), not per slice.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/line_fit.h"
#include "common/thread_pool.h"
#include "compute_node/device_exchange.h"
#include "compute_node/lane.h"
#include "compute_node/laps.h"
#include "compute_node/local_attention.h"
#include "compute_node/memory_exchange.h"
#include "compute_node/peers.h"
#include "compute_node/replica_exchange.h"
#include "compute_node/sequence_table.h"
#include "compute_node/shard_exchange.h"
#include "compute_node/slice_executor.h"
#include "compute_node/step_counters.h"
#include "compute_node/step_tail.h"
#include "compute_node/worker_context.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "kernels/attention.h"
#include "plan/pipeline_schedule.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::compute_node {

class StepWorker {
 public:
  struct Options {
    plan::EpochConfig config;  // As the node's shard works with it.
    plan::WindowShape shape;   // Of the cluster's, with the widths of contexts and parts.
    uint32_t node = 0;         // Own index among the compute nodes.
    uint32_t vocabulary = 0;
    model::GrammarCache* grammars = nullptr;
    kernels::KvDevice* kv = nullptr;    // Policy local: where K and V are. Else null.
    Nanos peer_deadline = Seconds(60);  // Longest wait for an attention output.
  };

  // All references must outlive the worker.
  StepWorker(const Options& options, SliceExecutor& executor, transport::Transport& transport,
             transport::Region& region, kernels::ChunkAttention& chunks, ThreadPool& pool,
             control::NodeReporter& reporter, StepCounters& counters);
  ~StepWorker();
  StepWorker(const StepWorker&) = delete;
  StepWorker& operator=(const StepWorker&) = delete;

  // Takes the memory of the lanes, and records their slices if the device can; if that fails they
  // run op by op, and the log says why. Call before SetPeers(). Errors: those of the device.
  absl::Status Prepare();

  // Queries for memory node i go to queries[i], what goes to compute node i to replicas[i] (null
  // for the own one). Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                std::vector<std::unique_ptr<transport::RemoteRegion>> replicas);

  // Works until Stop() (OK) or until something is wrong: an error that names the peer it blames.
  absl::Status Run();

  // For people, after Prepare(): how rows get to a device and from there, and why not by itself.
  // Empty on the processor.
  std::string DescribeRows() const { return device_.Describe(); }

  void PushPlan(plan::StepPlan plan);
  void Stop();

 private:
  // step_worker_prepare.cc
  void RecordSlices();
  absl::Status RegisterSources();

  std::function<void()> BetweenOps();
  absl::Status Loop();
  void TakePlans();
  absl::Status BeginSteps();
  absl::Status BeginStep(Lane& lane);
  // The lane's next slice from `from` on that runs here, if there is one.
  void GoTo(Lane& lane, uint32_t from);
  void SetReady(Lane& lane);
  absl::Status RunSlice(Lane& lane);
  absl::StatusOr<bool> RunOps(Lane& lane);
  absl::Status RunAttention(Lane& lane);
  absl::Status AttendChunks(Lane& lane);
  absl::Status AttendHere(Lane& lane);
  void NoteSlice(Lane& lane, Nanos elapsed);

  // step_worker_tail.cc
  absl::Status RunTail(Lane& lane);
  void WakeHeads();
  void EndStep(Lane& lane);
  void ForgetPrefilled(const Lane& lane);

  // step_worker_arrivals.cc
  absl::Status TakeArrivals();
  absl::Status TakeTokens(Lane& lane);
  absl::Status TakeOutputs(Lane& lane);
  absl::Status WaitForArrivals();

  bool InHead(const Lane& lane) const {
    return lane.phase == LanePhase::kReady && lane.slice + 1 == executor_.slice_count();
  }

  const Options options_;
  SliceExecutor& executor_;
  transport::Transport& transport_;
  transport::Region& region_;
  kernels::ChunkAttention& chunks_;  // Of the layers that run here,
  const uint32_t first_layer_;       // from this one on.
  control::NodeReporter& reporter_;
  StepCounters& counters_;
  control::Inbox<plan::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Worker thread only.
  Laps laps_;
  Peers peers_;
  const WorkerContext context_;
  SequenceTable sequences_;
  MemoryExchange memory_;
  DeviceExchange device_;
  ReplicaExchange replicas_;
  ShardExchange shards_;
  StepTail tail_;
  std::unique_ptr<LocalAttention> local_;  // Policy local.
  std::vector<Lane> lanes_;
  plan::LaneTurns turns_;
  std::vector<plan::StepPlan> taken_;
  std::vector<kernels::ChunkItem> items_;
  LineFit slice_times_;
  std::vector<AwaitedSignal> awaited_;
  std::vector<transport::SignalCondition> conditions_;  // The same.
};

}  // namespace lamina::compute_node
