// SPDX-License-Identifier: Apache-2.0
//
// What a seed decides: the limits of the scheduler, the nodes, the requests, and which faults come
// how often.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/scheduler.h"

namespace lamina::sim {

struct SimFaults {
  double cancel = 0;            // Probability for each request; at a random time.
  uint32_t epochs = 0;          // Membership changes, in each of which a node may be lost.
  Nanos message_delay_max = 0;  // Plans and results take up to this, each way.
  Nanos step_max = 0;           // Longest step; the shortest is 1 us.
};

struct SimArrival {
  Nanos time = 0;
  std::vector<core::SequenceRequest> requests;  // Submitted at once.
};

struct SimWorkload {
  core::SchedulerOptions options;
  bool priority_order = false;
  SimFaults faults;
  std::vector<SimArrival> arrivals;
  Nanos arrivals_end = 0;
};

SimWorkload MakeWorkload(Prng& random);

std::unique_ptr<core::ServiceOrder> OrderOf(const SimWorkload& workload);

// Most requests begin as an earlier one of the workload and its answer do, up to a random token.
void ContinueConversations(Prng random, SimWorkload& workload);

// Memory nodes have spill tiers, small ones, or in some worlds none. Prompts run in all lanes.
void HaveSpillTiers(uint64_t seed, SimWorkload& workload);

// Requests ask for one of four paths of attention, of which one is lossy and one keeps activations.
// Prompts run in all lanes.
void ChoosePaths(Prng random, SimWorkload& workload);

// Memory nodes have slots of two forms of K and V, each as many, and requests ask for one of them.
// Prompts run in all lanes.
void KeepTwoForms(Prng random, SimWorkload& workload);

// Two shares of each node, one for each form: those of bf16 come first.
std::vector<core::MemoryNodeShare> InTwoForms(std::vector<core::MemoryNodeShare> nodes);

// Memory nodes have slots of path hybrid alone, next to as many of other paths, and requests ask
// for one of three paths. Prompts run in all lanes.
void KeepHybridApart(Prng random, SimWorkload& workload);

// Two shares of each node: those of the other paths come first.
std::vector<core::MemoryNodeShare> WithHybridApart(std::vector<core::MemoryNodeShare> nodes);

// The nodes that hold KV are replicas with lanes of their own, one to three each. Sequences are not
// cut.
void KeepKvOnReplicas(uint64_t seed, SimWorkload& workload);

// Sequences are cut into spans over two to four memory nodes, which come and go.
void CutIntoSpans(uint64_t seed, SimWorkload& workload);

// Requests have one of three salts, of which one is empty; forks that of their parents.
void HaveSalts(Prng random, SimWorkload& workload);

// Many requests are beam searches.
void SearchBeams(Prng random, SimWorkload& workload);

// Many requests come with tokens that they have generated, as those that a coordinator goes on with
// when it has been started again. Call after what makes prompts and searches.
void ResumeRequests(Prng random, SimWorkload& workload);

}  // namespace lamina::sim
