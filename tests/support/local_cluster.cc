// SPDX-License-Identifier: Apache-2.0
#include "tests/support/local_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "compute_node/compute_node.h"
#include "coordinator/cluster_options.h"
#include "coordinator/hybrid_room.h"
#include "kernels/attention.h"
#include "kernels/dense.h"
#include "memory_node/memory_node.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "tests/support/memory_spill_disk.h"

namespace lamina::test_support {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(2);

// Every node has the same; the engine only compares them.
// So fast that nothing is recomputed for its sake.
constexpr memory_node::SpillSpeed kSpillSpeed = {.write = 1e15, .read = 1e15};
constexpr double kBandwidth = 1e10;

// A folder that lasts as long as this.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> next{0};
    path_ = std::filesystem::temp_directory_path() /
            absl::StrCat("local_cluster_", getpid(), "_", next.fetch_add(1));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

void WriteStreamingFile(const StreamingHeads& streaming, const model::ModelConfig& model,
                        const std::string& path) {
  std::vector<std::string> layers;
  for (size_t layer = 0; layer < streaming.layers.size(); ++layer) {
    if (!streaming.layers[layer].empty()) {
      layers.push_back(absl::StrCat(R"({"layer": )", layer, R"(, "heads": [)",
                                    absl::StrJoin(streaming.layers[layer], ", "), "]}"));
    }
  }
  std::ofstream(path) << absl::StrCat(R"({"format": 1, "model": {"layers": )", model.layers,
                                      R"(, "kv_heads": )", model.kv_heads, R"(, "head_dim": )",
                                      model.head_dim, R"(}, "streaming": [)",
                                      absl::StrJoin(layers, ", "), "]}");
}

const kernels::AttentionKernel& Attention(const LocalClusterOptions& options) {
  return options.reference_kernels ? kernels::ReferenceAttention() : kernels::CpuAttention();
}

}  // namespace

GenerateResult LocalRequest::Wait() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::nanoseconds(LocalCluster::kTimeout),
                         [this] { return ended_; })) {
    return {.status = absl::DeadlineExceededError("the request did not end")};
  }
  if (overrun_) {
    return {.status = absl::InternalError("the engine spoke on after the end")};
  }
  return result_;
}

void LocalRequest::WaitForTokens(size_t tokens) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(LocalCluster::kTimeout),
                    [&] { return ended_ || result_.choices[0].tokens.size() >= tokens; });
}

bool LocalRequest::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void LocalRequest::OnAccepted(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  result_.request_id = request_id;
}

void LocalRequest::OnOutput(coordinator::ChoiceOutput output) {
  const std::lock_guard lock(mutex_);
  ChoiceResult& choice = result_.choices.at(output.index);
  overrun_ = overrun_ || ended_ || choice.finish != plan::FinishReason::kNone;
  choice.text += output.text;
  for (plan::SampledToken& token : output.tokens) {
    choice.tokens.push_back(token.token);
    choice.logprobs.push_back(token.logprob);
    choice.top.push_back(std::move(token.top));
  }
  choice.finish = output.finish;
  choice.usage = output.usage;
  changed_.notify_all();
}

void LocalRequest::OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) {
  const std::lock_guard lock(mutex_);
  overrun_ = overrun_ || ended_;
  result_.scores = std::move(logprobs);
  result_.ranks = std::move(ranks);
}

void LocalRequest::OnProgress(uint32_t tokens_done) {
  const std::lock_guard lock(mutex_);
  overrun_ = overrun_ || ended_;
  result_.progress.push_back(tokens_done);
}

void LocalRequest::OnDone(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  overrun_ = overrun_ || ended_;
  result_.status = status;
  ended_ = true;
  changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Create(
    const LocalClusterOptions& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  LAMINA_RETURN_IF_ERROR(cluster->Start());
  return cluster;
}

absl::Status LocalCluster::Start() {
  const TemporaryFolder folder;
  LAMINA_RETURN_IF_ERROR(WriteRandomModel(options_.model, folder.path()));
  LAMINA_ASSIGN_OR_RETURN(model::Model model, model::OpenModel(folder.path()));
  layers_ = coordinator::LayersOf(model.graph);
  width_ = model.config.width;
  LAMINA_ASSIGN_OR_RETURN(fingerprint_, model::Fingerprint(model));
  LAMINA_ASSIGN_OR_RETURN(const coordinator::EngineOptions engine_options,
                          MakeEngineOptions(model));
  engine_ = std::make_unique<coordinator::Engine>(engine_options, tokenizer_, RealClock());
  for (uint32_t i = 0; i < options_.compute_nodes; ++i) {
    LAMINA_ASSIGN_OR_RETURN(model::Model replica, model::OpenModel(folder.path()));
    LAMINA_RETURN_IF_ERROR(MakeComputeNode(absl::StrCat("c", i), std::move(replica),
                                           options_.stages * options_.shards > 1));
  }
  for (uint32_t i = 0; i < options_.prefill_nodes; ++i) {
    LAMINA_ASSIGN_OR_RETURN(model::Model replica, model::OpenModel(folder.path()));
    LAMINA_RETURN_IF_ERROR(MakeComputeNode(absl::StrCat("p", i), std::move(replica),
                                           options_.prefill_stages * options_.prefill_shards > 1));
  }
  for (uint32_t i = 0; i < memory_nodes(); ++i) {
    MakeMemoryNode(absl::StrCat("m", i));
  }
  if (!options_.attach) {
    return absl::OkStatus();
  }
  for (const auto& [name, node] : nodes_) {
    Attach(name);
  }
  return WaitForState("serving");
}

// Returns the capacity of a node that has room for options_.slots.
uint64_t LocalCluster::CapacityBytes() const {
  const uint32_t sharers = options_.partition == Partition::kHead ? options_.memory_nodes : 1;
  if (!options_.kv_forms.empty()) {
    const KvLayout layout{.tails = options_.running_max, .int8_percent = options_.kv_int8_percent};
    const uint64_t tails = layout.TailBytes(layers_);
    return tails / sharers + layout.CapacityFor(options_.slots, layers_) - tails;
  }
  if (options_.int8) {
    const KvLayout layout{.form = KvForm::kInt8, .tails = options_.running_max};
    return layout.TailBytes(layers_) / sharers + options_.slots * layout.SlotBytes(layers_);
  }
  const std::vector<std::string>& policies = options_.policies;
  if (policies.size() > 1 &&
      std::find(policies.begin(), policies.end(), kPolicyFetchHybrid) != policies.end()) {
    return coordinator::CapacityForEach(
        {.kv = coordinator::KvBytesPerToken(layers_), .activation = layers_.size() * 2 * width_},
        options_.hybrid_percent, options_.slots + 16);
  }
  return options_.slots * (coordinator::KvBytesPerToken(layers_) +
                           (options_.recompute_percent.has_value() &&
                                    options_.recompute == RecomputeFrom::kActivations
                                ? layers_.size() * 2 * width_
                                : 0));
}

uint64_t LocalCluster::ComputeCapacityBytes(size_t index) const {
  const std::vector<uint32_t>& capacities = options_.compute_capacities;
  return CapacityBytes() * (index < capacities.size() ? capacities[index] : 1);
}

ClusterConfig LocalCluster::MakeConfig() const {
  ClusterConfig config;
  config.model = "of the test";
  AddComputeNodes(ComputeRole::kCompute, config);
  AddComputeNodes(ComputeRole::kPrefill, config);
  for (uint32_t i = 0; i < memory_nodes(); ++i) {
    config.memory.push_back({.name = absl::StrCat("m", i), .capacity_bytes = CapacityBytes()});
    if (options_.spill_bytes > 0) {
      config.memory.back().spill = {.path = ".", .capacity_bytes = options_.spill_bytes};
    }
  }
  config.pipeline = {
      .mode = options_.mode,
      .lanes = options_.lanes,
      .chunks = options_.sub_batches.chunks,
      .chunks_auto = options_.sub_batches.automatic,
      .query_first = options_.sub_batches.query_first,
      .device_waits = options_.device_waits ? DeviceWaits::kAuto : DeviceWaits::kOff};
  config.partition = options_.partition;
  config.attention = options_.attention;
  config.kv = options_.int8 ? KvForm::kInt8 : KvForm::kBF16;
  if (!options_.kv_forms.empty()) {
    config.kv = options_.kv_forms.front();
    config.kv_forms = options_.kv_forms;
    config.kv_int8_percent = options_.kv_int8_percent;
  }
  config.policy = std::string(options_.policy_auto.has_value() ? kPolicyAuto
                              : options_.local                 ? kPolicyLocal
                              : options_.sparse_ratio > 0      ? kPolicyFetchSparse
                              : options_.recompute_percent     ? kPolicyFetchRecompute
                              : options_.activation_percent    ? kPolicyFetchHybrid
                              : options_.fetch_bytes > 0       ? kPolicyFetchHeads
                                                               : kPolicyAttendRemote);
  if (!options_.policies.empty()) {
    config.policies = options_.policies;
    config.policy = options_.policies.front();
  }
  if (options_.fetch_bytes > 0) {
    config.fetch.window_bytes = options_.fetch_bytes;
    config.fetch.recompute = options_.recompute;
    config.fetch.recompute_tokens_max = options_.recompute_tokens_max;
    config.fetch.recompute_auto = !options_.recompute_percent.has_value();
    config.fetch.recompute_percent = options_.recompute_percent.value_or(0);
    config.fetch.activation_auto = !options_.activation_percent.has_value();
    config.fetch.activation_percent = options_.activation_percent.value_or(0);
    config.fetch.hybrid_percent = options_.hybrid_percent;
    config.fetch.caching_ratio =
        options_.sparse_ratio > 0 ? options_.sparse_ratio : config.fetch.caching_ratio;
    config.fetch.resident_bytes = options_.resident_bytes;
  }
  config.prefill.chunk_tokens = options_.chunk_tokens;
  config.prefill.scratch_tokens = options_.scratch_tokens;
  const bool on_processors =
      options_.other_device.names.empty() && options_.other_compute.names.empty();
  config.prefix_cache =
      options_.prefix_cache && on_processors ? PrefixCacheMode::kAuto : PrefixCacheMode::kOff;
  config.limits = {.sequence_tokens_max = options_.sequence_tokens_max,
                   .running_max = options_.running_max,
                   .waiting_max = options_.waiting_max};
  return config;
}

// As the coordinator has them, but for what no cluster file can say: transports of tests, and loads
// that are chosen for. No node says that it lives.
absl::StatusOr<coordinator::EngineOptions> LocalCluster::MakeEngineOptions(
    const model::Model& model) const {
  model::ModelConfig model_config = model.config;
  model_config.positions_max = 0;  // Tests go beyond what a random model is made for.
  ClusterConfig config = MakeConfig();
  const TemporaryFolder folder;
  if (!options_.streaming.empty()) {
    config.fetch.streaming_heads = folder.path() + "/heads.json";
    config.fetch.streaming_sink = options_.streaming.sink;
    config.fetch.streaming_window = options_.streaming.window;
    WriteStreamingFile(options_.streaming, model_config, config.fetch.streaming_heads);
  }
  LAMINA_ASSIGN_OR_RETURN(coordinator::EngineOptions options,
                          coordinator::EngineOptionsOf(config, model.graph, model_config));
  options.model_fingerprint = fingerprint_;
  options.transports = options_.transports;
  if (options_.policy_auto.has_value()) {
    std::vector<coordinator::WeighedPolicy> weighed = std::move(options.policy_auto->policies);
    options.policy_auto = options_.policy_auto;
    if (options_.auto_only.has_value()) {
      for (coordinator::WeighedPolicy& policy : weighed) {
        if (policy.policy != *options_.auto_only && policy.why_not.empty()) {
          policy.why_not = "not in this test";
        }
      }
      options.policy_auto->policies = std::move(weighed);
    }
  }
  options.node_silence_max = 0;
  options.stuck_after = 0;
  if (options_.keeps_all_slots) {
    options.scheduler.release_tokens = 1U << 30;  // More than any sequence has.
  }
  LAMINA_RETURN_IF_ERROR(options.scheduler.Validate());
  return options;
}

void LocalCluster::AddComputeNodes(ComputeRole role, ClusterConfig& config) const {
  const bool prefill = role == ComputeRole::kPrefill;
  const uint32_t count = prefill ? options_.prefill_nodes : options_.compute_nodes;
  const uint32_t stages = prefill ? options_.prefill_stages : options_.stages;
  const uint32_t shards = prefill ? options_.prefill_shards : options_.shards;
  const uint32_t nodes = stages * shards;
  const std::vector<HeadRange> layers =
      ConsecutiveRanges(prefill ? std::vector<uint32_t>() : options_.stage_layers);
  for (uint32_t i = 0; i < count; ++i) {
    ComputeNodeConfig node{.name = absl::StrCat(prefill ? "p" : "c", i), .role = role};
    node.capacity_bytes = HoldsKv() ? ComputeCapacityBytes(i) : 0;
    if (nodes > 1) {
      const uint32_t stage = i % nodes / shards;
      node.replica = absl::StrCat(prefill ? "q" : "r", i / nodes);
      node.stage = stage;
      node.shard = i % shards;
      if (!layers.empty()) {
        node.layers = {.first = layers[stage].first,
                       .last = layers[stage].first + layers[stage].count - 1};
      }
    }
    config.compute.push_back(std::move(node));
  }
}

absl::Status LocalCluster::MakeComputeNode(const std::string& name, model::Model model,
                                           bool is_stage) {
  Node& node = nodes_[name];
  node.pool = std::make_unique<ThreadPool>(ThreadPoolOptions{.threads = options_.threads});
  node.reporter = std::make_unique<LocalReporter>(name, *engine_);
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<kernels::ComputeDevice> device,
                          MakeComputeDevice(name, *node.pool));
  const bool other = DeviceOf(name) != "cpu";
  LAMINA_ASSIGN_OR_RETURN(
      auto handler, compute_node::ComputeNode::Create(
                        {.name = name,
                         .window_memory = other ? options_.other_compute.window_memory : nullptr,
                         .is_stage = is_stage,
                         .holds_kv = HoldsKv(),
                         .resident_bytes = options_.resident_bytes,
                         .weights_budget = options_.streamed.budget,
                         .weights_store = std::filesystem::temp_directory_path().string(),
                         .weights_ahead = options_.streamed.ahead,
                         .bus = options_.streamed.bus,
                         .kv_first = options_.streamed.kv_first,
                         .lanes = options_.lanes,
                         .pools_threads = options_.pools_threads,
                         .peer_deadline = options_.peer_deadline},
                        std::move(model), std::move(device), *node.pool, [](double) {}));
  handler->SetReporter(node.reporter.get());
  node.handler = std::move(handler);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> LocalCluster::MakeComputeDevice(
    const std::string& name, ThreadPool& pool) const {
  const std::vector<std::string>& others = options_.other_compute.names;
  if (std::find(others.begin(), others.end(), name) != others.end()) {
    return options_.other_compute.make(options_.compute_type);
  }
  std::unique_ptr<kernels::Dense> dense = kernels::MakeReferenceDense(options_.compute_type);
  if (!options_.reference_kernels) {
    LAMINA_ASSIGN_OR_RETURN(dense, kernels::MakeCpuDense({.compute_type = options_.compute_type,
                                                          .pool = &pool,
                                                          .loop = options_.dense_loop}));
  }
  return kernels::MakeCpuComputeDevice(std::move(dense), Attention(options_), pool);
}

uint64_t LocalCluster::WeightBytes(const std::string& name) const {
  return dynamic_cast<const compute_node::ComputeNode&>(*nodes_.at(name).handler).weight_bytes();
}

void LocalCluster::MakeMemoryNode(const std::string& name) {
  Node& node = nodes_[name];
  node.pool = std::make_unique<ThreadPool>(ThreadPoolOptions{.threads = options_.threads});
  node.reporter = std::make_unique<LocalReporter>(name, *engine_);
  const bool other = DeviceOf(name) != "cpu";
  if (options_.spill_bytes > 0) {
    std::unique_ptr<memory_node::SpillDisk> disk =
        options_.spill_disk ? options_.spill_disk() : std::make_unique<MemorySpillDisk>();
    auto file = memory_node::SpillFile::Create(std::move(disk), options_.spill_bytes, name);
    node.spill = std::make_unique<memory_node::SpillTier>(*std::move(file), kSpillSpeed);
  }
  auto handler = std::make_unique<memory_node::MemoryNode>(
      memory_node::MemoryNodeOptions{
          .name = name,
          .make_device = other ? options_.other_device.make
                               : kernels::CpuKvDevices(Attention(options_), *node.pool),
          .device = DeviceOf(name),
          .window_memory = other ? options_.other_device.window_memory : nullptr,
          .windows = other ? options_.other_device.windows : WindowPlace::kAuto,
          .spill = node.spill.get(),
          .peer_deadline = options_.peer_deadline},
      *node.pool);
  handler->SetReporter(node.reporter.get());
  node.handler = std::move(handler);
}

std::string LocalCluster::DeviceOf(const std::string& name) const {
  const std::vector<std::string>& others =
      name[0] == 'm' ? options_.other_device.names : options_.other_compute.names;
  return std::find(others.begin(), others.end(), name) != others.end() ? "cuda:0" : "cpu";
}

LocalCluster::~LocalCluster() {
  for (const auto& [name, node] : nodes_) {
    Detach(name);
  }
  engine_.reset();
}

void LocalCluster::Attach(const std::string& name) {
  Node& node = nodes_.at(name);
  const bool is_memory = name[0] == 'm';
  node.link = std::make_shared<LocalLink>(name, *node.handler, *engine_,
                                          is_memory ? options_.memory_plan_delay : 0,
                                          options_.policy_times);
  node.reporter->set_port(node.link.get());
  control::NodeIdentity identity{.name = name, .is_memory = is_memory, .device = DeviceOf(name)};
  if (!is_memory && HoldsKv()) {
    identity.capacity_bytes = ComputeCapacityBytes(std::stoul(name.substr(1)));
  }
  if (is_memory) {
    identity.capacity_bytes = CapacityBytes();
    identity.threads = static_cast<uint32_t>(options_.threads);
    const size_t index = std::stoul(name.substr(1));
    const auto& bandwidths = options_.memory_bandwidths;
    identity.bandwidth_bytes_per_second =
        kBandwidth * (index < bandwidths.size() ? bandwidths[index] : 1);
    if (node.spill != nullptr) {
      identity.spill = node.spill->Identity();
    }
  } else {
    identity.model_fingerprint = fingerprint_;
    identity.kernels = node.kernels;
    if (options_.stages * options_.shards == 1) {  // Else when its layers are there.
      identity.policy_times = options_.policy_times;
    }
    if (!options_.dense_speeds.empty()) {
      identity.dense_speed = options_.dense_speeds.at(std::stoul(name.substr(1)));
    }
  }
  engine_->NodeJoined({.identity = identity, .version = kVersion}, node.link);
}

void LocalCluster::Detach(const std::string& name) {
  Node& node = nodes_.at(name);
  if (node.link == nullptr) {
    return;
  }
  node.reporter->set_port(nullptr);
  node.link->Close();
  node.handler->LeaveEpoch();
  engine_->NodeLeft({.name = name, .port = node.link.get()});
  engine_->GetStatus();  // The engine has let go of the link, which must live until then.
  node.link.reset();
}

std::shared_ptr<LocalRequest> LocalCluster::Start(coordinator::GenerateSpec spec) {
  auto request = std::make_shared<LocalRequest>(spec.choices);
  request->key = coordinator::Engine::NewKey();
  engine_->Submit(std::move(spec), request->key, request);
  return request;
}

GenerateResult LocalCluster::Generate(coordinator::GenerateSpec spec) {
  return Start(std::move(spec))->Wait();
}

std::vector<GenerateResult> LocalCluster::GenerateMany(
    const std::vector<coordinator::GenerateSpec>& specs) {
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const coordinator::GenerateSpec& spec : specs) {
    requests.push_back(Start(spec));
  }
  std::vector<GenerateResult> results;
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    results.push_back(request->Wait());
  }
  return results;
}

GenerateResult LocalCluster::Score(std::vector<TokenId> tokens) {
  return Generate({.prompt = std::move(tokens), .score = true});
}

template <typename Condition>
absl::Status LocalCluster::WaitUntil(const Condition& condition) {
  const Nanos deadline = RealClock().Now() + kTimeout;
  coordinator::EngineStatus status = engine_->GetStatus();
  while (!condition(status)) {
    if (RealClock().Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the cluster stays in state '", status.state, "' epoch ", status.epoch));
    }
    std::this_thread::sleep_for(kPoll);
    status = engine_->GetStatus();
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::WaitForState(const std::string& state) {
  return WaitUntil([&](const coordinator::EngineStatus& status) { return status.state == state; });
}

absl::Status LocalCluster::WaitForEpoch(uint64_t least) {
  return WaitUntil([&](const coordinator::EngineStatus& status) {
    return status.epoch >= least && status.state.starts_with("serving");
  });
}

absl::Status LocalCluster::WaitForIdle() {
  return WaitUntil([](const coordinator::EngineStatus& status) {
    const auto& lanes = status.scheduler.lanes;
    return std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) {
      return lane.rows == 0 && lane.step_done == lane.step_planned;
    });
  });
}

absl::Status LocalCluster::WaitForNoSlots() {
  return WaitUntil([](const coordinator::EngineStatus& status) {
    return std::all_of(status.nodes.begin(), status.nodes.end(), [](const auto& node) {
      return node.kv.slots_held == 0 && node.kv.slots_quarantined == 0;
    });
  });
}

}  // namespace lamina::test_support
