// SPDX-License-Identifier: Apache-2.0
//
// SpannedKv: partition token_range: rows attend over K and V that memory nodes put into this node's
// windows, each those of the spans that it has. A row attends to each span as it comes, to that of
// its own token with K and V of this step's rows stored behind what came; when all are here, its
// partials become its output along the merge tree (kernels/span_partials.h) of the whole sequence:
// so the bits are the same.
//
// A span has all heads, and what its tokens' activations are: K and V that are made again of them
// go to its own node's pieces alone, so that nodes do not wait for each other.
//
// Threading: the data thread and its pool. Allocation: per epoch, when a step begins, and at first
// use.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/fetch_splits.h"
#include "compute_node/fetched_kv.h"
#include "compute_node/kept_kv.h"
#include "compute_node/lane.h"
#include "compute_node/piece_rows.h"
#include "compute_node/resident_activations.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/span_partials.h"

namespace lamina::compute_node {

class SpannedKv final : public FetchedKv {
 public:
  // As FetchedKv's; `kernel` attends. References must outlive this.
  SpannedKv(const WorkerContext& context, plan::AttentionPath kind,
            std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
            const ResidentActivations& resident, const KeptKv* kept);

  // Partials take some, as many as the rows of a step may have in each lane.
  uint64_t buffer_bytes() const override;
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs) override;

 private:
  struct LaneState {
    uint32_t first_row = 0;  // The path's first row in the step.
    // Where the partials of each of its rows begin, and behind the last one where they end.
    std::vector<uint32_t> first_partial;
    std::vector<float> partials;  // [partials, query heads, PartialWidth()], of the layer.
  };

  // Adds the run to what those memory nodes send that have spans of it.
  // Errors: kInternal  a run without slots for its tokens, or beyond the longest sequence, or with
  // a span on a memory node that is not there; as FetchSplits::OfSpan().
  absl::Status AddRun(const Lane& lane, const RowRun& run, const FetchSplits& splits) override;
  // Appends an item for each of the rows that sees some of the span.
  void AddItems(Lane& lane, const RunOfNode& which, const PieceRows& rows,
                absl::Span<const Extent> extents,
                std::vector<kernels::AttentionItem>& items) override;
  // Partials become outputs.
  void EndLayer(Lane& lane) override;

  kernels::SpanFolds folds_;
  std::vector<LaneState> lanes_;
};

}  // namespace lamina::compute_node
