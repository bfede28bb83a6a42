// SPDX-License-Identifier: Apache-2.0
//
// WholeKv: rows attend over whole sequences, of some heads in each piece: a head's outputs are
// complete with it, and have the bits of any other path.
//
// Threading: the data thread. Allocation: per epoch, and when a step begins.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/fetch_splits.h"
#include "compute_node/fetched_kv.h"
#include "compute_node/int8_window.h"
#include "compute_node/kept_kv.h"
#include "compute_node/lane.h"
#include "compute_node/piece_rows.h"
#include "compute_node/resident_activations.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/int8_runs.h"

namespace lamina::compute_node {

class WholeKv final : public FetchedKv {
 public:
  // As FetchedKv's; `kernel` attends. References must outlive this.
  WholeKv(const WorkerContext& context, plan::AttentionPath kind,
          std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
          const ResidentActivations& resident, const KeptKv* kept);

 private:
  absl::Status AddRun(const Lane& lane, const RowRun& run, const FetchSplits& splits) override;
  absl::Status Attend(Lane& lane, uint32_t node) override;
  void AddItems(Lane& lane, const RunOfNode& which, const PieceRows& rows,
                absl::Span<const Extent> extents,
                std::vector<kernels::AttentionItem>& items) override;
  absl::Status AttendInt8(Lane& lane, uint32_t node);

  std::unique_ptr<Int8Window> int8_;  // Where K and V come as INT8.
  kernels::Int8Runs int8_runs_;
  std::vector<Extent> int8_extents_;  // Slots that the runs name.
  std::vector<kernels::Int8Run> runs_;
};

}  // namespace lamina::compute_node
