// SPDX-License-Identifier: Apache-2.0
//
// SparseInt8: rows attend over a piece of chosen tokens, of which those of closed blocks are INT8
// (sparse_pieces.h; docs/adr/0204-chosen-tokens-come-as-int8.md).
//
// A row by itself has tokens of any blocks, of which those that stay here are the last ones.
// Consecutive rows, those of a prompt, have all tokens before them, which come, and go block by
// block: one that they fill becomes INT8 here for those behind it, as at the memory node.
//
// Threading: the data thread. Allocation: until its vectors are large enough.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/int8_piece.h"
#include "compute_node/piece_rows.h"
#include "compute_node/resident_int8.h"
#include "compute_node/sparse_pieces.h"
#include "compute_node/weighed_attention.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SparseInt8 final : public SparsePieces {
 public:
  // Attends pieces of at most so many runs. References must outlive this; `attention` computes
  // INT8.
  SparseInt8(WeighedAttention& attention, ResidentInt8& resident, uint32_t runs_max);

  plan::FetchRun RunOf(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                       uint64_t kept) const override;
  void Attend(uint32_t layer, const PieceRows& rows, const plan::FetchPiece& piece, std::byte* data,
              absl::Span<const Run> runs) override;

 private:
  // Where a run's slots begin in a piece: those of what comes, and those that are filled here.
  struct Place {
    ResidentInt8::Place come = {};
    ResidentInt8::Place filled = {};
  };

  void AddChosen(uint32_t layer, const PieceRows& rows, const Int8Piece& piece, const Run& run,
                 const Place& at);
  void AttendWhole(const PieceRows& rows, const Int8Piece& piece, const Run& run,
                   const ResidentInt8::Place& at);
  // Appends how many tokens of each closed block before the run the set has.
  void AppendChosen(const Run& run, absl::Span<const uint64_t> set);
  // Items of the run's rows [first, end), of which `item` says what their tokens are.
  void AddItems(const PieceRows& rows, const Run& run, uint32_t first, uint32_t end,
                kernels::AttentionItem item);

  WeighedAttention& attention_;
  ResidentInt8& resident_;
  std::vector<Extent> extents_;   // Those that items name,
  std::vector<uint32_t> chosen_;  // and how many tokens each of their blocks has.
  std::vector<WeighedAttention::Item> items_;
};

}  // namespace lamina::compute_node
