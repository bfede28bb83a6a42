// SPDX-License-Identifier: Apache-2.0
//
// Worlds whose memory nodes have slots of two forms of K and V, each a share of its own: who asks
// for which.

#include <optional>
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
  return sim_.forms    ? InTwoForms(memory_nodes_)
         : sim_.hybrid ? WithHybridApart(memory_nodes_)
                       : memory_nodes_;
}

// A sequence lives in slots of its form. With INT8 it has a tail, and forks of it would share one.
void SimNodes::CheckForm(Entry& entry) {
  const plan::SequenceJoin& join = entry.join;
  if (!options_.MayHold(options_.memory_nodes[join.memory_node], join.path)) {
    return Fail(absl::StrCat("sequence ", join.id, " joins share ", join.memory_node,
                             ", whose slots are not for its path ",
                             static_cast<uint32_t>(join.path)));
  }
  if (options_.FormOf(join.path) == KvForm::kBF16) {
    return;
  }
  uint32_t tails = 0;
  for (const auto& [id, other] : table_) {
    tails += options_.FormOf(other.join.path) == KvForm::kInt8;
  }
  const bool cut = options_.span_tokens > 0;
  const auto ahead = ahead_tails_.extract(join.id);
  for (uint32_t node = 0; node < tails_.size(); ++node) {
    if (!cut && node != join.memory_node) {
      continue;
    }
    const std::optional<uint32_t> tail =
        ahead.empty() ? tails_[node].owners.Join(join.id) : std::optional<uint32_t>(ahead.mapped());
    if (tails > options_.int8_tails || join.parent != 0 || !tail) {
      return Fail(absl::StrCat("sequence ", join.id, " joins as the ", tails, "th of at most ",
                               options_.int8_tails, ", each with an open block of its own"));
    }
    std::vector<SimSlot>* const block = TailOf(node, *tail);
    entry.tail = node == join.memory_node ? block : entry.tail;
    if (cut) {
      entry.tails.push_back(block);
    }
  }
}

const SimSlot& SimNodes::Seen(const Entry& entry, size_t token, size_t position) const {
  const size_t block = options_.int8_block_tokens;
  const bool closed = entry.tail == nullptr || token / block < position / block;
  return closed ? SlotOf(entry, token) : entry.TailWith(token)[token % block];
}

// With INT8 the tail alone, until the block is whole.
void SimNodes::Store(Entry& entry, size_t token, const SimSlot& stored) {
  if (entry.tail == nullptr) {
    return SlotOf(entry, token).Store(stored);
  }
  const size_t block = options_.int8_block_tokens;
  const size_t lacks = bug_ == PlantedBug::kClosedTooEarly ? 1 : 0;
  const size_t end = token + 1 + lacks;
  std::vector<SimSlot>& tail = entry.TailWith(token);
  tail[token % block].Store(stored);
  for (size_t i = end - block; end % block == 0 && i + lacks < end; ++i) {
    if (i >= entry.released) {
      SlotOf(entry, i).Store(tail[i % block]);
    }
  }
}

}  // namespace lamina::sim
