// SPDX-License-Identifier: Apache-2.0
//
// SparseInt8: rows attend over a piece of chosen tokens, of which those of closed blocks are INT8
// (docs/adr/0204-chosen-tokens-come-as-int8.md). What softmax gives each token goes where the rows
// say.
//
// A row by itself has tokens of any blocks. Consecutive rows, those of a prompt, have all tokens
// before them, and go block by block: one that they fill becomes INT8 here for those behind it, as
// at the memory node.
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
#include "compute_node/weighed_attention.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SparseInt8 {
 public:
  // Rows of a step that the piece has tokens for, consecutive ones of one sequence.
  struct Run {
    plan::FetchRun tokens;
    uint32_t row = 0;                   // The first of the step's.
    absl::Span<const uint32_t> chosen;  // How many of each closed block that has any.
    // The last so many rows have sums at `weights`: as many floats for each as the run has tokens,
    // its own counted.
    uint32_t weighed = 0;
    float* weights = nullptr;
  };

  // Attends pieces of at most so many runs. The reference must outlive this, and compute INT8.
  SparseInt8(WeighedAttention& attention, uint32_t runs_max);

  // Stores k and v of the runs' rows in the piece's open blocks, and attends. Shapes: runs  those
  // of the piece, in order; data  behind the window's header.
  void Attend(const PieceRows& rows, const plan::FetchPiece& piece, std::byte* data,
              absl::Span<const Run> runs);

 private:
  // Where a run's slots begin in a piece.
  struct Place {
    uint32_t int8 = 0;
    uint32_t scales = 0;
    uint32_t open = 0;
  };

  void AddChosen(const PieceRows& rows, const Int8Piece& piece, const Run& run, const Place& at);
  void AttendWhole(const PieceRows& rows, const Int8Piece& piece, const Run& run, const Place& at);
  // Items of the run's rows [first, end), of which `item` says what their tokens are.
  void AddItems(const PieceRows& rows, const Run& run, uint32_t first, uint32_t end,
                kernels::AttentionItem item);

  WeighedAttention& attention_;
  std::vector<Extent> extents_;  // Those that items name.
  std::vector<WeighedAttention::Item> items_;
};

}  // namespace lamina::compute_node
