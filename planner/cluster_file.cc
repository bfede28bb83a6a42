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
  constexpr uint64_t kMebibyte = uint64_t{1} << 20;
  return static_cast<uint64_t>(std::max(0.0, bytes)) / kMebibyte * kMebibyte;
}

void AddCompute(const Problem& problem, const Configuration& configuration, ClusterConfig& config) {
  const cost::Machine& machine = *configuration.hardware.compute;
  const cost::Device& device = *problem.catalogue.FindDevice(machine.device);
  const uint32_t of_replica = configuration.stages * configuration.shards;
  const uint32_t all = (configuration.replicas + configuration.prompt_replicas) * of_replica;
  for (uint32_t i = 0; i < all; ++i) {
    ComputeNodeConfig node;
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
    node.price_per_hour = PriceOfDevice(problem, machine);
    config.compute.push_back(node);
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
  for (uint32_t i = 0; i < hardware.memory_nodes(); ++i) {
    MemoryNodeConfig node;
    node.name = absl::StrCat("m", i);
    node.host = absl::StrCat(hardware.on_hosts ? "compute-" : "memory-", i / of_machine);
    node.device = DeviceName(*device, i % of_machine);
    node.capacity_bytes = Capacity((1 - cost::kReserve.value) * device->capacity.value);
    if (!hardware.on_hosts) {
      node.price_per_hour = PriceOfDevice(problem, *hardware.memory);
    }
    config.memory.push_back(node);
  }
}

}  // namespace

uint32_t SequenceTokensMax(const Problem& problem) {
  const double tokens = std::min(kSlack * (problem.load.input + problem.load.output),
                                 cost::Real(plan::kSequenceTokensMax));
  return std::max(kSequenceTokensLeast,
                  std::min(problem.model.positions_max, static_cast<uint32_t>(tokens)));
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
  config.prefill.mode =
      configuration.prompt_replicas > 0 ? PrefillMode::kDedicated : PrefillMode::kInline;
  config.prefill.chunk_tokens = evaluation.chunk_tokens;
  config.limits.running_max = static_cast<uint32_t>(evaluation.rows);
  config.limits.sequence_tokens_max = SequenceTokensMax(problem);
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
  const absl::Status valid = ClusterFileOf(problem, configuration, evaluation, "model").Validate();
  return valid.ok() ? "" : std::string(valid.message());
}

}  // namespace lamina::planner
