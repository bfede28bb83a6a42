// SPDX-License-Identifier: Apache-2.0
//
// ComputeNode: one compute node's part in the cluster, epoch by epoch. Holds the model and its
// weights, the region that memory nodes write, the attention paths, and the thread of the
// StepWorker.
//
// Stateless between epochs: whatever a sequence needs comes with its join.
//
// Threading: as NodeHandler says; the worker has a thread of its own.

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "common/shared_bus.h"
#include "common/thread_pool.h"
#include "compute_node/model_weights.h"
#include "compute_node/node_memory.h"
#include "compute_node/policy_times.h"
#include "compute_node/slice_executor.h"
#include "compute_node/step_worker.h"
#include "compute_node/weight_source.h"
#include "control/epoch_thread.h"
#include "control/node_handler.h"
#include "kernels/compute_device.h"
#include "model/model.h"
#include "transport/transport.h"

namespace lamina::compute_node {

struct ComputeNodeOptions {
  std::string name;
  std::vector<int> cores;
  // For structured output; runs once, when the first comes.
  model::GrammarCache::Maker make_grammars;
  std::string verbs_uri = "verbs://";  // With this host's options.
  ClusterSecret secret = {};           // What peers prove to each other in their handshakes.
  // The device's, where windows may lie; null: the host's. Outlives the node.
  DeviceMemory* window_memory = nullptr;
  // It is a stage of a replica, or a shard: the coordinator says which layers it has and how much
  // of them, so weights are loaded with the configuration of an epoch, and kept as long as these
  // stay the same. With `layers`, what the cluster file says of a stage without shards, they are
  // loaded at once all the same.
  bool is_stage = false;
  std::optional<plan::Stage> layers = {};
  bool holds_kv = false;       // Policy local, and auto: K and V may be on the node's device.
  uint64_t memory_budget = 0;  // The most bytes of the device; 0: unbounded.
  // Policies fetch_heads and fetch_sparse: bytes of the device for K and V that stay here.
  uint64_t resident_bytes = 0;
  // Bytes of the weights alone; where they take more, some slices' come from a file in the folder
  // `weights_store`. 0: all weights stay.
  uint64_t weights_budget = 0;
  std::string weights_store = {};
  uint32_t weights_ahead = 1;  // StreamedWeightsOptions::ahead
  // The bus in the direction to the node, which streamed weights come over (null: as fast as they
  // are read), and in the direction from it. Counters() has what they carried.
  std::shared_ptr<SharedBus> bus = nullptr;
  std::shared_ptr<SharedBus> bus_from = nullptr;
  bool kv_first = false;  // What makes k and v comes first where a slice is streamed.
  WeightForm weight_form = WeightForm::kBF16;
  uint32_t lanes = 1;  // The most lanes of any epoch; for weights that come.
  // Policy auto: threads of the pool in use while KV is on memory nodes, which have the cores of
  // the others; these cores. 0: all.
  size_t pools_threads = 0;
  std::vector<int> shared_cores = {};
  Nanos peer_deadline = Seconds(60);  // Longest wait of the data thread for a peer.
};

class ComputeNode final : public control::NodeHandler {
 public:
  // Loads the weights, unless it is a stage of layers not known yet. `progress` is called later too
  // then. Errors: those of ModelWeights::Load and SliceExecutor::Create.
  static absl::StatusOr<std::unique_ptr<ComputeNode>> Create(
      ComputeNodeOptions options, model::Model model,
      std::unique_ptr<kernels::ComputeDevice> device, ThreadPool& pool,
      ModelWeights::Progress progress);
  ~ComputeNode() override;
  ComputeNode(const ComputeNode&) = delete;
  ComputeNode& operator=(const ComputeNode&) = delete;

  // Results and faults go here; set before the link runs.
  void SetReporter(control::NodeReporter* reporter) { reporter_ = reporter; }

  // Weights that the dense layers work off in a second, in a batch of few rows: some of the layers
  // are loaded, run, and let go. Takes about a second. Before the link runs.
  // Errors: those of ModelWeights::Load.
  absl::StatusOr<double> MeasureDenseSpeed();

  // Bytes/s that attention over K and V of the node's own may read. Errors: those of the device.
  absl::StatusOr<double> MeasureReads() { return device_->MeasureReads(); }

  uint64_t weight_bytes() const { return weights_->bytes(); }
  // The forms in which they are held, with the bytes of each; "" where none are.
  std::string DescribeWeights() const { return weights_->Describe(); }

  absl::Status LoadLayers(const plan::Stage& stage) override;
  // As MeasurePolicyTimes(), in a thread that is pinned as the data thread will be. Once for the
  // weights that are there: what was measured of them is said again.
  absl::StatusOr<plan::PolicyTimes> MeasurePolicies() override;
  absl::StatusOr<control::PreparedNode> Configure(const plan::EpochConfig& config) override;
  absl::Status Connect(const plan::EpochPeers& peers) override;
  void TakePlan(plan::StepPlan plan) override;
  void LeaveEpoch() override;
  telemetry::NodeCounters Counters() const override;
  telemetry::TraceRing& ring() override { return counters_.meter.ring(); }

 private:
  ComputeNode(ComputeNodeOptions options, model::Model model,
              std::unique_ptr<kernels::ComputeDevice> device, ThreadPool& pool,
              ModelWeights::Progress progress);
  // Errors: kInvalidArgument  the model has no such layers.
  absl::Status CheckLayers(const plan::Stage& stage) const;
  // Loads what the stage needs, if it is not there.
  absl::Status LoadStage(const plan::Stage& stage);
  // The graph of a shard, and its executor; without weights. Errors: those of ShardGraph().
  absl::Status MakeExecutor(const ShardPart& shard);
  void DropWeights();
  // What of a step the weights that are there serve.
  PolicyMeasurement OwnMeasurement() const;
  absl::StatusOr<plan::PolicyTimes> MeasureOwn(uint64_t cache_bytes);
  // Has the paths of the epoch reserve what they need, and the others give back what they have.
  absl::Status ReservePaths(const plan::EpochConfig& config, const plan::Stage& stage);
  absl::Status CheckShapes(const plan::EpochConfig& config) const;
  // As many as the epoch's policy leaves to this node.
  void UseThreads(const plan::EpochConfig& config);
  // Everything that the epoch needs has been taken. Errors: those of NodeMemory::Check().
  absl::Status CountMemory();
  absl::Status MakeWindows(const plan::EpochConfig& config, uint32_t own,
                           const plan::WindowLayout& layout);
  absl::Status OpenPeers(const plan::EpochPeers& peers);

  const ComputeNodeOptions options_;
  const model::Model model_;
  const std::unique_ptr<kernels::ComputeDevice> device_;
  ThreadPool& pool_;
  const ModelWeights::Progress progress_;
  // The whole model's, which all nodes know alike.
  std::vector<AttentionDescriptor> layers_;
  size_t context_row_bytes_ = 0;
  std::unique_ptr<HeldWeights> weights_;
  plan::Stage loaded_;                         // Layers whose weights are there,
  std::optional<plan::PolicyTimes> measured_;  // and what was measured of them.
  ShardPart shard_;                            // What runs:
  std::unique_ptr<model::Graph> graph_;        // the model's graph, or a shard's.
  std::unique_ptr<SliceExecutor> executor_;
  control::NodeReporter* reporter_ = nullptr;
  StepCounters counters_;
  NodeMemory memory_;
  model::GrammarCache grammars_;
  std::vector<std::unique_ptr<PathMaker>> path_makers_;

  // What the current epoch has; order matters: the worker goes first, the transport last.
  std::optional<plan::EpochConfig> config_;
  std::vector<PathMaker*> paths_;  // Paths that the epoch has.
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Region> region_;
  std::unique_ptr<StepWorker> worker_;
  control::EpochThread thread_{counters_.beat, [this] { return pool_.caller_steps(); }};
};

}  // namespace lamina::compute_node
