// SPDX-License-Identifier: Apache-2.0
//
// How often plans had what is rare.

#include <algorithm>
#include <cstdint>

#include "tests/sim/sim_world.h"

namespace lamina::sim {
namespace {

// Where the work of a sequence begins in the plan; 0 if it has none there.
uint32_t FirstTokenOf(const plan::StepPlan& plan, plan::SequenceId sequence) {
  uint32_t first = UINT32_MAX;
  for (const plan::DecodeRow& row : plan.rows) {
    first = row.sequence == sequence ? std::min(first, row.position) : first;
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    first = chunk.sequence == sequence ? std::min(first, chunk.first_token) : first;
  }
  return first == UINT32_MAX ? 0 : first;
}

// Tokens that a sequence which joins need not compute, those read back from a tier among them.
uint32_t CachedTokensOf(const plan::StepPlan& plan, plan::SequenceId sequence) {
  uint32_t tokens = FirstTokenOf(plan, sequence);
  for (const plan::SpillIn& spill : plan.spills_in) {
    tokens = spill.sequence == sequence ? std::max(tokens, spill.first + spill.tokens) : tokens;
  }
  return tokens;
}

// Tokens behind the last whole block that a sequence joins with, but for what beams share.
uint32_t OpenTokensOf(const plan::StepPlan& plan, const plan::SequenceJoin& join,
                      const core::SchedulerOptions& options) {
  if (options.span_tokens > 0 || options.windows.longest() > 0) {
    return 0;
  }
  const bool int8 = options.FormOf(join.path) == KvForm::kInt8;
  return FirstTokenOf(plan, join.id) %
         (int8 ? options.int8_block_tokens : options.cached_block_tokens);
}

}  // namespace

void SimWorld::Observe(const plan::StepPlan& plan) {
  SimReach& reach = report_.reach;
  reach.releases += plan.releases.size();
  for (const plan::SlotRelease& release : plan.releases) {
    reach.releases_beyond_nodes += release.tokens > SlotsOfLongest();
  }
  reach.leave_only_plans += plan.rows.empty() && plan.chunks.empty();
  reach.chunks_with_rows += !plan.rows.empty() && !plan.chunks.empty();
  reach.several_prompts_in_a_step += plan.chunks.size() > 1;
  reach.rows_in_chunks += plan.chunking.chunks > 1 && !plan.chunking.by_heads;
  reach.heads_in_chunks += plan.chunking.by_heads;
  if (IsPrefillLane(plan.lane)) {
    ObservePrefill(plan);
  }
  for (const auto& [id] : plan.leaves) {
    reach.left_without_row += !last_row_.contains(id);
    last_row_.erase(id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    reach.forks_shared += join.parent != 0;
    const core::SequenceRequest& request = requests_.at(scheduler_.AnswerOf(join.id));
    reach.forks_unshared += join.parent == 0 && request.fork_of != 0;
    if (request.beams.width == 0) {
      reach.open_blocks_kept += OpenTokensOf(plan, join, workload_.options);
      auditor_.Joined(join, CachedTokensOf(plan, join.id));
    }
    if (request.beams.width > 0 && join.tokens.size() > join.prompt_tokens) {
      const bool row =
          std::any_of(plan.rows.begin(), plan.rows.end(), [&](const plan::DecodeRow& one) {
            return one.sequence == join.id && one.position + 1 == join.tokens.size();
          });
      ++(row ? reach.beams_shared : reach.beams_queued);
      reach.beams_behind_prefill += row && prefill_lanes_.count() > 0;
    }
  }
  for (const plan::DecodeRow& row : plan.rows) {
    const auto last = last_row_.find(row.sequence);
    reach.prompts_in_rows += last != last_row_.end() && last->second == plan.step;
    reach.rows_sat_out += last != last_row_.end() && last->second + 1 < plan.step;
    last_row_[row.sequence] = plan.step;
  }
}

void SimWorld::ObservePrefill(const plan::StepPlan& plan) {
  SimReach& reach = report_.reach;
  const auto busy = [&](uint32_t lane) { return links_[lane].busy && lane != plan.lane; };
  const auto tail = [&](uint32_t lane) { return schedule_->HeadNodeOf(lane, 1, /*pinned=*/true); };
  bool decodes = false;
  bool prefills = false;
  bool own = false;
  for (uint32_t lane = 0; lane < links_.size(); ++lane) {
    const bool same = IsPrefillLane(lane) && tail(lane) == tail(plan.lane);
    (same ? own : IsPrefillLane(lane) ? prefills : decodes) |= busy(lane);
  }
  reach.chunks_dedicated += !plan.chunks.empty();
  reach.chunks_with_lanes += !plan.chunks.empty() && decodes;
  reach.prefill_nodes_side_by_side += !plan.chunks.empty() && prefills;
  const plan::Stage& node = stages_[tail(plan.lane)];
  const bool several = node.layers < kLayers || node.shard.count > 1;
  reach.chunks_on_several_nodes += !plan.chunks.empty() && several;
  reach.prefill_lanes_side_by_side += !plan.chunks.empty() && several && own;
  for (const plan::SequenceJoin& join : plan.joins) {
    reach.preempted_in_prefill += left_prefill_.erase(join.id);
  }
  for (const auto& [id] : plan.leaves) {
    left_prefill_.insert(id);
  }
}

}  // namespace lamina::sim
