// SPDX-License-Identifier: Apache-2.0
//
// ResidentKv: K and V of the most recent tokens of each sequence, which stay on the compute node,
// so that they need not come from memory nodes again (path sparse; alisa.txt V-A, phases I and II).
// Memory nodes have all tokens too: a lost compute node loses nothing.
//
//   Apply(plan)            who leaves, or joins, has none
//   BeginStep(lane, runs)  room for the rows of the step
//   First(), AppendSlots(), Fill()  what is here of the tokens before them, until the lane's next
//                                   step
//   Store(lane, ...)       once a layer
//
// While there is room every token stays that is made here. Then the oldest 16 tokens of the
// sequence that has most make room for those of one that has fewer, or the oldest 16 of its own, so
// that sequences of one length end with as much each. Sequences of other lanes' steps, which may
// read theirs, keep them. Tokens that were not made here, those of a prefix that was found or of a
// fork's parent, are not here.
//
// Threading: the data thread. Memory: the arena, which is made before. Allocation: when sequences
// get their first tokens, and until vectors are large enough.
// Cost: BeginStep() O(sequences) for each tile of 16 tokens, once the arena is full.

#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/kept_kv.h"
#include "compute_node/lane.h"
#include "compute_node/made_kv.h"
#include "compute_node/step_layout.h"
#include "kernels/kv_arena.h"
#include "kernels/matrix_view.h"
#include "plan/epoch_config.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ResidentKv final : public KeptKv {
 public:
  // `arena` has the epoch's layers; null: no token stays. References must outlive this.
  ResidentKv(const plan::EpochConfig& config, kernels::KvArena* arena);

  void Apply(const plan::StepPlan& plan);

  // These runs of the lane's step are next, each of one sequence; those of one sequence follow each
  // other, in any order.
  void BeginStep(uint32_t lane, absl::Span<const RowRun> runs);

  // The tokens of the sequence from this one on, up to the first row of its run, are here. No less
  // than `before`, the tokens in front of that, where none is.
  uint32_t First(plan::SequenceId id, uint32_t before) const;
  // Appends the slots of the tokens of `set`, of which token t is bit t % 64 of word t / 64.
  // Requires: none before First().
  void AppendSlots(plan::SequenceId id, absl::Span<const uint64_t> set,
                   std::vector<Extent>& slots) const;
  // Requires: none before First(), and Store() of the layer.
  void Fill(const Lane& lane, uint32_t layer, const RowRun& run, const plan::TokenSpan& tokens,
            const MadeKv::Into& into) const override;

  // Keeps k and v of the rows of the lane's step.
  // Shapes: qkv  [rows of the step, q | k | v], of the layer
  void Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv);

  // The layer's slots. Requires: some token is here.
  kernels::KvView View(uint32_t layer) const { return arena_->View(layer); }
  // Tokens that may stay at most.
  uint32_t tokens_max() const { return arena_ == nullptr ? 0 : arena_->slots(); }

 private:
  static constexpr uint32_t kTile = 16;  // Tokens that come and go together.
  static constexpr uint32_t kNoLane = UINT32_MAX;

  // Tokens [first, end) of a sequence; `tiles` begin with the one of token first_tile * kTile.
  struct Held {
    uint32_t first = 0;
    uint32_t end = 0;
    uint32_t first_tile = 0;
    std::deque<uint32_t> tiles;
    uint32_t lane = kNoLane;  // The lane whose step has rows of it.
  };

  void Drop(Held& held);
  // Frees the oldest tile.
  void DropOldest(Held& held);
  // Gives the sequence a tile for its next tokens, if one can be had.
  bool AddTile(Held& held, uint32_t lane);
  void Extend(Held& held, uint32_t lane, uint32_t tokens);
  uint32_t SlotOf(const Held& held, uint32_t token) const {
    return held.tiles[token / kTile - held.first_tile] * kTile + token % kTile;
  }

  const plan::EpochConfig& config_;
  kernels::KvArena* const arena_;
  std::vector<uint32_t> free_;  // Tiles.
  std::unordered_map<plan::SequenceId, Held> held_;
  std::vector<std::vector<RowRun>> lanes_;  // The runs of each lane's step.
  std::vector<Extent> slots_;               // One run's.
};

}  // namespace lamina::compute_node
