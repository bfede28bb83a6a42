// SPDX-License-Identifier: Apache-2.0
//
// SpannedKv: partition token_range: rows attend over K and V that memory nodes put into this node's
// windows, each those of the spans that it has. A row attends to each span as it comes, to that of
// its own token with K and V of this step's rows stored behind what came; when all are here, its
// partials become its output along the merge tree (kernels/span_partials.h) of the whole sequence:
// so the bits are the same.
//
// Threading: the data thread and its pool. Allocation: per epoch, when a step begins, and at first
// use.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/lane.h"
#include "compute_node/peers.h"
#include "compute_node/piece_rows.h"
#include "compute_node/piece_windows.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/span_partials.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SpannedKv {
 public:
  // References must outlive this.
  SpannedKv(const WorkerContext& context, const kernels::AttentionKernel& kernel);

  // Partials take it, as many as the rows of a step may have in each lane.
  uint64_t buffer_bytes() const;

  // These rows of the lane's step attend here; each run is of one sequence.
  // Errors: kInternal  a run without slots for its tokens, or beyond the longest sequence, or with
  // a span on a memory node that is not there.
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // The memory nodes that send K and V to the lane's step.
  std::vector<uint32_t> Senders(const Lane& lane) const;

  // q, k and v of the lane's slice are there: from now on Poll() attends its pieces.
  void BeginLayer(const Lane& lane);

  // Attends at most one piece of each memory node that has come, and gives its window back. Whether
  // none is missing: then outputs are there. Errors: as Peers::CheckWindow(), Peers::Put().
  absl::StatusOr<bool> Poll(Lane& lane);
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
    windows_.AppendAwaited(lane, awaited);
  }

 private:
  // Consecutive rows of one sequence that see a span. The first ones have their own tokens in it,
  // if any have: those of the FetchRun.
  struct SpanRows {
    uint32_t first_row = 0;
    uint32_t rows_end = 0;
    uint32_t first_position = 0;  // That of the first one.
    uint32_t span = 0;            // Spans of a sequence count from 0.
  };
  // What one memory node sends of one lane.
  struct Stream {
    std::vector<SpanRows> rows;
    std::vector<plan::FetchRun> runs;  // What comes for each of these.
  };
  struct LaneState {
    uint32_t layer = 0;
    bool folded = true;           // The layer's partials have become outputs.
    std::vector<Stream> streams;  // [memory nodes]
    uint32_t first_row = 0;       // The path's first row in the step.
    // Where the partials of each of its rows begin, and behind the last one where they end.
    std::vector<uint32_t> first_partial;
    std::vector<float> partials;  // [partials, query heads, PartialWidth()], of the layer.
  };

  // Adds a run to the streams of those memory nodes that have spans of it.
  absl::Status AddRun(const RowRun& run, LaneState& state);
  void Attend(Lane& lane, uint32_t node);
  // Appends an item for each of the rows that sees some of the span, whose tokens lie in `extents`.
  void AppendItems(LaneState& state, const SpanRows& span, const PieceRows& rows,
                   absl::Span<const Extent> extents);
  void Fold(Lane& lane);
  const AttentionDescriptor& LayerOf(const LaneState& state) const {
    return context_.config.layers[state.layer];
  }

  const WorkerContext& context_;
  const kernels::AttentionKernel& kernel_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  PieceWindows windows_;
  kernels::SpanFolds folds_;
  std::vector<LaneState> lanes_;
  std::vector<Extent> extents_;  // Slots that the items name.
  std::vector<kernels::AttentionItem> items_;
};

}  // namespace lamina::compute_node
