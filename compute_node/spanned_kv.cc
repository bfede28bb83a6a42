// SPDX-License-Identifier: Apache-2.0
#include "compute_node/spanned_kv.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/attention_paths.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

SpannedKv::SpannedKv(const WorkerContext& context, const kernels::AttentionKernel& kernel)
    : context_(context),
      kernel_(kernel),
      windows_(context),
      folds_(context.config.span_tokens, context.pool.threads()),
      lanes_(context.config.lanes) {
  const plan::EpochConfig& config = context.config;
  // Scratch of the layer with most to a row serves all.
  const auto widest =
      std::max_element(config.layers.begin(), config.layers.end(),
                       [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
  scratch_ = kernel.MakeScratch(*widest, /*query_tokens_max=*/1, config.span_tokens,
                                context.pool.threads());
  size_t of_partial = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    of_partial = std::max(of_partial, layer.query_heads * kernels::PartialWidth(layer));
  }
  const size_t spans_max =
      (size_t{config.sequence_tokens_max} + config.span_tokens - 1) / config.span_tokens;
  for (LaneState& lane : lanes_) {
    lane.streams.resize(config.memory_nodes.size());
    lane.first_partial = {0};
    lane.partials.resize(config.rows_max * spans_max * of_partial);
  }
}

uint64_t SpannedKv::buffer_bytes() const {
  uint64_t bytes = 0;
  for (const LaneState& lane : lanes_) {
    bytes += lane.partials.size() * sizeof(float);
  }
  return bytes;
}

absl::Status SpannedKv::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  windows_.BeginStep(lane);
  LaneState& state = lanes_[lane.index];
  for (Stream& stream : state.streams) {
    stream.rows.clear();
    stream.runs.clear();
  }
  state.first_row = runs.empty() ? 0 : runs.front().first_row;
  state.first_partial = {0};
  for (const RowRun& run : runs) {
    LAMINA_RETURN_IF_ERROR(AddRun(run, state));
  }
  return absl::OkStatus();
}

absl::Status SpannedKv::AddRun(const RowRun& run, LaneState& state) {
  const plan::EpochConfig& config = context_.config;
  const uint32_t span_tokens = config.span_tokens;
  const uint64_t end = uint64_t{run.first_token} + run.tokens;
  const Sequence* sequence = context_.sequences.Find(run.sequence);
  if (sequence == nullptr || end > sequence->slots || end > config.sequence_tokens_max) {
    return absl::InternalError(absl::StrCat(
        "plan has rows of sequence ", run.sequence, " up to token ", end, ", with slots for ",
        sequence == nullptr ? 0 : sequence->slots, " and at most ", config.sequence_tokens_max));
  }
  const uint32_t hidden = plan::HiddenOf(config, plan::AttentionPath::kFetch, sequence->released);
  for (uint32_t span = 0; uint64_t{span} * span_tokens < end; ++span) {
    const uint32_t node = sequence->spans[span];
    if (node >= state.streams.size()) {
      return absl::InternalError(absl::StrCat("sequence ", run.sequence,
                                              " has a span on a memory node that is not there"));
    }
    const uint32_t start = span * span_tokens;
    const uint32_t first = std::max(run.first_token, start);
    Stream& stream = state.streams[node];
    stream.rows.push_back({.first_row = run.first_row + (first - run.first_token),
                           .rows_end = run.first_row + run.tokens,
                           .first_position = first,
                           .span = span});
    stream.runs.push_back(plan::SplitBySpan(run.first_token, run.tokens, hidden,
                                            {.first = start, .tokens = span_tokens})
                              .run);
  }
  for (uint32_t i = 0; i < run.tokens; ++i) {
    state.first_partial.push_back(state.first_partial.back() + (run.first_token + i) / span_tokens +
                                  1);
  }
  return absl::OkStatus();
}

std::vector<uint32_t> SpannedKv::Senders(const Lane& lane) const {
  const std::vector<Stream>& streams = lanes_[lane.index].streams;
  std::vector<uint32_t> senders;
  for (uint32_t node = 0; node < streams.size(); ++node) {
    if (!streams[node].runs.empty()) {
      senders.push_back(node);
    }
  }
  return senders;
}

void SpannedKv::BeginLayer(const Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.layer = lane.slice;
  state.folded = false;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    windows_.BeginLayer(lane, node, state.layer, state.streams[node].runs);
  }
}

absl::StatusOr<bool> SpannedKv::Poll(Lane& lane) {
  const absl::StatusOr<bool> all = windows_.AttendCome(
      lane, [&](uint32_t node) { Attend(lane, node); }, [](uint32_t /*node*/) {});
  if (all.ok() && *all && !std::exchange(lanes_[lane.index].folded, true)) {
    Fold(lane);
  }
  return all;
}

void SpannedKv::Attend(Lane& lane, uint32_t node) {
  LaneState& state = lanes_[lane.index];
  const Stream& stream = state.streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  extents_.clear();
  extents_.reserve(2 * size_t{piece.runs_end - piece.first_run});  // Items point into it.
  items_.clear();
  uint32_t slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    if (run.tokens > 0) {
      rows.Store(stream.rows[i].first_row,
                 {.first_slot = slot + run.fetched(), .tokens = run.tokens});
    }
    const size_t first_extent = extents_.size();
    if (run.hidden > 0) {  // Slots that are not looked at: tokens keep their numbers.
      extents_.push_back({.first_slot = 0, .tokens = run.hidden});
    }
    if (run.fetched() + run.tokens > 0) {
      extents_.push_back({.first_slot = slot, .tokens = run.fetched() + run.tokens});
    }
    AppendItems(state, stream.rows[i], rows, absl::MakeConstSpan(extents_).subspan(first_extent));
    slot += run.slots();
  }
  if (!items_.empty()) {
    kernel_.Attend(rows.part(), rows.View(), items_, *scratch_, context_.pool);
  }
}

void SpannedKv::AppendItems(LaneState& state, const SpanRows& span, const PieceRows& rows,
                            absl::Span<const Extent> extents) {
  const AttentionDescriptor& layer = LayerOf(state);
  const AttentionDescriptor& part = rows.part();
  const uint32_t span_tokens = context_.config.span_tokens;
  const size_t first_head = size_t{rows.heads().first} * part.group();
  for (uint32_t row = span.first_row; row < span.rows_end; ++row) {
    const uint32_t position = span.first_position + (row - span.first_row);
    const kernels::SeenOfSpan seen =
        kernels::SeenOf(part, position, span.span * span_tokens, span_tokens);
    const size_t partial = state.first_partial[row - state.first_row] + span.span;
    float* const to = state.partials.data() +
                      (partial * layer.query_heads + first_head) * kernels::PartialWidth(layer);
    if (seen.none()) {
      kernels::WriteEmptyPartial(part, to);
      continue;
    }
    items_.push_back({.extents = extents,
                      .first_position = seen.last,
                      .query_tokens = 1,
                      .first_seen = seen.first,
                      .q = rows.q(row),
                      .q_stride = rows.qkv_stride(),
                      .partial = to});
  }
}

void SpannedKv::Fold(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  const size_t rows = state.first_partial.size() - 1;
  if (rows == 0) {
    return;
  }
  const AttentionDescriptor& layer = LayerOf(state);
  const size_t width = kernels::PartialWidth(layer);
  const auto out =
      context_.executor.AttentionRows(state.layer, lane.positions.size(), lane.buffers);
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
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, state.layer);
}

}  // namespace lamina::compute_node
