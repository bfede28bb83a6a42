// SPDX-License-Identifier: Apache-2.0
//
// PrefillLanes: the lanes of prefill only (prefill.mode dedicated). They come behind the lanes
// that decode, as many for each replica that takes prompts.
//
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

namespace lamina::plan {

struct PrefillLanes {
  uint32_t replicas = 0;
  uint32_t each = 1;

  uint32_t count() const { return replicas * each; }
  // The replica of the lane that `index` prefill lanes go before.
  uint32_t ReplicaOf(uint32_t index) const { return index / each; }
  friend bool operator==(const PrefillLanes&, const PrefillLanes&) = default;
};

// How many lanes keep a replica of so many stages, each of so many shards, busy: one on each stage,
// and another one while shards exchange parts.
inline uint32_t PrefillLanesOf(uint32_t stages, uint32_t shards) {
  return std::max(stages, shards > 1 ? 2u : 1u);
}

}  // namespace lamina::plan
