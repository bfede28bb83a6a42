// SPDX-License-Identifier: Apache-2.0
//
// ResidentInt8: K and V of recent tokens (recent_tokens.h) where K and V are INT8: closed blocks of
// 64 tokens as INT8, and bf16 of the open block in a tail, as memory nodes have them
// (docs/adr/0256-closed-blocks-stay-as-int8.md). A block whose tokens have all been made here is
// quantised by the code of memory nodes, so that it has the bits of what would come.
//
// Blocks come and go whole (resident_tiles.h). Nothing of a sequence is here while its open block
// is not, from the block's first token on: one that goes on inside a block which others began, as
// in a new epoch, or for which there was no tail, has what it makes from the next block on. A
// prefix that was found ends with a block.
//
// A row by itself finds them. Consecutive rows of a prompt, which may close blocks while they
// attend, find none.
//
// Threading: the data thread. Memory: the arenas, which are made before. Allocation: when sequences
// get their first tokens, and until vectors are large enough.
// Cost: Store() some 2 ns an element of each block that is closed.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "compute_node/int8_piece.h"
#include "compute_node/recent_tokens.h"
#include "compute_node/resident_tiles.h"
#include "compute_node/step_layout.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "kernels/matrix_view.h"
#include "plan/epoch_config.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

// Memory of tokens that stay.
struct Int8Residents {
  kernels::KvArena tails;     // Whole open blocks.
  kernels::Int8Arena blocks;  // Whole closed ones.

  uint64_t bytes() const { return tails.bytes() + blocks.bytes(); }
};

class ResidentInt8 final : public RecentTokens {
 public:
  // Where tokens of a run go in a piece: slots of INT8, of scales of K, and of bf16.
  struct Place {
    uint32_t int8 = 0;
    uint32_t scales = 0;
    uint32_t open = 0;
  };

  // `memory` has the epoch's layers; null: no token stays. References must outlive this.
  ResidentInt8(const plan::EpochConfig& config, Int8Residents* memory);

  void Apply(const plan::StepPlan& plan) override;
  void BeginStep(uint32_t lane, absl::Span<const RowRun> runs) override;
  uint32_t First(plan::SequenceId id, uint32_t before) const override;
  uint64_t WordOf(const plan::FetchRun& run, absl::Span<const uint64_t> kept) const override;
  void Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv) override;

  // Tokens before a run, of which token t is bit t % 64 of word t / 64.
  struct Kept {
    RowRun rows;
    absl::Span<const uint64_t> kept;
  };
  // Copies their K and V, in order, with scales of K of each closed block that has some, to a piece
  // of these heads of the layer. Requires: none before First(), and Store() of the layer.
  void Fill(uint32_t layer, HeadRange heads, const Kept& tokens, const Int8Piece& piece,
            const Place& at);

 private:
  static constexpr uint32_t kNoTail = UINT32_MAX;

  // The open block of a sequence, and what is known of it.
  struct Open {
    uint32_t tail = kNoTail;
    uint32_t first = 0;     // The tail has its tokens from this one on,
    uint32_t end = 0;       // up to this one once the step's rows are stored.
    bool is_found = false;  // Whether the step's row finds what is here.
  };

  void BeginRun(const RowRun& run, uint32_t lane);
  // Gives up the closed blocks of the sequence, and what is known of its open one.
  void Restart(Open& open, plan::SequenceId id, uint32_t token);
  // Stores the rows of a run that lie in one block, and closes it if it is full and stays.
  void StoreBlock(const RowRun& run, uint32_t block, uint32_t layer,
                  const kernels::MatrixView<BFloat16>& qkv);

  const plan::EpochConfig& config_;
  Int8Residents* const memory_;
  ResidentTiles blocks_;
  std::vector<uint32_t> free_tails_;
  std::unordered_map<plan::SequenceId, Open> open_;
  // Slots of what Fill() copies, by the slots that it goes to.
  std::vector<Extent> closed_slots_;
  std::vector<Extent> scale_slots_;
  std::vector<Extent> open_slots_;
};

}  // namespace lamina::compute_node
