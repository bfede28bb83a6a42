// SPDX-License-Identifier: Apache-2.0
//
// Requests as a scheduler with a planted bug would understand them, plans as it would make them,
// and results as such nodes would.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

void SimWorld::Mutate(core::SequenceRequest& request) const {
  if (sim_.bug == PlantedBug::kSaltIgnored) {
    request.cache_salt.clear();
  }
}

void SimWorld::Mutate(const std::vector<core::MemoryNodeShare>& drained,
                      std::vector<core::MemoryNodeShare>& shares,
                      std::vector<std::string>& lost) const {
  for (const core::MemoryNodeShare& node : drained) {
    if (sim_.bug == PlantedBug::kDrainUnnoticed) {
      shares.push_back(node);
    } else if (sim_.bug == PlantedBug::kDrainIsLoss) {
      lost.push_back(node.name);
    }
  }
  for (core::MemoryNodeShare& share : shares) {
    if (sim_.bug == PlantedBug::kAddedTooLarge && absl::StartsWith(share.name, "added")) {
      share.slots *= 2;
    }
  }
}

void SimWorld::Mutate(plan::StepPlan& plan) {
  switch (sim_.bug) {
    case PlantedBug::kNone:
    case PlantedBug::kArenaWiped:
    case PlantedBug::kCancelLost:
    case PlantedBug::kSaltIgnored:
    case PlantedBug::kCachedMiscounted:
    case PlantedBug::kTailShared:
    case PlantedBug::kTailsUncounted:
    case PlantedBug::kClosedTooEarly:
    case PlantedBug::kTailsWiped:
    case PlantedBug::kCopyNotAwaited:
    case PlantedBug::kCopyReadNotAwaited:
    case PlantedBug::kDrainUnnoticed:
    case PlantedBug::kDrainIsLoss:
    case PlantedBug::kAddedTooLarge:
    case PlantedBug::kTierTooSmall:
    case PlantedBug::kScoreOff:
    case PlantedBug::kTokenStale:
    case PlantedBug::kTokenMissing:
    case PlantedBug::kSpillNotAwaited:
    case PlantedBug::kRestoreNotAwaited:
    case PlantedBug::kSpanNotAwaited:
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
    case PlantedBug::kSlotsOfOthers:
      for (plan::SequenceJoin& join : plan.joins) {
        join.memory_node %= static_cast<uint32_t>(memory_nodes_.size());
      }
      for (plan::SlotAllocation& allocation : plan.allocations) {
        allocation.memory_node %= static_cast<uint32_t>(memory_nodes_.size());
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
    case PlantedBug::kPlacesShared:
      for (plan::SequenceJoin& join : plan.joins) {
        join.resident.place = 0;
      }
      return;
    case PlantedBug::kSpanElsewhere:
      for (plan::SlotAllocation& allocation : plan.allocations) {
        const auto nodes = static_cast<uint32_t>(memory_nodes_.size());
        allocation.memory_node = (allocation.memory_node + (plan.joins.empty() ? 1 : 0)) % nodes;
      }
      return;
    case PlantedBug::kHoleLeft:
      return LeaveHoles(plan);
    case PlantedBug::kDropLost:
      plan.spill_drops.clear();
      return;
    case PlantedBug::kCopyShifted:
    case PlantedBug::kCopySkipLost:
    case PlantedBug::kCopyDropLost:
      return MutateCopies(plan);
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

void SimWorld::Mutate(core::Events& events) const {
  for (core::TokenEvent& event : events.tokens) {
    event.cached_tokens += sim_.bug == PlantedBug::kCachedMiscounted ? 1u : 0u;
  }
}

void SimWorld::MutateCopies(plan::StepPlan& plan) const {
  for (plan::SpillOut& spill : plan.spills_out) {
    if (sim_.bug == PlantedBug::kCopyShifted && spill.sequence == 0) {
      uint32_t& first = spill.slots.front().first_slot;
      first -= first > 0 ? 1u : 0u;
    }
  }
  for (plan::SpillIn& spill : plan.spills_in) {
    spill.skip = sim_.bug == PlantedBug::kCopySkipLost ? 0 : spill.skip;
  }
  // A plan that would be empty without its drops would be found by that.
  if (sim_.bug == PlantedBug::kCopyDropLost && (!plan.rows.empty() || !plan.chunks.empty())) {
    std::erase_if(plan.spill_drops,
                  [this](const plan::SpillDrop& drop) { return nodes_->IsCopy(drop.spill); });
  }
}

void SimWorld::Mutate(plan::StepResult& result) {
  if (sim_.bug == PlantedBug::kTokenMissing && !result.tokens.empty()) {
    result.tokens.pop_back();
  }
  for (plan::ScoredTokens& scored : result.scores) {
    scored.logprobs.back() -= sim_.bug == PlantedBug::kScoreOff ? 1.0f : 0.0f;
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
