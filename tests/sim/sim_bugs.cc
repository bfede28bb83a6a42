// SPDX-License-Identifier: Apache-2.0
//
// Requests as a scheduler with a planted bug would understand them, plans as it would make them,
// and results as such nodes would.

#include <algorithm>

#include "tests/sim/sim_world.h"

namespace lamina::sim {

void SimWorld::Mutate(core::SequenceRequest& request) const {
  if (sim_.bug == PlantedBug::kSaltIgnored) {
    request.cache_salt.clear();
  }
}

void SimWorld::Mutate(plan::StepPlan& plan) {
  switch (sim_.bug) {
    case PlantedBug::kNone:
    case PlantedBug::kArenaWiped:
    case PlantedBug::kCancelLost:
    case PlantedBug::kSaltIgnored:
    case PlantedBug::kTokenStale:
    case PlantedBug::kTokenMissing:
    case PlantedBug::kSpillNotAwaited:
    case PlantedBug::kRestoreNotAwaited:
      return;
    case PlantedBug::kPathOfAnother:
      for (plan::SequenceJoin& join : plan.joins) {
        if (scheduler_.AnswerOf(join.id) % 3 != 0) {
          continue;
        }
        join.path = join.path == plan::AttentionPath::kRemote ? plan::AttentionPath::kFetch
                                                              : plan::AttentionPath::kRemote;
      }
      return;
    case PlantedBug::kFormOfAnother:
      for (plan::SequenceJoin& join : plan.joins) {
        if (join.id % 3 == 0) {
          join.path = join.path == plan::AttentionPath::kRemote ? plan::AttentionPath::kRemoteInt8
                                                                : plan::AttentionPath::kRemote;
        }
      }
      return;
    case PlantedBug::kBareNotSaid:
      for (plan::SequenceJoin& join : plan.joins) {
        join.bare_tokens = 0;
      }
      return;
    case PlantedBug::kHomeOfAnother:
      for (plan::SequenceJoin& join : plan.joins) {
        const auto replicas = static_cast<uint32_t>(memory_nodes_.size());
        join.memory_node = (join.memory_node + (join.id % 3 == 0 ? 1 : 0)) % replicas;
      }
      return;
    case PlantedBug::kHoleLeft:
      return LeaveHoles(plan);
    case PlantedBug::kDropLost:
      plan.spill_drops.clear();
      return;
    case PlantedBug::kLeaveLost:
      plan.leaves.clear();
      return;
    case PlantedBug::kReleaseTooEarly:
      for (plan::SlotRelease& release : plan.releases) {
        release.tokens += workload_.options.release_tokens;
      }
      return;
    case PlantedBug::kLeaveLate:
      std::swap(plan.leaves, leaves_late_[plan.lane]);
      return;
    case PlantedBug::kSlotGivenTwice:
      for (plan::SlotAllocation& allocation : plan.allocations) {
        allocation.extent.first_slot -= plan.joins.empty() && allocation.extent.first_slot > 0;
      }
      return;
    case PlantedBug::kScratchShared:
      for (plan::PrefillChunk& chunk : plan.chunks) {
        chunk.scratch_offset = 0;
      }
      return;
    case PlantedBug::kPositionOff:
      for (plan::DecodeRow& row : plan.rows) {
        ++row.position;
      }
      return;
    case PlantedBug::kPrefixTooLong:
      for (const plan::SequenceJoin& join : plan.joins) {
        const auto row =
            std::find_if(plan.rows.begin(), plan.rows.end(),
                         [&](const plan::DecodeRow& r) { return r.sequence == join.id; });
        if (row != plan.rows.end() && row->position + 1 < join.tokens.size()) {
          plan.rows.erase(row);
        }
      }
      return;
    case PlantedBug::kBeamsSwapped:
      for (size_t i = 1; i < plan.joins.size(); ++i) {
        plan::SequenceJoin& a = plan.joins[i - 1];
        plan::SequenceJoin& b = plan.joins[i];
        if (scheduler_.AnswerOf(a.id) == scheduler_.AnswerOf(b.id)) {
          std::swap(a.tokens.back(), b.tokens.back());
        }
      }
      return;
    case PlantedBug::kCommittedWrong:
      for (plan::SequenceJoin& join : plan.joins) {
        join.tokens.back() ^= join.tokens.size() > join.prompt_tokens;
      }
      return;
  }
}

void SimWorld::Mutate(plan::StepResult& result) {
  if (sim_.bug == PlantedBug::kTokenMissing && !result.tokens.empty()) {
    result.tokens.pop_back();
  }
  for (plan::SampledToken& token : result.tokens) {
    const auto last = last_token_.find(token.sequence);
    const TokenId right = token.token;
    if (sim_.bug == PlantedBug::kTokenStale && last != last_token_.end()) {
      token.token = last->second;
    }
    last_token_[token.sequence] = right;
  }
}

}  // namespace lamina::sim
