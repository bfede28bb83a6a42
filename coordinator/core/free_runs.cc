// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/free_runs.h"

#include <iterator>

#include "common/check.h"

namespace lamina::core {
namespace {

// How many runs the choices "near" and "last freed" look at, on either side. Enough to find a long
// neighbour after churn, small enough that a choice costs no more than the tree operations.
constexpr int kRunsLookedAt = 8;

}  // namespace

void FreeRuns::Insert(uint32_t start, Run run) {
  by_start_.emplace(start, run);
  by_tokens_.emplace(run.tokens, start);
  by_freed_.emplace(run.freed, start);
}

void FreeRuns::Erase(uint32_t start, Run run) {
  by_tokens_.erase({run.tokens, start});
  by_freed_.erase(run.freed);
  by_start_.erase(start);
}

void FreeRuns::Add(Extent extent) {
  LAMINA_CHECK(extent.tokens > 0);
  using Neighbour = std::optional<std::pair<uint32_t, Run>>;
  const auto at = by_start_.lower_bound(extent.first_slot);
  const Neighbour before = at == by_start_.begin() ? Neighbour() : *std::prev(at);
  const Neighbour next = at == by_start_.end() ? Neighbour() : *at;
  if (before) {
    const uint32_t before_end = before->first + before->second.tokens;
    LAMINA_CHECK(before_end <= extent.first_slot);
    if (before_end == extent.first_slot) {
      extent = {before->first, before->second.tokens + extent.tokens};
      Erase(before->first, before->second);
    }
  }
  if (next) {
    const uint32_t end = extent.first_slot + extent.tokens;
    LAMINA_CHECK(end <= next->first);
    if (end == next->first) {
      extent.tokens += next->second.tokens;
      Erase(next->first, next->second);
    }
  }
  Insert(extent.first_slot, {.tokens = extent.tokens, .freed = ++last_freed_});
}

void FreeRuns::Remove(Extent extent) {
  auto it = by_start_.upper_bound(extent.first_slot);
  LAMINA_CHECK(extent.tokens > 0 && it != by_start_.begin());
  --it;
  const uint32_t start = it->first;
  const Run run = it->second;
  const uint32_t run_end = start + run.tokens;
  const uint32_t end = extent.first_slot + extent.tokens;
  LAMINA_CHECK(end <= run_end);
  Erase(start, run);
  if (end < run_end) {
    Insert(end, {.tokens = run_end - end, .freed = run.freed});
  }
  if (start < extent.first_slot) {
    // Ages are unique. When both ends are left, the one before is a leftover of alignment: short,
    // so it becomes the oldest.
    const bool alone = end == run_end;
    Insert(start,
           {.tokens = extent.first_slot - start, .freed = alone ? run.freed : --oldest_freed_});
  }
}

std::optional<Extent> FreeRuns::StartingAt(uint32_t slot) const {
  const auto it = by_start_.find(slot);
  if (it == by_start_.end()) {
    return std::nullopt;
  }
  return Extent{it->first, it->second.tokens};
}

std::optional<Extent> FreeRuns::LongestNear(uint32_t slot, uint32_t least) const {
  std::optional<Extent> best;
  const auto consider = [&](uint32_t start, uint32_t tokens) {
    if (tokens >= least &&
        (!best || tokens > best->tokens || (tokens == best->tokens && start < best->first_slot))) {
      best = Extent{start, tokens};
    }
  };
  const auto middle = by_start_.lower_bound(slot);
  auto it = middle;
  for (int i = 0; i < kRunsLookedAt && it != by_start_.end(); ++i, ++it) {
    consider(it->first, it->second.tokens);
  }
  it = middle;
  for (int i = 0; i < kRunsLookedAt && it != by_start_.begin(); ++i) {
    --it;
    consider(it->first, it->second.tokens);
  }
  return best;
}

std::optional<Extent> FreeRuns::LastFreed(uint32_t least) const {
  auto it = by_freed_.rbegin();
  for (int i = 0; i < kRunsLookedAt && it != by_freed_.rend(); ++i, ++it) {
    const uint32_t tokens = by_start_.at(it->second).tokens;
    if (tokens >= least) {
      return Extent{it->second, tokens};
    }
  }
  return std::nullopt;
}

std::optional<Extent> FreeRuns::Longest() const {
  if (by_tokens_.empty()) {
    return std::nullopt;
  }
  const auto& [tokens, start] = *by_tokens_.rbegin();
  return Extent{start, tokens};
}

}  // namespace lamina::core
