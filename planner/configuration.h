// SPDX-License-Identifier: Apache-2.0
//
// Configuration: which machines a plan has, and what runs on them; and the list of all that are
// looked at.
//
// Threading: values.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/partition.h"
#include "cost/calibration.h"
#include "cost/catalogue.h"
#include "cost/step_cost.h"
#include "planner/request.h"

namespace lamina::planner {

// What all configurations of a plan have in common. Outlives what is made from it.
struct Problem {
  cost::Catalogue catalogue;
  cost::ModelShape model;
  std::map<std::string, cost::Calibration> calibrations;  // By the device's name in the catalogue.
  Load load;
  Slo slo;
  double budget = std::numeric_limits<double>::infinity();  // Per hour.
  uint32_t machines_max = 16;  // The most machines, both kinds together.
  // A plan carries the rate if its bound is so many times the rate: queues and unequal requests
  // take their part of the bound.
  double margin = 1;
};

// Machines of up to two kinds. Memory nodes are those of `memory`, or the processors of the compute
// machines themselves; there are none for one pool.
struct Hardware {
  const cost::Machine* compute = nullptr;
  const cost::Machine* memory = nullptr;
  uint32_t compute_machines = 0;
  uint32_t memory_machines = 0;
  bool on_hosts = false;  // `memory` is null then.

  bool two_pools() const { return memory != nullptr || on_hosts; }
  uint32_t memory_nodes() const;
  // The link over which rows go to memory nodes. Requires: two_pools().
  const std::string& memory_link() const;
  // Null for one pool.
  const cost::Device* MemoryDevice(const cost::Catalogue& catalogue) const;
};

struct Configuration {
  Hardware hardware;
  uint32_t replicas = 1;
  uint32_t stages = 1;
  uint32_t shards = 1;
  uint32_t prompt_replicas = 0;
  uint32_t lanes = 1;
  Partition partition = Partition::kRequest;
  cost::KvPolicy policy = cost::KvPolicy::kLocal;
};

// Seconds and bytes of every device and link that the catalogue's machines have, worked out once.
// The problem must outlive this.
class Rates {
 public:
  explicit Rates(const Problem& problem);
  cost::Cluster ClusterOf(const Configuration& configuration) const;

 private:
  struct MachineRates {
    cost::DeviceRates device;
    cost::LinkRates link;
    cost::LinkRates between;
    cost::DeviceRates host;
    cost::LinkRates card_to_host;  // From one card.
    cost::LinkRates host_to_card;  // To one processor, to which several cards have links.
    cost::LinkRates host_network;  // From one processor to other machines.
  };
  static void PutOnHosts(const Hardware& hardware, const MachineRates& machine,
                         cost::Cluster& cluster);

  const Problem& problem_;
  std::map<const cost::Machine*, MachineRates> machines_;
};

// Every choice of machines within the budget and the number of machines. Compute machines may be of
// any kind, memory machines too; one pool has no memory machines, nor have compute machines whose
// own processors are memory nodes.
std::vector<Hardware> AllHardware(const Problem& problem);

// Every way to use the machines: replicas of stages of shards (shards within one machine, in powers
// of two), prompts inline or on up to four replicas, lanes, partitions and policies.
std::vector<Configuration> AllConfigurations(const Problem& problem, const Hardware& hardware);

// Whether K and V of prompts' beginnings are kept for others that begin alike, in the cluster that
// a plan's file describes: where tokens of prompts may be rows (SchedulerOptionsOf()).
bool KeepsPrefixes(const Problem& problem, const Configuration& configuration);

// "2 x h100-1 + 3 x epyc-9654", "1 x h100-8 + its host".
std::string HardwareName(const Hardware& hardware);
// "2 replicas of 2 stages, 3 lanes, attend_remote by request, prompts inline".
std::string ArrangementName(const Configuration& configuration);

}  // namespace lamina::planner
