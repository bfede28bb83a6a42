// SPDX-License-Identifier: Apache-2.0
//
// Worlds whose memory nodes have slots of two forms of K and V, each a share of its own: who asks
// for which.

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

std::vector<core::MemoryNodeShare> InTwoForms(std::vector<core::MemoryNodeShare> nodes) {
  std::vector<core::MemoryNodeShare> shares;
  for (const KvForm form : {KvForm::kBF16, KvForm::kInt8}) {
    for (core::MemoryNodeShare& node : nodes) {
      node.form = form;
      shares.push_back(node);
    }
  }
  return shares;
}

// Forks ask for what their parents do. Some requests name no form, and have that of the others.
void KeepTwoForms(Prng random, SimWorkload& workload) {
  core::SchedulerOptions& options = workload.options;
  options.prefill_lanes = {};
  options.int8_tails = options.running_max;
  options.cached_block_tokens = 1 + static_cast<uint32_t>(random.Below(16));
  options.int8_block_tokens = 1 + static_cast<uint32_t>(random.Below(16));
  options.memory_nodes = InTwoForms(options.memory_nodes);
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.fork_of != 0) {
        request.path = (&request - 1)->path;
      } else if (random.Chance(0.8)) {
        request.path =
            random.Chance(0.5) ? plan::AttentionPath::kRemote : plan::AttentionPath::kRemoteInt8;
      }
    }
  }
}

std::vector<core::MemoryNodeShare> SimWorld::Shares() const {
  return sim_.forms ? InTwoForms(memory_nodes_) : memory_nodes_;
}

// The slots of each form are memory of their own, which a node keeps, or loses, as one.
uint64_t MemoryOf(const core::MemoryNodeShare& share) {
  constexpr uint64_t kInt8 = uint64_t{1} << 63;
  return share.arena == 0 || share.form != KvForm::kInt8 ? share.arena : share.arena | kInt8;
}

// A sequence lives in slots of its form. With INT8 it has a tail, and forks of it would share one.
void SimNodes::CheckForm(const plan::SequenceJoin& join) {
  if (!options_.MayHold(options_.memory_nodes[join.memory_node], join.path)) {
    return Fail(absl::StrCat("sequence ", join.id, " joins share ", join.memory_node,
                             ", whose slots have another form than its path ",
                             static_cast<uint32_t>(join.path)));
  }
  if (options_.FormOf(join.path) == KvForm::kBF16) {
    return;
  }
  uint32_t tails = 0;
  for (const auto& [id, entry] : table_) {
    tails += options_.FormOf(entry.join.path) == KvForm::kInt8;
  }
  if (tails > options_.int8_tails || join.parent != 0) {
    Fail(absl::StrCat("sequence ", join.id, " joins as the ", tails, "th of at most ",
                      options_.int8_tails, ", each with an open block of its own"));
  }
}

}  // namespace lamina::sim
