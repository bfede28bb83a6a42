// SPDX-License-Identifier: Apache-2.0
#include "compute_node/spanned_kv.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

SpannedKv::SpannedKv(const WorkerContext& context, plan::AttentionPath kind,
                     std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
                     const ResidentActivations& resident, const KeptKv* kept)
    : FetchedKv(context, kind, std::move(splits), kernel, resident, kept,
                MakePieceScratch(context, kernel, /*query_tokens=*/1, context.config.span_tokens)),
      folds_(context.config.span_tokens, context.pool.threads()),
      lanes_(context.config.lanes) {
  const plan::EpochConfig& config = context.config;
  size_t of_partial = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    of_partial = std::max(of_partial, layer.query_heads * kernels::PartialWidth(layer));
  }
  const size_t spans_max =
      (size_t{config.sequence_tokens_max} + config.span_tokens - 1) / config.span_tokens;
  for (LaneState& lane : lanes_) {
    lane.first_partial = {0};
    lane.partials.resize(config.rows_max * spans_max * of_partial);
  }
}

uint64_t SpannedKv::buffer_bytes() const {
  uint64_t bytes = FetchedKv::buffer_bytes();
  for (const LaneState& lane : lanes_) {
    bytes += lane.partials.size() * sizeof(float);
  }
  return bytes;
}

absl::Status SpannedKv::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  LaneState& state = lanes_[lane.index];
  state.first_row = runs.empty() ? 0 : runs.front().first_row;
  state.first_partial = {0};
  return FetchedKv::BeginStep(lane, runs);
}

absl::Status SpannedKv::AddRun(const Lane& lane, const RowRun& run, const FetchSplits& splits) {
  const plan::EpochConfig& config = context_.config;
  const uint64_t end = uint64_t{run.first_token} + run.tokens;
  const Sequence* sequence = context_.sequences.Find(run.sequence);
  if (sequence == nullptr || end > sequence->slots || end > config.sequence_tokens_max) {
    return absl::InternalError(absl::StrCat(
        "plan has rows of sequence ", run.sequence, " up to token ", end, ", with slots for ",
        sequence == nullptr ? 0 : sequence->slots, " and at most ", config.sequence_tokens_max));
  }
  for (uint32_t span = 0; uint64_t{span} * config.span_tokens < end; ++span) {
    const uint32_t node = sequence->spans[span];
    if (node >= config.memory_nodes.size()) {
      return absl::InternalError(absl::StrCat("sequence ", run.sequence,
                                              " has a span on a memory node that is not there"));
    }
    LAMINA_ASSIGN_OR_RETURN(plan::FetchSplit split, splits.OfSpan(run, lane.plan, span));
    Add(lane, node, run, std::move(split), plan::SpanAt(config, span).first);
  }
  LaneState& state = lanes_[lane.index];
  for (uint32_t i = 0; i < run.tokens; ++i) {
    state.first_partial.push_back(state.first_partial.back() +
                                  (run.first_token + i) / config.span_tokens + 1);
  }
  return absl::OkStatus();
}

// Rows before the span see nothing of it, and have no partial of it.
void SpannedKv::AddItems(Lane& lane, const RunOfNode& which, const PieceRows& rows,
                         absl::Span<const Extent> extents,
                         std::vector<kernels::AttentionItem>& items) {
  LaneState& state = lanes_[lane.index];
  const FetchedRuns& stream = StreamOf(lane, which.node);
  const RowRun& run = stream.rows[which.run];
  const uint32_t start = stream.starts[which.run];
  const AttentionDescriptor& layer = context_.config.layers[LayerOf(lane)];
  const AttentionDescriptor& part = rows.part();
  const uint32_t span_tokens = context_.config.span_tokens;
  const size_t first_head = size_t{rows.heads().first} * part.group();
  for (uint32_t position = std::max(run.first_token, start);
       position < run.first_token + run.tokens; ++position) {
    const uint32_t row = run.first_row + (position - run.first_token);
    const kernels::SeenOfSpan seen = kernels::SeenOf(part, position, start, span_tokens);
    const size_t partial = state.first_partial[row - state.first_row] + start / span_tokens;
    float* const to = state.partials.data() +
                      (partial * layer.query_heads + first_head) * kernels::PartialWidth(layer);
    if (seen.none()) {
      kernels::WriteEmptyPartial(part, to);
      continue;
    }
    items.push_back({.extents = extents,
                     .first_position = seen.last,
                     .query_tokens = 1,
                     .first_seen = seen.first,
                     .q = rows.q(row),
                     .q_stride = rows.qkv_stride(),
                     .partial = to});
  }
}

void SpannedKv::EndLayer(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  const size_t rows = state.first_partial.size() - 1;
  if (rows == 0) {
    return;
  }
  const uint32_t index = LayerOf(lane);
  const AttentionDescriptor& layer = context_.config.layers[index];
  const size_t width = kernels::PartialWidth(layer);
  const auto out = context_.executor.AttentionRows(index, lane.positions.size(), lane.buffers);
  const absl::Span<kernels::SpanFold> folds = folds_.Of(layer.head_dim);
  context_.pool.Run(rows, [&](size_t row, size_t worker) {
    kernels::SpanFold& fold = folds[worker];
    const uint32_t end = state.first_partial[row + 1];
    for (uint32_t head = 0; head < layer.query_heads; ++head) {
      for (uint32_t i = state.first_partial[row]; i < end; ++i) {
        fold.Add(state.partials.data() + (size_t{i} * layer.query_heads + head) * width,
                 /*is_last=*/i + 1 == end);
      }
      fold.Finish(layer, head, out.row(state.first_row + row) + size_t{head} * layer.head_dim);
    }
  });
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, index);
}

}  // namespace lamina::compute_node
