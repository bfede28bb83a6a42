// SPDX-License-Identifier: Apache-2.0
//
// ResidentKv: K and V of recent tokens as bf16 (recent_tokens.h), in tiles of 16 tokens
// (resident_tiles.h).
//
// While there is room every token stays that is made here, then the most recent ones. Tokens that
// were not made here, those of a prefix that was found or of a fork's parent, are not here.
//
// Threading: the data thread. Memory: the arena, which is made before. Allocation: when sequences
// get their first tokens, and until vectors are large enough.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/kept_kv.h"
#include "compute_node/lane.h"
#include "compute_node/made_kv.h"
#include "compute_node/recent_tokens.h"
#include "compute_node/resident_tiles.h"
#include "compute_node/step_layout.h"
#include "kernels/kv_arena.h"
#include "kernels/matrix_view.h"
#include "plan/epoch_config.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ResidentKv final : public RecentTokens, public KeptKv {
 public:
  // `arena` has the epoch's layers; null: no token stays. References must outlive this.
  ResidentKv(const plan::EpochConfig& config, kernels::KvArena* arena);

  void Apply(const plan::StepPlan& plan) override;
  void BeginStep(uint32_t lane, absl::Span<const RowRun> runs) override;
  uint32_t First(plan::SequenceId id, uint32_t before) const override;
  uint64_t WordOf(const plan::FetchRun& run, absl::Span<const uint64_t> kept) const override;
  void Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv) override;

  // Appends the slots of the tokens of `set`, of which token t is bit t % 64 of word t / 64.
  // Requires: none before First().
  void AppendSlots(plan::SequenceId id, absl::Span<const uint64_t> set,
                   std::vector<Extent>& slots) const;
  // Requires: none before First(), and Store() of the layer.
  void Fill(const Lane& lane, uint32_t layer, const RowRun& run, const plan::TokenSpan& tokens,
            const MadeKv::Into& into) const override;

  // The layer's slots. Requires: some token is here.
  kernels::KvView View(uint32_t layer) const { return arena_->View(layer); }
  // Tokens that may stay at most.
  uint32_t tokens_max() const { return arena_ == nullptr ? 0 : arena_->slots(); }

 private:
  static constexpr uint32_t kTile = 16;  // Tokens that come and go together.

  // Tokens [first, end) of a sequence were made here, as far as it knows.
  struct Made {
    uint32_t first = 0;
    uint32_t end = 0;
  };

  // The first token that is here, if one is.
  static uint32_t FirstOf(const Made& made, const ResidentTiles::Held& held);
  static uint32_t SlotOf(const ResidentTiles::Held& held, uint32_t token) {
    return held.At(token / kTile) * kTile + token % kTile;
  }

  const plan::EpochConfig& config_;
  kernels::KvArena* const arena_;
  ResidentTiles tiles_;
  std::unordered_map<plan::SequenceId, Made> made_;
  std::vector<Extent> slots_;  // One run's.
};

}  // namespace lamina::compute_node
