// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streaming_kv.h"

#include "plan/epoch_shape.h"

namespace lamina::compute_node {

StreamingKv::StreamingKv(const WorkerContext& context, StreamingRows& rows)
    : context_(context), rows_(rows), windows_(context), lanes_(context.config.lanes) {
  for (LaneState& lane : lanes_) {
    lane.streams.resize(context.config.memory_nodes.size());
  }
}

void StreamingKv::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  windows_.BeginStep(lane);
  LaneState& state = lanes_[lane.index];
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    Stream& stream = state.streams[node];
    stream = {};
    for (const RowRun& run : runs) {
      if (plan::Holds(context_.config, node, run.memory_node)) {
        const plan::FetchRun whole{.before = run.first_token, .tokens = run.tokens};
        const plan::TokenGap gap = plan::GapBefore(context_.config.streaming, whole.before);
        stream.rows.push_back(run);
        stream.whole.push_back(whole);
        stream.streamed.push_back(plan::WithoutGap(whole, gap));
        stream.gaps.push_back(gap);
      }
    }
  }
}

void StreamingKv::BeginLayer(const Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.layer = lane.slice;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    Stream& stream = state.streams[node];
    stream.ranges = plan::AlikeHeadsOf(context_.config.streaming, state.layer,
                                       context_.HeadsOf(state.layer, node));
    stream.range = 0;
    BeginRange(lane, node);
  }
}

void StreamingKv::BeginRange(const Lane& lane, uint32_t node) {
  LaneState& state = lanes_[lane.index];
  Stream& stream = state.streams[node];
  while (stream.range < stream.ranges.size()) {
    const HeadRange heads = stream.ranges[stream.range].heads;
    ++stream.range;
    windows_.BeginHeads(lane, node, state.layer, heads, stream.runs());
    if (!windows_.Ended(lane, node)) {
      return;
    }
  }
}

absl::StatusOr<bool> StreamingKv::Poll(Lane& lane) {
  return windows_.AttendCome(
      lane, [&](uint32_t node) { Attend(lane, node); },
      [&](uint32_t node) { BeginRange(lane, node); });
}

void StreamingKv::Attend(Lane& lane, uint32_t node) {
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  rows_.Clear();
  uint32_t slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs()[i];
    const uint32_t row = stream.rows[i].first_row;
    rows.Store(row, {.first_slot = slot + run.before, .tokens = run.tokens});
    const StreamingRows::Rows added{.first_position = stream.rows[i].first_token,
                                    .tokens = run.tokens,
                                    .q = rows.q(row),
                                    .q_stride = rows.qkv_stride(),
                                    .out = rows.out(row),
                                    .out_stride = rows.out_stride()};
    if (stream.streams()) {
      rows_.AddStreamed(added, {.first_slot = slot, .gap = stream.gaps[i]});
    } else {
      rows_.AddWhole(added, slot);
    }
    slot += run.slots();
  }
  rows_.Attend(rows.part(), rows.View());
}

}  // namespace lamina::compute_node
