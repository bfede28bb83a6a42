// SPDX-License-Identifier: Apache-2.0
//
// FetchSplit: which of the tokens before a run of rows come as activations, from which the compute
// node makes K and V again, and which as K and V. Both sides compute the same.
//
// - Path recompute: memory nodes keep both, but of bare tokens (SequenceJoin::bare_tokens) K and V
//   alone. The step's plan says how many of those that have slots come as activations: the first
//   ones that have some. What a window has released is neither counted nor made again.
// - Path fetch: where a slot holds one of them (policy fetch_hybrid), the token's slot says it.
//
// Threading: plain values.   Allocation: the lists.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"
#include "plan/slot_tables.h"

namespace lamina::plan {

// Consecutive tokens that come alike.
struct FetchStretch {
  uint32_t tokens = 0;
  bool activations = false;
  friend bool operator==(const FetchStretch&, const FetchStretch&) = default;
};

struct FetchSplit {
  FetchRun run;
  std::vector<FetchStretch> stretches;  // Cover the tokens before the run, in order.
};

// `share` kRecomputeUnit-ths of the tokens that have slots (StepPlan::recomputed), in whole tiles:
// the first ones behind `bare` that have no activations, as far as there are so many. All of them,
// where none is bare, are not cut to tiles, since a tile of K and V less comes then. The first
// `released` tokens have no slots, and come as K and V, which nobody reads.
FetchSplit SplitByShare(uint32_t before, uint32_t tokens, uint32_t share, uint32_t bare = 0,
                        uint32_t released = 0);

// By the slots of the sequence. Tokens without slots come as K and V, which nobody reads.
// Requires: it has slots for `before` tokens at least.
FetchSplit SplitBySlots(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                        SlotKinds kinds);

// Where a memory node has what comes: the slots of the tokens of each kind, in order. `kinds`
// numbers the slots of a kind among themselves.
struct FetchSlots {
  std::vector<Extent> kv;
  std::vector<Extent> activations;
};
FetchSlots SlotsOf(const FetchSplit& split, absl::Span<const Extent> extents, SlotKinds kinds);

}  // namespace lamina::plan
