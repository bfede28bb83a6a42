// SPDX-License-Identifier: Apache-2.0
//
// SparsePieces: how rows attend to a piece of chosen tokens (path sparse): a class for each form of
// K and V, sparse_bf16.h and sparse_int8.h. What softmax gives each token goes where the rows say.
//
// Tokens that stay here (recent_tokens.h) do not come: they are copied into the slots of the piece
// that are this node's to fill.
//
// To add a form: implement this and RecentTokens, and choose both in sparse_form.cc.
//
// Threading: the data thread. Allocation: until vectors are large enough.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "compute_node/piece_rows.h"
#include "compute_node/step_layout.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SparsePieces {
 public:
  // Rows of a step that the piece has tokens for, consecutive ones of one sequence.
  struct Run {
    plan::FetchRun tokens;
    RowRun rows;
    // The tokens before them that they attend to: those that come, and those that stay here. Token
    // t is bit t % 64 of word t / 64.
    absl::Span<const uint64_t> come;
    absl::Span<const uint64_t> kept;
    // The last so many rows have sums at `weights`: as many floats for each as the run has tokens,
    // its own counted.
    uint32_t weighed = 0;
    float* weights = nullptr;
  };

  virtual ~SparsePieces() = default;

  // What comes for a run of which `set` has to come, with `kept` as RecentTokens::WordOf() has it.
  virtual plan::FetchRun RunOf(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                               uint64_t kept) const = 0;

  // The rows of all runs of the piece, which is of this layer. `data` is behind the window's
  // header.
  virtual void Attend(uint32_t layer, const PieceRows& rows, const plan::FetchPiece& piece,
                      std::byte* data, absl::Span<const Run> runs) = 0;
};

}  // namespace lamina::compute_node
