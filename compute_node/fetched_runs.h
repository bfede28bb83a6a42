// SPDX-License-Identifier: Apache-2.0
//
// FetchedRuns: what one memory node sends to a lane's step: for consecutive rows of one sequence
// each, what comes of the tokens before them, or of those of a span (fetch_splits.h), and where in
// a piece that is.
//
// Threading: plain values.   Allocation: the lists.

#pragma once

#include <cstdint>
#include <vector>

#include "common/extent.h"
#include "compute_node/step_layout.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

struct FetchedRuns {
  std::vector<RowRun> rows;
  std::vector<plan::FetchRun> runs;
  std::vector<std::vector<plan::FetchStretch>> stretches;  // The tokens before each,
  std::vector<uint32_t> starts;                            // the first of them,
  std::vector<plan::ResidentTokens> resident;              // and which have activations here.
  uint32_t remade_runs = 0;  // Runs whose K and V have been made from these in the layer.

  void Clear();
  // Appends what comes for the run, of the sequence's tokens from `start` on.
  void Add(const RowRun& run, plan::FetchSplit split, uint32_t start,
           const plan::ResidentTokens& kept);

  // Appends where the tokens before a run are in a piece, and its own behind them: the recomputed
  // ones from one slot on, the others from another. Extents that touch are one.
  void AppendExtents(uint32_t run, uint32_t recomputed_slot, uint32_t slot,
                     std::vector<Extent>& extents) const;

  // Lists the tokens of the piece's runs that are made again of activations that are here, or that
  // have come, and the slots where these tokens' K and V go.
  void CollectMade(const plan::FetchPiece& piece, bool here, std::vector<uint32_t>& positions,
                   std::vector<Extent>& slots) const;
};

}  // namespace lamina::compute_node
