// SPDX-License-Identifier: Apache-2.0
//
// Worlds whose epochs prepare four paths of attention: who asks for which, and what must hold of
// the plans.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

// Forks ask for what their parents do. Some requests name no path, which is the remote one.
void ChoosePaths(Prng random, SimWorkload& workload) {
  workload.options.prefill_lanes = {};
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.fork_of != 0) {
        request.path = (&request - 1)->path;
        request.lossy = (&request - 1)->lossy;
      } else if (random.Chance(0.4)) {
        request.path =
            random.Chance(0.5) ? plan::AttentionPath::kFetch : plan::AttentionPath::kRecompute;
      } else if (random.Chance(0.3)) {
        request.path = plan::AttentionPath::kSparse;
        request.lossy = true;
      } else if (random.Chance(0.5)) {
        request.path = plan::AttentionPath::kRemote;
      }
    }
  }
}

// All that have work in a step attend by one path.
void SimNodes::CheckPaths(const plan::StepPlan& plan) {
  std::optional<plan::AttentionPath> path;
  const auto check = [&](plan::SequenceId id) {
    const auto entry = table_.find(id);
    if (entry == table_.end()) {
      return;  // The check of the work itself says so.
    }
    const plan::AttentionPath own = entry->second.join.path;
    if (path.value_or(own) != own) {
      Fail(absl::StrCat("lane ", plan.lane, " step ", plan.step, " has sequence ", id,
                        ", whose path is not that of the others there"));
    }
    path = own;
  };
  for (const plan::DecodeRow& row : plan.rows) {
    check(row.sequence);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    check(chunk.sequence);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    check(join.id);
  }
}

// What may come as an activation to a row of path recompute is there, and nothing is called bare
// that is not.
void SimNodes::CheckActivations(const Entry& entry, uint32_t position) {
  const uint32_t bare = entry.join.bare_tokens;
  if (StoresBare(entry)) {
    return bare == 0 ? void()
                     : Fail(absl::StrCat("sequence ", entry.join.id, " is told of ", bare,
                                         " bare tokens, and its path reads no activations"));
  }
  const auto is_bare = [&](uint32_t token) { return Seen(entry, token, position).bare; };
  for (uint32_t token = std::max(bare, entry.released); token < position; ++token) {
    if (is_bare(token)) {
      return Fail(absl::StrCat("sequence ", entry.join.id, " has no activation of token ", token,
                               ", and is told of ", bare, " bare ones"));
    }
  }
  // Cut, a sequence may miss tokens before bare ones, which count as bare, and what is left of a
  // span may end with a token that counts as one.
  const bool cut = options_.span_tokens > 0;
  if (cut ? bare > entry.join.tokens.size()
          : bare > position || (bare > entry.released && !is_bare(bare - 1))) {
    Fail(absl::StrCat("sequence ", entry.join.id, " is told of ", bare,
                      " bare tokens, of which the last one is not"));
  }
}

void SimWorld::ObservePaths(const plan::StepPlan& plan) {
  for (const auto& [id] : plan.leaves) {
    placed_in_.erase(id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    if (join.resident.tokens > 0) {
      placed_in_[join.id] = plan.lane;
      report_.reach.fetch_placed += join.path == plan::AttentionPath::kFetch ? 1 : 0;
    }
    const core::SequenceRequest& request = requests_.at(scheduler_.AnswerOf(join.id));
    const plan::AttentionPath wanted = request.path.value_or(plan::AttentionPath::kRemote);
    if (join.path != wanted) {
      Fail(absl::StrCat("sequence ", join.id, " joins with path ", static_cast<uint32_t>(join.path),
                        ", and its request asked for ", static_cast<uint32_t>(wanted)));
    }
    report_.reach.lossy_joins += request.lossy ? 1 : 0;
    report_.reach.bare_joins += join.bare_tokens > 0 ? 1 : 0;
    plan::AttentionPath& last = lane_paths_[plan.lane];
    report_.reach.path_changes += last != join.path;
    last = join.path;
  }
  for (const plan::DecodeRow& row : plan.rows) {
    const auto placed = placed_in_.find(row.sequence);
    if (placed != placed_in_.end() && placed->second != plan.lane) {
      ++report_.reach.placed_moved;
      placed->second = plan.lane;
    }
  }
  const auto other = [&](const auto& entry) {
    return entry.first != plan.lane && entry.second != lane_paths_[plan.lane] &&
           links_[entry.first].busy;
  };
  report_.reach.paths_side_by_side += std::any_of(lane_paths_.begin(), lane_paths_.end(), other);
}

}  // namespace lamina::sim
