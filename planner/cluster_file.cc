// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_file.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cost/price.h"
#include "plan/limits.h"

namespace lamina::planner {
namespace {

using cost::DeviceKind;
using cost::KvPolicy;

constexpr uint32_t kSequenceTokensLeast = 2;
// Requests are longer than their mean. A compute node also has scratch for as many tokens, which
// the prompts in prefill share: with little more than one prompt's they would wait for each other.
constexpr double kSlack = 8;
// Share of a node's room for K and V that one sequence may count on: slots come in blocks, and
// stages are cut by measured speed, not evenly.
constexpr double kRoomOfNode = 0.9;
constexpr double kRoomOfStage = 0.75;
constexpr double kBlockTokens = 16;
constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr double kWindowsOfEach = 2;  // Lane and memory node have so many, where K and V come.

std::string DeviceName(const cost::Device& device, uint32_t index) {
  return device.kind == DeviceKind::kGpu ? absl::StrCat("cuda:", index) : "cpu";
}

// In whole hundredths of a cent, as a person would write it.
double PriceOfDevice(const Problem& problem, const cost::Machine& machine) {
  const cost::Estimate load = cost::MeanLoad(problem.catalogue.economics);
  const double price = cost::HourlyPrice(problem.catalogue, machine, load).value / machine.devices;
  return std::round(price * 1e4) / 1e4;
}

uint64_t Capacity(double bytes) {
  return static_cast<uint64_t>(std::max(0.0, bytes)) / kMebibyte * kMebibyte;
}

void AddCompute(const Problem& problem, const Configuration& configuration, ClusterConfig& config) {
  const cost::Machine& machine = *configuration.hardware.compute;
  const cost::Device& device = *problem.catalogue.FindDevice(machine.device);
  const uint32_t of_replica = configuration.stages * configuration.shards;
  const uint32_t all = (configuration.replicas + configuration.prompt_replicas) * of_replica;
  const double price = PriceOfDevice(problem, machine);
  config.compute.resize(all);
  for (uint32_t i = 0; i < all; ++i) {
    ComputeNodeConfig& node = config.compute[i];
    node.name = absl::StrCat("c", i);
    node.host = absl::StrCat("compute-", i / machine.devices);
    node.device = DeviceName(device, i % machine.devices);
    const uint32_t replica = i / of_replica;
    if (replica >= configuration.replicas) {
      node.role = ComputeRole::kPrefill;
    }
    if (of_replica > 1) {
      node.replica = absl::StrCat("r", replica);
    }
    if (configuration.stages > 1) {
      node.stage = i % of_replica / configuration.shards;
    }
    if (configuration.shards > 1) {
      node.shard = i % configuration.shards;
    }
    if (configuration.policy == KvPolicy::kLocal) {
      const double weights = problem.model.WeightBytes() / of_replica;
      node.capacity_bytes = Capacity((1 - cost::kReserve.value) * device.capacity.value - weights);
    }
    node.price_per_hour = price;
  }
}

// Adds the memory nodes. Hosts of the compute machines are paid with these machines.
void AddMemory(const Problem& problem, const Hardware& hardware, ClusterConfig& config) {
  const cost::Device* device = hardware.MemoryDevice(problem.catalogue);
  if (device == nullptr) {
    return;
  }
  const uint32_t of_machine =
      hardware.on_hosts ? hardware.compute->host_devices : hardware.memory->devices;
  const double price = hardware.on_hosts ? 0 : PriceOfDevice(problem, *hardware.memory);
  config.memory.resize(hardware.memory_nodes());
  for (uint32_t i = 0; i < hardware.memory_nodes(); ++i) {
    MemoryNodeConfig& node = config.memory[i];
    node.name = absl::StrCat("m", i);
    node.host = absl::StrCat(hardware.on_hosts ? "compute-" : "memory-", i / of_machine);
    node.device = DeviceName(*device, i % of_machine);
    node.capacity_bytes = Capacity((1 - cost::kReserve.value) * device->capacity.value);
    node.price_per_hour = price;
  }
}

// The greatest share of so many layers or heads that one of `parts` nodes has.
double GreatestShare(uint32_t whole, uint32_t parts) {
  return std::ceil(cost::Real(whole) / parts) / whole;
}

bool KeepsActivations(KvPolicy policy) {
  return policy == KvPolicy::kFetchRecompute || policy == KvPolicy::kFetchHybrid;
}

// Tokens of one sequence for whose K and V there is room, where every node holds what it has to.
double SequenceRoom(const Problem& problem, const Configuration& configuration,
                    const ClusterConfig& config) {
  const cost::ModelShape& model = problem.model;
  const double activation = cost::kElementBytes * model.layers * model.width;
  const double token =
      model.KvBytesPerToken() + (KeepsActivations(configuration.policy) ? activation : 0);
  double share = 1;  // What the node with the most holds of a token.
  double room = kRoomOfNode;
  uint64_t bytes = 0;
  if (configuration.policy == KvPolicy::kLocal) {
    share = GreatestShare(model.layers, configuration.stages) *
            GreatestShare(model.kv_heads, configuration.shards);
    room = configuration.stages > 1 ? kRoomOfStage : kRoomOfNode;
    bytes = config.compute.front().capacity_bytes;
  } else {
    const auto nodes = static_cast<uint32_t>(config.memory.size());
    bytes = config.memory.front().capacity_bytes;
    if (configuration.partition == Partition::kHead) {
      share = GreatestShare(model.kv_heads, nodes);
    } else if (configuration.partition == Partition::kTokenRange) {
      share = 2.0 / std::max(2u, nodes);  // Spans are not equally many everywhere.
    }
  }
  return std::floor(room * static_cast<double>(bytes) / (share * token) / kBlockTokens) *
         kBlockTokens;
}

}  // namespace

uint32_t SequenceTokensMax(const Problem& problem) {
  const double tokens = std::min(kSlack * (problem.load.input + problem.load.output),
                                 cost::Real(plan::kSequenceTokensMax));
  return std::max(kSequenceTokensLeast,
                  std::min(problem.model.positions_max, static_cast<uint32_t>(tokens)));
}

uint64_t FetchWindowOf(const Problem& problem, const Configuration& configuration) {
  const uint64_t usual = FetchConfig().window_bytes;
  if (configuration.policy == KvPolicy::kLocal || configuration.policy == KvPolicy::kAttendRemote) {
    return usual;
  }
  const cost::ModelShape& model = problem.model;
  // Slots of a window come in blocks, those of activations and of K and V by themselves.
  const double slots = SequenceTokensMax(problem) + 2 * kBlockTokens;
  const double heads = slots * model.KvBytesPerTokenLayer();
  const double window = KeepsActivations(configuration.policy)
                            ? std::max(heads, slots * cost::kElementBytes * model.width)
                            : heads / model.kv_heads;
  const double bytes =
      kWindowsOfEach * configuration.lanes * configuration.hardware.memory_nodes() * window;
  return std::max(
      usual, static_cast<uint64_t>(std::ceil(bytes / static_cast<double>(kMebibyte))) * kMebibyte);
}

ClusterConfig ClusterFileOf(const Problem& problem, const Configuration& configuration,
                            const Evaluation& evaluation, const std::string& model) {
  ClusterConfig config;
  config.model = model;
  config.coordinator_listen = "0.0.0.0:7400";
  AddCompute(problem, configuration, config);
  AddMemory(problem, configuration.hardware, config);
  config.transport = {"verbs", "ucx"};
  config.pipeline.lanes = configuration.lanes;
  config.partition = configuration.partition;
  config.policy = std::string(cost::KvPolicyName(configuration.policy));
  config.fetch.window_bytes = FetchWindowOf(problem, configuration);
  config.prefill.mode =
      configuration.prompt_replicas > 0 ? PrefillMode::kDedicated : PrefillMode::kInline;
  config.prefill.chunk_tokens = evaluation.chunk_tokens;
  config.limits.running_max = static_cast<uint32_t>(evaluation.rows);
  const uint32_t wanted = SequenceTokensMax(problem);
  const double room = SequenceRoom(problem, configuration, config);
  // A cluster refuses nodes on which its longest sequence does not fit.
  config.limits.sequence_tokens_max =
      problem.model.TokensHeld(wanted) <= room
          ? wanted
          : std::max(kSequenceTokensLeast, static_cast<uint32_t>(room));
  return config;
}

std::string WhyNotRunnable(const Problem& problem, const Configuration& configuration,
                           const Evaluation& evaluation) {
  if (!problem.model.runs.yes) {
    return absl::StrCat(problem.model.name, ": ", problem.model.runs.why);
  }
  if (configuration.policy == KvPolicy::kFetchSparse) {
    return "policy fetch_sparse: answers are lossy, which no plan chooses by itself";
  }
  const cost::Device& compute =
      *problem.catalogue.FindDevice(configuration.hardware.compute->device);
  for (const cost::Device* device :
       {&compute, configuration.hardware.MemoryDevice(problem.catalogue)}) {
    if (device != nullptr && !device->runs.yes) {
      return absl::StrCat(device->name, ": ", device->runs.why);
    }
  }
  if (problem.model.experts > 1 && compute.kind == DeviceKind::kGpu) {
    return absl::StrCat(problem.model.name, ": experts run on processors, not on ", compute.name);
  }
  if (configuration.lanes > plan::kLanesMax) {  // Most that do not run; a whole file takes time.
    return absl::StrCat("it takes ", configuration.lanes, " lanes, and a cluster has at most ",
                        plan::kLanesMax);
  }
  const ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model");
  const double request = problem.load.input + problem.load.output;
  if (const double room = SequenceRoom(problem, configuration, config);
      problem.model.TokensHeld(request) > room) {
    return absl::StrCat("a node has room for ", room, " tokens of one sequence, and a request has ",
                        request);
  }
  const absl::Status valid = config.Validate();
  return valid.ok() ? "" : std::string(valid.message());
}

}  // namespace lamina::planner
