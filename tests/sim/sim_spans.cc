// SPDX-License-Identifier: Apache-2.0
//
// Worlds where sequences are cut into spans over memory nodes, which are lost more often than
// elsewhere: what is left of a sequence is kept, and what is missing is computed again.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

// Each node has room for a span at least, as in an epoch that can form.
void CutIntoSpans(uint64_t seed, SimWorkload& workload) {
  core::SchedulerOptions& options = workload.options;
  if (seed % 9 != 0) {
    options.prefill_lanes = {};  // Without them sequences are kept.
  }
  const auto pieces = static_cast<uint32_t>(2 + seed % 7);
  options.span_tokens = (options.sequence_tokens_max + pieces - 1) / pieces;
  const bool int8 = options.kv == KvForm::kInt8;  // Then no block lies in two spans.
  if (seed % 8 != 1) {  // Else a block of the cache would mostly be in two spans, and none is kept.
    options.cached_block_tokens = static_cast<uint32_t>(1 + seed / 8 % 5);
  }
  if (seed % 8 != 1 || int8) {
    const uint32_t block = int8 ? options.int8_block_tokens : options.cached_block_tokens;
    options.span_tokens = (options.span_tokens + block - 1) / block * block;
  }
  options.prompt_rows_max = static_cast<uint32_t>(seed % 3 * 5);
  while (options.memory_nodes.size() < 2 + seed % 3) {
    core::MemoryNodeShare added = options.memory_nodes.front();
    added.name = absl::StrCat("more", options.memory_nodes.size());
    added.arena = added.arena == 0 ? 0 : options.memory_nodes.size() + 1;
    options.memory_nodes.push_back(std::move(added));
  }
  for (core::MemoryNodeShare& node : options.memory_nodes) {
    node.slots = std::max(node.slots, options.span_tokens);
    node.spill.nodes = 1;  // Each reports for its own spans.
  }
  workload.faults.epochs = 1 + static_cast<uint32_t>(seed % 4);
}

// A span lies on one node, and no extent in two of them.
uint32_t SimNodes::NodeOf(const Entry& entry, const plan::SlotAllocation& allocation) {
  const uint32_t span = options_.span_tokens;
  if (span == 0) {
    return entry.join.memory_node;
  }
  const size_t before = entry.slots.size() % span;
  if (allocation.memory_node >= slots_.size() || before + allocation.extent.tokens > span ||
      (before > 0 && entry.nodes.back() != allocation.memory_node)) {
    Fail(absl::StrCat("sequence ", allocation.sequence, " gets slots of node ",
                      allocation.memory_node, " for tokens of another span"));
  }
  return allocation.memory_node;
}

// What the memory nodes can hold of one sequence that is alone.
uint64_t SimWorld::SlotsOfLongest() const {
  const uint32_t span = workload_.options.span_tokens;
  uint64_t slots = 0;
  for (const core::MemoryNodeShare& node : memory_nodes_) {
    slots = span == 0 ? std::max<uint64_t>(slots, node.slots) : slots + node.slots / span * span;
  }
  return slots;
}

// Which rows of prompts go on behind tokens that were kept.
void SimWorld::ObserveSpans(const plan::StepPlan& plan) {
  for (const plan::SequenceJoin& join : plan.joins) {
    prompts_[join.id] = {.tokens = static_cast<uint32_t>(join.tokens.size())};
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    prompts_[chunk.sequence].next = chunk.first_token + chunk.tokens;
  }
  behind_kept_.clear();
  for (const plan::DecodeRow& row : plan.rows) {
    PromptRows& prompt = prompts_[row.sequence];
    if (row.position >= prompt.tokens) {
      continue;
    }
    if (row.position > prompt.next) {
      behind_kept_.push_back(row);
      report_.reach.kept_behind_holes += prompt.next > 0 ? row.position - prompt.next : 0;
    }
    prompt.next = row.position + 1;
  }
}

// Takes the first missing token behind tokens that were kept out of the plan, if another one
// follows.
void SimWorld::LeaveHoles(plan::StepPlan& plan) const {
  for (const plan::DecodeRow& first : behind_kept_) {
    const plan::DecodeRow next{.sequence = first.sequence, .position = first.position + 1};
    if (std::find(plan.rows.begin(), plan.rows.end(), next) != plan.rows.end()) {
      std::erase(plan.rows, first);
    }
  }
}

}  // namespace lamina::sim
