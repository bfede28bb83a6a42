// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/plan_hash.h"

#include <bit>

#include "tests/sim/fake_model.h"

namespace lamina::sim {
namespace {

void AddJoin(const plan::SequenceJoin& join, PlanHash& hash) {
  hash.Add(join.id);
  hash.Add(join.tokens.size());
  for (const TokenId token : join.tokens) {
    hash.Add(static_cast<uint64_t>(token));
  }
  hash.Add(join.prompt_tokens);
  hash.Add(join.parent);
  hash.Add(join.sampling.seed);
  hash.Add(join.tokens_max);
  hash.Add(join.end_tokens.size());
  hash.Add(join.tokens_min);
  hash.Add(join.memory_node);
  hash.Add(join.score ? 1 : 0);
}

void AddChunk(const plan::PrefillChunk& chunk, PlanHash& hash) {
  hash.Add(chunk.sequence);
  hash.Add(chunk.first_token);
  hash.Add(chunk.tokens);
  hash.Add(chunk.scratch_offset);
  hash.Add(chunk.last ? 1 : 0);
}

}  // namespace

void PlanHash::Add(uint64_t value) { value_ = Mix(value_ ^ Mix(value + 0x9e3779b97f4a7c15ULL)); }

void PlanHash::Add(const plan::StepPlan& plan) {
  Add(plan.epoch);
  Add(plan.lane);
  Add(plan.step);
  Add(plan.leaves.size());
  for (const auto& [id] : plan.leaves) {
    Add(id);
  }
  for (const plan::SlotRelease& release : plan.releases) {
    Add(release.sequence);
    Add(release.tokens);
  }
  Add(plan.joins.size());
  for (const plan::SequenceJoin& join : plan.joins) {
    AddJoin(join, *this);
  }
  Add(plan.allocations.size());
  for (const plan::SlotAllocation& allocation : plan.allocations) {
    Add(allocation.sequence);
    Add(allocation.extent.first_slot);
    Add(allocation.extent.tokens);
    Add(allocation.memory_node);
  }
  Add(plan.rows.size());
  for (const plan::DecodeRow& row : plan.rows) {
    Add(row.sequence);
    Add(row.position);
  }
  Add(plan.chunks.size());
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    AddChunk(chunk, *this);
  }
  Add(plan.chunking.chunks);
  Add((plan.chunking.by_heads ? 1 : 0) + (plan.chunking.query_first ? 2 : 0));
}

void PlanHash::Add(const core::Events& events) {
  for (const core::TokenEvent& event : events.tokens) {
    Add(event.sequence);
    Add(event.index);
    Add(static_cast<uint64_t>(event.token.token));
  }
  for (const core::ScoreEvent& event : events.scores) {
    Add(event.sequence);
    for (const float logprob : event.logprobs) {
      Add(std::bit_cast<uint32_t>(logprob));
    }
  }
  for (const core::FinishEvent& event : events.finished) {
    Add(event.sequence);
    Add(static_cast<uint64_t>(event.reason));
    Add(static_cast<uint64_t>(event.status.code()));
  }
  for (const plan::SequenceId id : events.preempted) {
    Add(id);
  }
}

void PlanHash::Add(const core::SchedulerStats& stats) {
  Add(stats.waiting);
  Add(stats.running);
  Add(stats.preemptions);
  Add(stats.tokens_committed);
  Add(stats.rows_discarded);
  Add(stats.lane_moves);
  Add(stats.lane_count.lanes);
  for (const core::SchedulerStats::LaneStats& lane : stats.lanes) {
    Add(lane.rows);
    Add(lane.context_tokens);
    Add(lane.step_planned);
    Add(lane.step_done);
  }
}

}  // namespace lamina::sim
