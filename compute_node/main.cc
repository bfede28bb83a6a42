// SPDX-License-Identifier: Apache-2.0
//
// lamina-compute: the daemon of one compute node.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cores.h"
#include "common/log.h"
#include "common/malloc_pages.h"
#include "common/name_lookup.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "common/units.h"
#include "compute_node/compute_node.h"
#include "compute_node/loading_log.h"
#include "compute_node/node_device.h"
#include "compute_node/weight_quantiser.h"
#include "config/cuda_host.h"
#include "config/memory_cores.h"
#include "config/replicas.h"
#include "control/node_handler.h"
#include "control/node_link_service.h"
#include "daemon/daemon.h"
#include "daemon/node_daemon.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/dense.h"
#include "kernels/processor_attention.h"
#include "kernels/read_bandwidth.h"
#include "model/fingerprint.h"
#include "model/grammar/grammar_cache.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina {
namespace {

constexpr char kPurpose[] =
    "lamina-compute holds the weights and runs the dense layers for one compute node of a Lamina "
    "cluster.\nUsually started by deploy/cluster.sh.\n\n"
    "Example: lamina-compute --cluster deploy/clusters/local.yaml --name c0";

// Reads the tokenizer when the first request wants an output of a form.
model::GrammarCache::Maker GrammarMaker(const std::string& path, uint32_t vocabulary) {
  return [path, vocabulary]() -> absl::StatusOr<std::unique_ptr<model::GrammarCompiler>> {
    LAMINA_ASSIGN_OR_RETURN(const auto tokenizer, model::LoadTokenizer(path));
    return model::MakeGrammarCompiler(*tokenizer, vocabulary);
  };
}

compute_node::ModelWeights::Progress LogProgress() {
  return [log = compute_node::LoadingLog(RealClock())](double fraction) mutable {
    if (const std::optional<std::string> line = log.Take(fraction); line.has_value()) {
      LogInfo(*line);
    }
  };
}

std::optional<plan::Stage> LayersOf(const ComputeNodeConfig& node) {
  if (!node.layers.has_value() || node.shard.has_value()) {
    return std::nullopt;  // The coordinator says.
  }
  return plan::Stage{.first_layer = node.layers->first,
                     .layers = node.layers->last + 1 - node.layers->first};
}

// Whether it holds KV in some epochs at least.
bool HoldsKv(const ClusterConfig& config, const ComputeNodeConfig& node) {
  return config.policy == kPolicyLocal || (config.policy == kPolicyAuto && node.capacity_bytes > 0);
}

struct OpenedNode {
  std::unique_ptr<compute_node::ComputeNode> node;
  std::string fingerprint;  // ClusterConfig::FingerprintOf() the model.
};

// With policy auto: the cores of memory nodes come last, so that the first threads have the others.
struct NodeThreads {
  ThreadPoolOptions pool;
  std::vector<int> caller_cores;
  size_t with_memory_nodes = 0;  // Threads in use while memory nodes hold K and V; 0: all.
  std::vector<int> shared_cores;
};

NodeThreads ThreadsOf(const ClusterConfig& config, const ComputeNodeConfig& node) {
  const size_t cores = node.cores.size();
  const size_t threads = node.threads != 0 ? node.threads : std::max<size_t>(1, cores);
  NodeThreads found{.pool = {.threads = threads, .cores = node.cores}};
  found.caller_cores = CallerCores(found.pool);
  const SplitCores split = SplitCoresOf(config, node);
  if (config.policy == kPolicyAuto && !split.shared.empty()) {
    found.pool.cores = split.own;
    found.pool.cores.insert(found.pool.cores.end(), split.shared.begin(), split.shared.end());
    found.caller_cores = {split.own.front()};
    found.with_memory_nodes = std::max<size_t>(1, threads * split.own.size() / cores);
    found.shared_cores = split.shared;
  }
  return found;
}

compute_node::WeightForm FormOf(WeightsForm form) {
  switch (form) {
    case WeightsForm::kAuto:
      return compute_node::WeightForm::kAuto;
    case WeightsForm::kPacked:
      return compute_node::WeightForm::kPacked;
    case WeightsForm::kBF16:
      return compute_node::WeightForm::kBF16;
    case WeightsForm::kInt8:
      return compute_node::WeightForm::kInt8;
  }
  return compute_node::WeightForm::kBF16;
}

// Whether K and V of some tokens are made again from activations.
bool MakesKvAgain(const ClusterConfig& config) {
  return (config.Prepares(kPolicyFetchRecompute) && !config.RecomputesFromTokens()) ||
         config.Prepares(kPolicyFetchHybrid);
}

// Reads the model; its weights stay, unless the coordinator says which layers.
absl::StatusOr<OpenedNode> OpenNode(const ClusterConfig& config, const ComputeNodeConfig& node,
                                    const NodeThreads& threads, const ClusterSecret& secret,
                                    std::unique_ptr<kernels::ComputeDevice> device,
                                    DeviceMemory* window_memory, ThreadPool& pool) {
  LAMINA_ASSIGN_OR_RETURN(
      model::Model model,
      model::OpenModel(config.model, {.sequence_tokens_max = config.limits.sequence_tokens_max}));
  std::shared_ptr<SharedBus> bus;
  std::shared_ptr<SharedBus> bus_from;
  if (const auto options = BusOf(config); options.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(
        bus, SharedBus::Open(absl::StrCat(options->bus, ".to"), options->bytes_per_second));
    LAMINA_ASSIGN_OR_RETURN(
        bus_from, SharedBus::Open(absl::StrCat(options->bus, ".from"), options->bytes_per_second));
  }
  OpenedNode opened;
  LAMINA_ASSIGN_OR_RETURN(const std::string fingerprint, model::Fingerprint(model));
  opened.fingerprint = config.FingerprintOf(fingerprint);
  if (node.weights == WeightsForm::kInt8) {
    LAMINA_RETURN_IF_ERROR(compute_node::CheckQuantises(model.graph, *model.weights));
  }
  const uint32_t vocabulary = model.config.vocabulary;
  LogInfo("model ", model.config.name, " architecture ", model.config.architecture, " from ",
          config.model);
  LAMINA_ASSIGN_OR_RETURN(opened.node,
                          compute_node::ComputeNode::Create(
                              {.name = node.name,
                               .cores = threads.caller_cores,
                               .make_grammars = GrammarMaker(config.model, vocabulary),
                               .verbs_uri = config.VerbsUri(),
                               .secret = secret,
                               .window_memory = window_memory,
                               .is_stage = IsStage(config, node),
                               .layers = LayersOf(node),
                               .holds_kv = HoldsKv(config, node),
                               .memory_budget = node.memory_budget_bytes,
                               .resident_bytes = config.fetch.resident_bytes,
                               .weights_budget = node.weights_budget_bytes,
                               .weights_store = node.weights_store,
                               .weights_ahead = node.weights_ahead,
                               .bus = std::move(bus),
                               .bus_from = std::move(bus_from),
                               .kv_first = MakesKvAgain(config) && config.fetch.kv_weights_first,
                               .weight_form = FormOf(node.weights),
                               .lanes = config.pipeline.lanes,
                               .pools_threads = threads.with_memory_nodes,
                               .shared_cores = threads.shared_cores},
                              std::move(model), std::move(device), pool, LogProgress()));
  if (opened.node->weight_bytes() > 0) {
    LogInfo("weights ", FormatBytes(opened.node->weight_bytes()));
  }
  return opened;
}

absl::Status Serve(const daemon::DaemonFlags& flags) {
  daemon::EndOnTermination();
  LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config, daemon::LoadDaemonConfig(flags));
  const ComputeNodeConfig* node = config.FindCompute(flags.name);
  if (node == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : config.compute) {
      names.push_back(known.name);
    }
    return daemon::NoNodeNamed("compute", flags.name, names);
  }
  LAMINA_ASSIGN_OR_RETURN(const daemon::ClusterAccess access, daemon::PrepareToJoin(flags, config));
  const NodeThreads threads = ThreadsOf(config, *node);
  LAMINA_RETURN_IF_ERROR(
      CheckThreads(absl::StrCat("compute node ", flags.name, ": threads"), threads.pool.threads));
  LAMINA_RETURN_IF_ERROR(daemon::RequireCores(node->cores));
  daemon::TakeMemoryNear(node->cores);
  ThreadPool pool(threads.pool);
  LAMINA_ASSIGN_OR_RETURN(const bool dependent,
                          ParseCudaLaunches(std::getenv(kCudaLaunchesVariable)));
  compute_node::AllowDependentLaunches(dependent);
  const DType compute_type = node->compute_type == "f32" ? DType::kF32 : DType::kBF16;
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<kernels::ComputeDevice> device,
      compute_node::OpenNodeDevice(
          node->device,
          {.compute_type = compute_type, .threads = pool.threads(), .cores = threads.pool.cores},
          pool));
  const std::string description = device->dense().description();
  LogInfo("device ", device->name(), " dense layers ", description, " attention ",
          device->is_host() ? kernels::CpuAttention().name() : "cuda", " threads ", pool.threads());
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> window_memory,
                          compute_node::OpenWindowMemory(node->device));
  LAMINA_ASSIGN_OR_RETURN(const OpenedNode opened,
                          OpenNode(config, *node, threads, access.secret, std::move(device),
                                   window_memory.get(), pool));
  plan::PolicyTimes policy_times;
  if (config.policy == kPolicyAuto && !IsStage(config, *node)) {  // Else when its layers are there.
    LAMINA_ASSIGN_OR_RETURN(policy_times, opened.node->MeasurePolicies());
  }
  const std::string weights = opened.node->DescribeWeights();
  double bandwidth = policy_times.read_bandwidth;
  if (bandwidth == 0 && HoldsKv(config, *node)) {
    LAMINA_ASSIGN_OR_RETURN(bandwidth, opened.node->MeasureReads());
  }
  double dense_speed = 0;
  if (IsStage(config, *node) && node->stage.has_value() && !node->layers.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(dense_speed, opened.node->MeasureDenseSpeed());
  }
  control::NodeLink link(
      access.coordinator,
      {.name = flags.name,
       .device = node->device,
       .capacity_bytes = node->capacity_bytes,
       .bandwidth_bytes_per_second = bandwidth,
       .kernels = weights.empty() ? description
                                  : absl::StrCat(description, control::kWeightsWord, weights),
       .fast_attention = node->device == "cpu" && compute_type == DType::kBF16
                             ? kernels::FastAttention()
                             : AttentionArithmetic::kCanonical,
       .model_fingerprint = opened.fingerprint,
       .dense_speed = dense_speed,
       .policy_times = policy_times},
      access.secret, config.tls);
  opened.node->SetReporter(&link);
  LAMINA_ASSIGN_OR_RETURN(
      const std::unique_ptr<daemon::NodeDaemon> node_daemon,
      daemon::NodeDaemon::Start(
          flags, config,
          {.role = "compute",
           .http = node->http,
           .read_bandwidth = bandwidth > 0 ? std::optional(bandwidth) : std::nullopt,
           .counters = [&opened] { return opened.node->Counters(); },
           .attached = [&link] { return link.attached(); },
           .drain = [&link](Nanos grace) { link.Drain(grace); }}));
  return link.Run(*opened.node, [&node_daemon] { node_daemon->OnAttached(); });
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  const lamina::daemon::ParsedFlags parsed =
      lamina::daemon::ParseDaemonFlags(argc, argv, lamina::kPurpose, "");
  if (parsed.exit_status.has_value()) {
    return *parsed.exit_status;
  }
  lamina::EnsureHugePagesForMalloc(argv);
  lamina::daemon::GiveCudaStreamsTheirOwnQueues();
  lamina::LookUpNamesAsTheSystemDoes();
  lamina::kernels::AskForTiles();  // Before Serve(), which starts threads.
  return lamina::daemon::ExitStatus(lamina::Serve(parsed.flags));
}
