// SPDX-License-Identifier: Apache-2.0
#include "planner/configuration.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/cluster_file.h"
#include "planner/evaluation.h"

namespace lamina::planner {
namespace {

using cost::KvPolicy;
using cost::Machine;

constexpr uint32_t kPromptReplicasMax = 4;
constexpr double kBlockTokens = 16;  // The prefix cache finds whole blocks.
// The most that the formula knows; the cluster file allows fewer.
constexpr uint32_t kLanesMax = 64;

uint32_t Devices(const Machine* machine, uint32_t count) {
  return machine == nullptr ? 0 : machine->devices * count;
}

std::set<uint32_t> LaneChoices(const Configuration& configuration) {
  std::set<uint32_t> lanes;
  const uint32_t nodes = configuration.replicas * configuration.stages;
  for (const uint32_t count : {1u, 2u, 4u, nodes + 1, 2 * nodes}) {
    if (count <= kLanesMax) {
      lanes.insert(count);
    }
  }
  return lanes;
}

// K and V on memory nodes, attention there.
void AppendRemote(const Problem& problem, Configuration configuration,
                  std::vector<Configuration>& out) {
  const uint32_t nodes = configuration.hardware.memory_nodes();
  configuration.policy = KvPolicy::kAttendRemote;
  for (const Partition partition :
       {Partition::kRequest, Partition::kHead, Partition::kTokenRange}) {
    const bool spread = partition != Partition::kRequest;
    if ((spread && nodes < 2) ||
        (partition == Partition::kHead && nodes > problem.model.kv_heads)) {
      continue;
    }
    configuration.partition = partition;
    for (const uint32_t lanes : LaneChoices(configuration)) {
      configuration.lanes = lanes;
      out.push_back(configuration);
    }
  }
}

// One arrangement of the compute nodes, with every policy that the hardware allows.
void AppendPolicies(const Problem& problem, Configuration configuration,
                    std::vector<Configuration>& out) {
  const uint32_t all = configuration.replicas;
  if (configuration.hardware.two_pools()) {
    for (uint32_t prompts = 0; prompts < all && prompts <= kPromptReplicasMax; ++prompts) {
      configuration.replicas = all - prompts;
      configuration.prompt_replicas = prompts;
      AppendRemote(problem, configuration, out);
    }
  }
  // Attention on compute nodes: each stage of each replica has a lane.
  configuration.replicas = all;
  configuration.prompt_replicas = 0;
  configuration.lanes = all * configuration.stages;
  if (!configuration.hardware.two_pools()) {
    configuration.policy = KvPolicy::kLocal;
    out.push_back(configuration);
    return;
  }
  for (const KvPolicy policy : {KvPolicy::kFetchHeads, KvPolicy::kFetchRecompute,
                                KvPolicy::kFetchHybrid, KvPolicy::kFetchSparse}) {
    configuration.policy = policy;
    out.push_back(configuration);
  }
}

}  // namespace

uint32_t Hardware::memory_nodes() const {
  return on_hosts ? compute->host_devices * compute_machines : Devices(memory, memory_machines);
}

const std::string& Hardware::memory_link() const {
  return !on_hosts ? memory->link : compute_machines == 1 ? compute->host_link : compute->link;
}

const cost::Device* Hardware::MemoryDevice(const cost::Catalogue& catalogue) const {
  return two_pools() ? catalogue.FindDevice(on_hosts ? compute->host : memory->device) : nullptr;
}

Rates::Rates(const Problem& problem) : problem_(problem) {
  for (const Machine& machine : problem.catalogue.machines) {
    const cost::Device* device = problem.catalogue.FindDevice(machine.device);
    MachineRates rates = {
        .link = cost::RatesOf(*problem.catalogue.FindLink(machine.link), machine.devices)};
    if (const cost::Link* between = problem.catalogue.FindLink(machine.between);
        between != nullptr) {
      rates.between = cost::RatesOf(*between, 1);
    }
    const auto calibrated = [&](const cost::Device& one) {
      const auto calibration = problem.calibrations.find(one.name);
      return calibration == problem.calibrations.end()
                 ? cost::RatesOf(one)
                 : cost::WithCalibration(cost::RatesOf(one), calibration->second, problem.model);
    };
    rates.device = calibrated(*device);
    if (const cost::Device* host = problem.catalogue.FindDevice(machine.host); host != nullptr) {
      const cost::Link& bus = *problem.catalogue.FindLink(machine.host_link);
      const double hosts = machine.host_devices;
      rates.host = calibrated(*host);
      rates.card_to_host = cost::RatesOf(bus, 1);
      rates.host_to_card = cost::RatesOf(bus, hosts / machine.devices);
      rates.host_network = cost::RatesOf(*problem.catalogue.FindLink(machine.link), hosts);
    }
    machines_[&machine] = rates;
  }
}

cost::Cluster Rates::ClusterOf(const Configuration& configuration) const {
  const MachineRates& compute = machines_.at(configuration.hardware.compute);
  cost::Cluster cluster = {
      .compute = compute.device,
      .compute_link = compute.link,
      .shard_link = compute.between,
      .replicas = configuration.replicas,
      .stages = configuration.stages,
      .shards = configuration.shards,
      .prompt_replicas = configuration.prompt_replicas,
      .lanes = configuration.lanes,
      .partition = configuration.partition,
      .policy = configuration.policy,
      .fetch_window = static_cast<double>(FetchWindowOf(problem_, configuration))};
  if (configuration.hardware.memory != nullptr) {
    const MachineRates& memory = machines_.at(configuration.hardware.memory);
    cluster.memory = memory.device;
    cluster.memory_link = memory.link;
    cluster.memory_nodes = configuration.hardware.memory_nodes();
  }
  if (configuration.hardware.on_hosts) {
    PutOnHosts(configuration.hardware, compute, cluster);
  }
  return cluster;
}

// On one machine rows cross the bus alone. On several, all are charged as if they crossed the
// network, though one in as many stays.
void Rates::PutOnHosts(const Hardware& hardware, const MachineRates& machine,
                       cost::Cluster& cluster) {
  cluster.memory = machine.host;
  cluster.memory_nodes = hardware.memory_nodes();
  cluster.memory_link = machine.host_network;
  if (hardware.compute_machines == 1) {
    cluster.compute_link = machine.card_to_host;
    cluster.memory_link = machine.host_to_card;
  }
}

std::vector<Hardware> AllHardware(const Problem& problem) {
  std::vector<const Machine*> kinds = {nullptr};
  for (const Machine& machine : problem.catalogue.machines) {
    kinds.push_back(&machine);
  }
  std::vector<Hardware> all;
  for (size_t c = 1; c < kinds.size(); ++c) {
    for (const Machine* memory : kinds) {
      for (uint32_t nc = 1; nc <= problem.machines_max; ++nc) {
        const uint32_t most = memory == nullptr ? 0 : problem.machines_max - nc;
        for (uint32_t nm = memory == nullptr ? 0 : 1; nm <= most; ++nm) {
          const Hardware hardware = {kinds[c], memory, nc, nm};
          if (PricePerHour(problem, hardware).value > problem.budget) {
            break;
          }
          all.push_back(hardware);
          if (memory == nullptr && !kinds[c]->host.empty()) {
            all.push_back({.compute = kinds[c], .compute_machines = nc, .on_hosts = true});
          }
        }
      }
    }
  }
  return all;
}

std::vector<Configuration> AllConfigurations(const Problem& problem, const Hardware& hardware) {
  std::vector<Configuration> all;
  const uint32_t devices = Devices(hardware.compute, hardware.compute_machines);
  for (uint32_t shards = 1; shards <= hardware.compute->devices; shards *= 2) {
    if (hardware.compute->devices % shards != 0 || shards > problem.model.kv_heads) {
      continue;
    }
    const uint32_t places = devices / shards;
    for (uint32_t stages = 1; stages <= std::min(places, problem.model.layers); ++stages) {
      if (places % stages != 0) {
        continue;
      }
      AppendPolicies(
          problem,
          {.hardware = hardware, .replicas = places / stages, .stages = stages, .shards = shards},
          all);
    }
  }
  return all;
}

bool KeepsPrefixes(const Problem& problem, const Configuration& configuration) {
  const auto on_processor = [&](const cost::Device* device) {
    return device == nullptr || device->kind == cost::DeviceKind::kCpu;
  };
  const Hardware& hardware = configuration.hardware;
  // Where sequences are cut, nothing is kept behind windows in every layer, and those share what
  // they find that find half of their prompt.
  const bool windows =
      problem.model.window > 0 && problem.model.window_layers >= problem.model.layers;
  const double found = std::floor(problem.load.prefix / kBlockTokens) * kBlockTokens;
  const bool finds = configuration.partition != Partition::kTokenRange ||
                     (!windows && 2 * found >= problem.load.input);
  // With nodes for prompts who finds most of its prompt passes by them, which formulas leave out.
  return configuration.prompt_replicas == 0 && finds &&
         on_processor(problem.catalogue.FindDevice(hardware.compute->device)) &&
         on_processor(hardware.MemoryDevice(problem.catalogue));
}

std::string HardwareName(const Hardware& hardware) {
  std::string name = absl::StrCat(hardware.compute_machines, " x ", hardware.compute->name);
  if (hardware.memory != nullptr) {
    absl::StrAppend(&name, " + ", hardware.memory_machines, " x ", hardware.memory->name);
  }
  if (hardware.on_hosts) {
    absl::StrAppend(&name, hardware.compute_machines == 1 ? " + its host" : " + their hosts");
  }
  return name;
}

std::string ArrangementName(const Configuration& configuration) {
  const auto count = [](uint32_t number, const char* what) {
    return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
  };
  std::string name = count(configuration.replicas, "replica");
  if (configuration.stages > 1) {
    absl::StrAppend(&name, " of ", count(configuration.stages, "stage"));
  }
  if (configuration.shards > 1) {
    absl::StrAppend(&name, " of ", count(configuration.shards, "shard"));
  }
  absl::StrAppend(&name, ", ", cost::KvPolicyName(configuration.policy));
  if (configuration.policy == KvPolicy::kAttendRemote) {
    const char* partition = configuration.partition == Partition::kHead         ? "head"
                            : configuration.partition == Partition::kTokenRange ? "token_range"
                                                                                : "request";
    absl::StrAppend(&name, " by ", partition, ", ", count(configuration.lanes, "lane"));
  }
  if (configuration.prompt_replicas > 0) {
    absl::StrAppend(&name, ", ", count(configuration.prompt_replicas, "prompt replica"));
  }
  return name;
}

}  // namespace lamina::planner
