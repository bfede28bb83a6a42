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

void FreeRuns::Insert(Extent extent, int64_t freed) {
  const uint32_t end = extent.first_slot + extent.tokens;
  by_end_.emplace(end, Run{.tokens = extent.tokens, .indexed = extent.tokens, .freed = freed});
  by_tokens_.emplace(extent.tokens, end);
  by_freed_.emplace(freed, end);
}

void FreeRuns::Erase(Runs::iterator run) {
  by_tokens_.erase({run->second.indexed, run->first});
  by_freed_.erase(run->second.freed);
  by_end_.erase(run);
}

void FreeRuns::Add(Extent extent) {
  LAMINA_CHECK(extent.tokens > 0);
  const uint32_t end = extent.first_slot + extent.tokens;
  const auto behind = by_end_.upper_bound(end);
  if (behind != by_end_.end()) {
    const Extent next = ExtentOf(*behind);
    LAMINA_CHECK(end <= next.first_slot);
    if (end == next.first_slot) {
      extent.tokens += next.tokens;
      Erase(behind);
    }
  }
  const auto before = by_end_.lower_bound(extent.first_slot);
  if (before != by_end_.end()) {
    const Extent touched = ExtentOf(*before);
    LAMINA_CHECK(before->first == extent.first_slot || touched.first_slot >= end);
    if (before->first == extent.first_slot) {
      extent = {touched.first_slot, touched.tokens + extent.tokens};
      Erase(before);
    }
  }
  Insert(extent, ++last_freed_);
}

void FreeRuns::Remove(Extent extent) {
  const auto it = by_end_.upper_bound(extent.first_slot);
  LAMINA_CHECK(extent.tokens > 0 && it != by_end_.end());
  const Extent run = ExtentOf(*it);
  const uint32_t run_end = it->first;
  const uint32_t end = extent.first_slot + extent.tokens;
  LAMINA_CHECK(run.first_slot <= extent.first_slot && end <= run_end);
  if (run.first_slot == extent.first_slot && end < run_end) {
    it->second.tokens = run_end - end;
    return;
  }
  const int64_t freed = it->second.freed;
  Erase(it);
  if (end < run_end) {
    Insert({end, run_end - end}, freed);
  }
  if (run.first_slot < extent.first_slot) {
    // Ages are unique. When both ends are left, the one before is a leftover of alignment: short,
    // so it becomes the oldest.
    const bool alone = end == run_end;
    Insert({run.first_slot, extent.first_slot - run.first_slot}, alone ? freed : --oldest_freed_);
  }
}

uint32_t FreeRuns::TakeFrom(uint32_t slot, uint32_t tokens) {
  LAMINA_CHECK(tokens > 0);
  const auto it = by_end_.upper_bound(slot);
  if (it == by_end_.end() || ExtentOf(*it).first_slot != slot) {
    return 0;
  }
  if (tokens < it->second.tokens) {
    it->second.tokens -= tokens;
    return tokens;
  }
  const uint32_t all = it->second.tokens;
  Erase(it);
  return all;
}

std::optional<Extent> FreeRuns::StartingAt(uint32_t slot) const {
  const auto it = At(slot);
  if (it == by_end_.end() || ExtentOf(*it).first_slot != slot) {
    return std::nullopt;
  }
  return ExtentOf(*it);
}

std::optional<Extent> FreeRuns::LongestNear(uint32_t slot, uint32_t least) const {
  std::optional<Extent> best;
  const auto consider = [&](const Extent& run) {
    if (run.tokens >= least &&
        (!best || run.tokens > best->tokens ||
         (run.tokens == best->tokens && run.first_slot < best->first_slot))) {
      best = run;
    }
  };
  // The first run that starts at the slot or behind it.
  auto middle = At(slot);
  if (middle != by_end_.end() && ExtentOf(*middle).first_slot < slot) {
    ++middle;
  }
  auto it = middle;
  for (int i = 0; i < kRunsLookedAt && it != by_end_.end(); ++i, ++it) {
    consider(ExtentOf(*it));
  }
  it = middle;
  for (int i = 0; i < kRunsLookedAt && it != by_end_.begin(); ++i) {
    --it;
    consider(ExtentOf(*it));
  }
  return best;
}

std::optional<Extent> FreeRuns::LastFreed(uint32_t least) const {
  auto it = by_freed_.rbegin();
  for (int i = 0; i < kRunsLookedAt && it != by_freed_.rend(); ++i, ++it) {
    const Extent run = ExtentOf(*by_end_.find(it->second));
    if (run.tokens >= least) {
      return run;
    }
  }
  return std::nullopt;
}

// The first that is as long as it is said to be: no other one is longer than said.
std::optional<Extent> FreeRuns::Longest() {
  while (!by_tokens_.empty()) {
    const auto longest = std::prev(by_tokens_.end());
    const auto run = by_end_.find(longest->second);
    if (run->second.indexed == run->second.tokens) {
      return ExtentOf(*run);
    }
    by_tokens_.erase(longest);
    run->second.indexed = run->second.tokens;
    by_tokens_.emplace(run->second.indexed, run->first);
  }
  return std::nullopt;
}

}  // namespace lamina::core
