// SPDX-License-Identifier: Apache-2.0
//
// StepWorker: the data thread of a compute node in one epoch. Runs the slices of all lanes, and has
// its parts send and take what these need.
//
// Each lane is a small state machine; the thread runs ready lanes in the order of a
// plan::SliceOrder. While a lane's attention is away, another lane's slice runs: with two lanes and
// balanced times neither this node nor the memory nodes wait.
//
//   idle --plan--> ready --slice k, attention begins--> waiting --all is there--> ready (k + 1) ...
//
// How rows attend is the paths' (attention_path.h): a step may have rows of several, and waits for
// all. Whatever else it waits for, Lane::awaits has.
//
// With several replicas a lane's slices run in turn on all of them, as PipelineSchedule says. Every
// replica keeps the tables of every lane. The one that ran slice k puts the context to the one that
// runs slice k + 1, where the attention outputs go too; the one that samples puts the tokens to all
// others. A lane whose step goes on elsewhere waits for these tokens.
//
// A replica for prefill only (prefill.mode dedicated) has lanes of its own, of chunks, and forgets
// a sequence once it has sampled its first token; the others take that token and go on.
//
// A replica may have stages, each on a compute node of its own (plan/stages.h). To this
// worker that is another schedule: the next slice runs on another node, which gets the context. So
// here "replicas" are the other compute nodes. What they get of prompt chunks besides is the
// attention output, which was computed here.
//
// A replica may have shards (tensor parallelism): the configuration and the executor's graph are
// this shard's own, with some heads and columns. Where a slice needs a sum over shards, the lane
// puts its part to the others and waits until theirs have come; other lanes run meanwhile, so that
// shards need not agree on an order of lanes. The LM head is shard 0's: the others' steps end
// when its tokens come.
//
// Where weights come slice by slice, lanes begin their steps together, and run each slice while its
// weights are here (step_starts.h).
//
// Parts: step_layout.h the rows of a step; replica_exchange.h what compute nodes tell each other;
// shard_exchange.h what shards do; step_tail.h the LM head and sampling; lane_wait.h the sleep of a
// thread all of whose lanes wait; link_measurement.h how fast the links are, before any of that.
// Files: step_worker.cc the loop and the life of a step; step_worker_prepare.cc what comes before.
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
#include "common/device_memory.h"
#include "common/line_fit.h"
#include "common/thread_pool.h"
#include "compute_node/intervals.h"
#include "compute_node/lane.h"
#include "compute_node/lane_wait.h"
#include "compute_node/own_windows.h"
#include "compute_node/path_maker.h"
#include "compute_node/path_set.h"
#include "compute_node/peers.h"
#include "compute_node/replica_exchange.h"
#include "compute_node/sequence_table.h"
#include "compute_node/shard_exchange.h"
#include "compute_node/slice_executor.h"
#include "compute_node/step_counters.h"
#include "compute_node/step_starts.h"
#include "compute_node/step_tail.h"
#include "compute_node/worker_context.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "plan/slice_order.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::compute_node {

class StepWorker {
 public:
  struct Options {
    plan::EpochConfig config;  // As the node's shard works with it.
    plan::WindowShape shape;   // The cluster's, with the widths of contexts and parts.
    uint32_t node = 0;         // Own index among the compute nodes.
    uint32_t vocabulary = 0;
    model::GrammarCache* grammars = nullptr;
    Nanos peer_deadline = Seconds(60);  // Longest wait for a peer.
    // Has the region, if that lies in a device's memory.
    DeviceMemory* window_memory = nullptr;
  };

  // All references must outlive the worker. `paths` are the makers of the epoch's paths, which have
  // reserved what it needs.
  StepWorker(const Options& options, SliceExecutor& executor, transport::Transport& transport,
             transport::Region& region, absl::Span<PathMaker* const> paths, ThreadPool& pool,
             control::NodeReporter& reporter, StepCounters& counters);
  ~StepWorker();
  StepWorker(const StepWorker&) = delete;
  StepWorker& operator=(const StepWorker&) = delete;

  // Takes the memory of the lanes, and captures their slices if the device can; if that fails they
  // run op by op, and the log says why. Call before SetPeers(). Errors: those of the device.
  absl::Status Prepare();

  // Queries for memory node i go to queries[i], what goes to compute node i to replicas[i] (null
  // for the own one, and for those that nothing goes to). Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                std::vector<std::unique_ptr<transport::RemoteRegion>> replicas);

  // Works until Stop() (OK) or until something is wrong: an error that names the peer it blames.
  absl::Status Run();

  // After Prepare(): of the device, for the values of all lanes' rows and for logits.
  uint64_t buffer_bytes() const;

  // For people, after Prepare(): what the paths say of how their rows travel. May be empty.
  std::string DescribeRows() const { return paths_.Describe(); }

  void PushPlan(plan::StepPlan plan);
  void Stop();

 private:
  // step_worker_prepare.cc
  void CaptureSlices();
  absl::Status RegisterSources();
  std::function<void()> BetweenOps();

  absl::Status Loop();
  void TakePlans();
  absl::Status BeginSteps();
  absl::Status BeginStep(Lane& lane);
  // The lane's next slice from `from` on that runs here, if there is one.
  void GoTo(Lane& lane, uint32_t from);
  void SetReady(Lane& lane);
  bool InHead(const Lane& lane) const { return lane.slice + 1 == executor_.slice_count(); }

  // A slice, and the end of a step.
  absl::Status RunSlice(Lane& lane);
  absl::StatusOr<bool> HoldWeights(Lane& lane);
  void ReleaseWeights(Lane& lane);
  absl::StatusOr<bool> RunOps(Lane& lane);
  absl::Status RunTail(Lane& lane);
  void WakeHeads();
  void EndStep(Lane& lane);
  void ForgetPrefilled(const Lane& lane);
  void NoteSlice(Lane& lane, Nanos elapsed);

  // What lanes wait for is taken when it has come.
  absl::Status TakeArrivals();
  absl::Status TakeTokens(Lane& lane);
  absl::Status TakeInputs(Lane& lane);

  const Options options_;
  SliceExecutor& executor_;
  transport::Transport& transport_;
  transport::Region& region_;
  control::NodeReporter& reporter_;
  StepCounters& counters_;
  control::Inbox<plan::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Worker thread only.
  WindowReader windows_;
  Intervals intervals_;
  PiecesTaken pieces_taken_;
  Peers peers_;
  SequenceTable sequences_;
  const WorkerContext context_;
  PathSet paths_;
  ReplicaExchange replicas_;
  ShardExchange shards_;
  StepTail tail_;
  std::vector<Lane> lanes_;
  const std::unique_ptr<StepStarts> starts_;
  std::unique_ptr<plan::SliceOrder> order_;
  std::vector<plan::StepPlan> taken_;
  LineFit slice_times_;
  LaneWait wait_;
};

}  // namespace lamina::compute_node
