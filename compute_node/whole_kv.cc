// SPDX-License-Identifier: Apache-2.0
#include "compute_node/whole_kv.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/attention_descriptor.h"
#include "common/status_macros.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

// Items are of bf16; INT8 has scratch of its own.
WholeKv::WholeKv(const WorkerContext& context, plan::AttentionPath kind,
                 std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
                 const ResidentActivations& resident, const KeptKv* kept)
    : FetchedKv(context, kind, std::move(splits), kernel, resident, kept,
                context.config.int8_tails > 0
                    ? nullptr
                    : MakePieceScratch(context, kernel, context.config.rows_max,
                                       context.config.sequence_tokens_max)) {
  const plan::EpochConfig& config = context.config;
  if (config.int8_tails > 0) {
    const auto widest =
        std::max_element(config.layers.begin(), config.layers.end(),
                         [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
    int8_ = std::make_unique<Int8Window>(*widest, config.sequence_tokens_max, kernel, context.pool);
    runs_.reserve(config.rows_max);
  }
}

absl::Status WholeKv::AddRun(const Lane& lane, const RowRun& run, const FetchSplits& splits) {
  for (uint32_t node = 0; node < context_.config.memory_nodes.size(); ++node) {
    if (plan::Holds(context_.config, node, run.memory_node)) {
      LAMINA_ASSIGN_OR_RETURN(plan::FetchSplit split, splits.Of(run, lane.plan));
      Add(lane, node, run, std::move(split), /*start=*/0);
    }
  }
  return absl::OkStatus();
}

absl::Status WholeKv::Attend(Lane& lane, uint32_t node) {
  return int8_ != nullptr ? AttendInt8(lane, node) : FetchedKv::Attend(lane, node);
}

void WholeKv::AddItems(Lane& lane, const RunOfNode& which, const PieceRows& rows,
                       absl::Span<const Extent> extents,
                       std::vector<kernels::AttentionItem>& items) {
  const FetchedRuns& stream = StreamOf(lane, which.node);
  const uint32_t row = stream.rows[which.run].first_row;
  items.push_back({.extents = extents,
                   .first_position = stream.runs[which.run].before,
                   .query_tokens = stream.runs[which.run].tokens,
                   .q = rows.q(row),
                   .q_stride = rows.qkv_stride(),
                   .out = rows.out(row),
                   .out_stride = rows.out_stride()});
}

// Block by block, as the memory node does with its own rows: one that the run's rows fill becomes
// INT8 here for those behind it. Blocks that were made from token numbers have the piece's first
// slots.
absl::Status WholeKv::AttendInt8(Lane& lane, uint32_t node) {
  const FetchedRuns& stream = StreamOf(lane, node);
  const plan::FetchPiece& piece = windows().piece(lane, node);
  const PieceRows rows = windows().RowsOf(lane, node);
  int8_extents_.clear();
  int8_extents_.reserve(2 * (piece.runs_end - piece.first_run));  // Runs point into it.
  runs_.clear();
  uint32_t made_slot = 0;
  uint32_t int8_slot = piece.filled;
  uint32_t slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    const uint32_t row = stream.rows[i].first_row;
    const uint32_t others = run.int8_slots() - run.kept;
    const size_t first_extent = int8_extents_.size();
    if (run.kept > 0) {
      FillKept(lane, {.node = node, .run = i}, rows, made_slot);
      int8_extents_.push_back({.first_slot = made_slot, .tokens = run.kept});
    }
    if (others > 0) {
      int8_extents_.push_back({.first_slot = int8_slot, .tokens = others});
    }
    runs_.push_back({.slots = absl::MakeConstSpan(int8_extents_).subspan(first_extent),
                     .tail_slot = slot,
                     .first_token = run.before,
                     .tokens = run.tokens,
                     .k = rows.k(row),
                     .v = rows.v(row),
                     .kv_stride = rows.qkv_stride(),
                     .q = rows.q(row),
                     .q_stride = rows.qkv_stride(),
                     .out = rows.out(row),
                     .out_stride = rows.out_stride()});
    made_slot += run.kept;
    int8_slot += others;
    slot += run.tail_slots();
  }
  int8_->SetPiece(rows.part(), piece, reinterpret_cast<std::byte*>(windows().elements(lane, node)));
  return int8_runs_.Run(*int8_, 0, AllHeads(rows.part()), runs_);
}

}  // namespace lamina::compute_node
