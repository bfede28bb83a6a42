// SPDX-License-Identifier: Apache-2.0
//
// LocalCluster: a whole cluster in this process without gRPC: the engine, compute nodes "c0", ...,
// prefill nodes "p0", ... and memory nodes "m0", ..., over a real transport. Everything but the
// control stream is the code that serves.
//
//   Engine <--- LocalLink ("the stream": a queue and a thread) ---> ComputeNode, MemoryNode
//                                  data: shm:// or fake://
//
// Threading: methods from the test's thread. The engine, each link and each node have threads of
//            their own, so a race detector sees all ends.
// Ownership: owns everything, the model's files in the test's temporary folder included.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/device_memory.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "common/shared_bus.h"
#include "common/streaming_heads.h"
#include "common/thread_pool.h"
#include "common/window_place.h"
#include "config/cluster_config.h"
#include "control/node_handler.h"
#include "coordinator/engine.h"
#include "kernels/compute_device.h"
#include "kernels/kv_device.h"
#include "memory_node/spill_tier.h"
#include "model/model.h"
#include "tests/support/id_tokenizer.h"
#include "tests/support/local_link.h"
#include "tests/support/random_model.h"

namespace lamina::test_support {

struct LocalClusterOptions {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
  bool reference_kernels = false;  // Plain loops instead of the fast kernels.
  kernels::DenseLoop dense_loop = kernels::DenseLoop::kFastest;
  uint32_t compute_nodes = 1;
  uint32_t prefill_nodes = 0;  // In addition to these, "p0", ...
  // Compute nodes of one replica: c0 to c(stages - 1) are the first, and so on.
  uint32_t stages = 1;
  std::vector<uint32_t> stage_layers = {};  // One for each stage; empty: chosen.
  uint32_t shards = 1;  // Each stage has so many nodes, which follow each other.
  // Prefill nodes have their own.
  uint32_t prefill_stages = 1;
  uint32_t prefill_shards = 1;
  // Where compute nodes hold KV: the capacity of each, relative; those left out are 1.
  std::vector<uint32_t> compute_capacities = {};
  // What compute nodes say they have measured, each; empty: nothing.
  std::vector<double> dense_speeds = {};
  PipelineMode mode = PipelineMode::kRotational;
  bool local = false;        // Policy local: compute nodes hold KV; memory_nodes is not looked at.
  uint64_t fetch_bytes = 0;  // Policy fetch_heads, with windows of so many bytes.
  // With fetch_bytes: policy fetch_recompute, of so many per cent of the tokens.
  std::optional<uint32_t> recompute_percent;
  // From activations, or from token numbers: of so many tokens of a lane's step at most.
  RecomputeFrom recompute = RecomputeFrom::kActivations;
  uint32_t recompute_tokens_max = FetchConfig().recompute_tokens_max;
  // With fetch_bytes: policy fetch_hybrid, with so many per cent of the tokens held as activations.
  std::optional<uint32_t> activation_percent;
  // With fetch_hybrid among `policies`: so many per cent of a memory node are for it. There is room
  // for `slots` of each, whatever these hold.
  uint32_t hybrid_percent = 50;
  // With fetch_bytes: policy fetch_sparse, with so many of the tokens; and so many bytes for K and
  // V that stay, with fetch_heads too, or with fetch_recompute for activations.
  double sparse_ratio = 0;
  uint64_t resident_bytes = 0;
  // With fetch_bytes: heads that stream under policy fetch_heads, by a file in the folder of
  // temporary files.
  StreamingHeads streaming = {};
  // Weights of compute nodes stream (StreamedWeightsOptions), where there is a budget, from a file
  // in the folder of temporary files.
  struct StreamedWeights {
    uint64_t budget = 0;
    std::shared_ptr<SharedBus> bus = nullptr;
    bool kv_first = true;
    uint32_t ahead = 1;
  } streamed = {};
  // What epochs prepare, the first for requests that name none; empty: the one of these keys alone.
  std::vector<std::string> policies = {};
  // Policy auto, in place of these: c0 may hold KV too, and says that it has measured these times.
  std::optional<coordinator::PolicyAutoOptions> policy_auto = std::nullopt;
  plan::PolicyTimes policy_times = {};
  // Policy auto weighs what the cluster file allows, in place of policy_auto's, and may take this.
  std::optional<cost::KvPolicy> auto_only = std::nullopt;
  size_t pools_threads = 0;  // Threads of c0 while KV is on memory nodes; 0: all.
  uint32_t memory_nodes = 1;
  Partition partition = Partition::kRequest;
  // One for each memory node, relative; those left out are 1.
  std::vector<double> memory_bandwidths = {};
  // That each memory node (or c0, of policy local) has room for, all KV heads included.
  uint32_t slots = 4096;
  // Bytes of each memory node's spill tier, in memory; 0: it has none.
  uint64_t spill_bytes = 0;
  // Its disk, if not one that works.
  std::function<std::unique_ptr<memory_node::SpillDisk>()> spill_disk = {};
  bool keeps_all_slots = false;  // Those behind windows too.
  bool int8 = false;             // K and V are INT8.
  // Several forms of K and V, in place of `int8`; there is room for `slots` of each.
  std::vector<KvForm> kv_forms = {};
  uint32_t kv_int8_percent = 50;
  uint32_t lanes = 1;
  core::SubBatchOptions sub_batches = {};
  uint32_t chunk_tokens = 512;
  uint32_t scratch_tokens = 8192;
  uint32_t running_max = 32;
  uint32_t waiting_max = 256;
  uint32_t sequence_tokens_max = 256;
  size_t threads = 1;                                // Each node's.
  std::vector<TokenId> end_tokens = {};              // The tokenizer's.
  std::vector<std::string> transports = {"shm://"};  // The first that works.
  ClusterAttention attention = {};
  // The memory nodes of these names have their KV there instead of on the processor.
  struct OtherDevice {
    std::vector<std::string> names;
    kernels::KvDeviceMaker make;
    DeviceMemory* window_memory = nullptr;  // Where their query windows may lie; null: the host's.
    WindowPlace windows = WindowPlace::kAuto;
  } other_device = {};
  // The compute nodes of these names have their weights and activations there instead.
  struct OtherCompute {
    std::vector<std::string> names;
    std::function<absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>>(DType)> make;
    DeviceMemory* window_memory = nullptr;  // Where their windows may lie; null: the host's.
  } other_compute = {};
  bool prefix_cache = true;           // On processors.
  bool device_waits = false;          // Where the devices and the transport allow them.
  Nanos memory_plan_delay = 0;        // Plans reach memory nodes this much late.
  Nanos peer_deadline = Seconds(60);  // Longest wait of a data thread for a peer.
  // Stop there, before the nodes join.
  bool attach = true;
};

struct ChoiceResult {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<plan::TokenLogprob>> top;
  plan::FinishReason finish = plan::FinishReason::kNone;
  coordinator::ChoiceUsage usage;
};

struct GenerateResult {
  absl::Status status;
  std::string request_id;
  std::vector<ChoiceResult> choices;
  std::vector<float> scores;
  std::vector<plan::TokenRank> ranks;
  std::vector<uint32_t> progress;  // What OnProgress() was told.
};

// A request in flight.
class LocalRequest final : public coordinator::RequestSink {
 public:
  explicit LocalRequest(uint32_t choices) { result_.choices.resize(choices); }

  // Waits for the end. A request that does not end within kTimeout fails with kDeadlineExceeded.
  GenerateResult Wait();
  // Waits until choice 0 has `tokens` tokens or the request has ended.
  void WaitForTokens(size_t tokens);
  bool ended();

  uint64_t key = 0;

  void OnAccepted(const std::string& request_id) override;
  void OnOutput(coordinator::ChoiceOutput output) override;
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override;
  void OnProgress(uint32_t tokens_done) override;
  void OnDone(const absl::Status& status) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  GenerateResult result_;
  bool ended_ = false;
  bool overrun_ = false;  // Something came after the end.
};

class LocalCluster {
 public:
  // Longer than anything here takes on a busy machine under a race detector.
  static constexpr Nanos kTimeout = Seconds(120);

  // Writes the model, loads it, joins all nodes and waits until the cluster serves.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Create(const LocalClusterOptions& options);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  std::shared_ptr<LocalRequest> Start(coordinator::GenerateSpec spec);
  GenerateResult Generate(coordinator::GenerateSpec spec);
  // All at once.
  std::vector<GenerateResult> GenerateMany(const std::vector<coordinator::GenerateSpec>& specs);
  GenerateResult Score(std::vector<TokenId> tokens);
  void Cancel(const LocalRequest& request) { engine_->Cancel(request.key); }

  // The node's stream ends and the node leaves its epoch, as when its process dies.
  void Detach(const std::string& name);
  // A node of that name joins, with nothing of the life before.
  void Attach(const std::string& name);
  // What the compute node says of its kernels when it attaches the next time.
  void SetKernels(const std::string& name, const std::string& kernels) {
    nodes_.at(name).kernels = kernels;
  }

  // Errors: kDeadlineExceeded  with the state it stayed in.
  absl::Status WaitForState(const std::string& state);
  absl::Status WaitForEpoch(uint64_t least);
  // Waits until every planned step is done and no sequence runs.
  absl::Status WaitForIdle();
  // Waits until no slot is held anywhere.
  absl::Status WaitForNoSlots();

  coordinator::Engine& engine() { return *engine_; }
  LocalLink& link(const std::string& name) { return *nodes_.at(name).link; }
  // Returns what a compute node's weights take, in bytes.
  uint64_t WeightBytes(const std::string& name) const;
  const control::NodeHandler& handler(const std::string& name) { return *nodes_.at(name).handler; }
  telemetry::TraceRing& ring(const std::string& name) { return nodes_.at(name).handler->ring(); }
  const std::vector<AttentionDescriptor>& layers() const { return layers_; }

 private:
  struct Node {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<LocalReporter> reporter;
    std::unique_ptr<memory_node::SpillTier> spill;
    std::unique_ptr<control::NodeHandler> handler;
    std::shared_ptr<LocalLink> link;  // Null while detached.
    std::string kernels;              // NodeIdentity::kernels
  };

  explicit LocalCluster(const LocalClusterOptions& options)
      : options_(options), tokenizer_(options.model.vocabulary, options.end_tokens) {}

  absl::Status Start();
  absl::Status MakeComputeNode(const std::string& name, model::Model model, bool is_stage);
  absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> MakeComputeDevice(const std::string& name,
                                                                            ThreadPool& pool) const;
  // The nodes of that role: c0, ... of replicas r0, ..., or p0, ... of q0, ....
  void AddComputeNodes(ComputeRole role, ClusterConfig& config) const;
  void MakeMemoryNode(const std::string& name);
  std::string DeviceOf(const std::string& name) const;
  // What a cluster file would say of this cluster.
  ClusterConfig MakeConfig() const;
  uint64_t CapacityBytes() const;
  uint64_t ComputeCapacityBytes(size_t index) const;
  absl::StatusOr<coordinator::EngineOptions> MakeEngineOptions(const model::Model& model) const;
  template <typename Condition>
  absl::Status WaitUntil(const Condition& condition);

  bool HoldsKv() const { return options_.local || options_.policy_auto.has_value(); }  // c0, ...
  uint32_t memory_nodes() const { return options_.local ? 0 : options_.memory_nodes; }

  const LocalClusterOptions options_;
  const IdTokenizer tokenizer_;
  std::vector<AttentionDescriptor> layers_;
  uint64_t width_ = 0;  // The model's.
  std::string fingerprint_;
  std::map<std::string, Node> nodes_;
  std::unique_ptr<coordinator::Engine> engine_;
};

}  // namespace lamina::test_support
