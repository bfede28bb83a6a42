// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_attention.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "compute_node/step_layout.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

RemoteAttention::RemoteAttention(const WorkerContext& context, kernels::ChunkAttention& chunks,
                                 uint32_t first_layer)
    : context_(context),
      chunks_(chunks),
      first_layer_(first_layer),
      lanes_(context.config.lanes),
      merge_(context) {
  const plan::EpochConfig& config = context.config;
  const size_t nodes = config.memory_nodes.size();
  for (uint32_t lane = 0; lane < config.lanes; ++lane) {
    LaneState& state = lanes_[lane];
    state.rows.nodes.resize(nodes);
    state.units.resize(nodes);
    if (context.schedule.Runs(context.node, lane)) {
      state.headers.resize(nodes);
      state.kv_staging.resize(size_t{config.chunk_tokens_max} * 2 *
                              plan::KvWidthMax(config.layers));
      state.row_staging.resize((BySpan(config) ? nodes : 1) * size_t{config.rows_max} *
                               plan::QkvWidthMax(config.layers));
    }
  }
}

// Registers what puts are made from.
absl::Status RemoteAttention::Open() {
  for (const LaneState& state : lanes_) {
    for (const absl::Span<const std::byte> source :
         {transport::AsBytes(state.headers.data(), state.headers.size()),
          transport::AsBytes(state.kv_staging.data(), state.kv_staging.size()),
          transport::AsBytes(state.row_staging.data(), state.row_staging.size())}) {
      if (!source.empty()) {
        LAMINA_RETURN_IF_ERROR(
            context_.transport.RegisterSource(source, transport::MemoryKind::kHost));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RemoteAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LaneState& state = lanes_[lane.index];
  LAMINA_RETURN_IF_ERROR(
      PlaceRemoteRows(context_.config, context_.sequences, lane, rows, state.rows));
  state.path_rows = rows;
  state.awaited = false;
  state.chunks.clear();
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    // Attends over all tokens of the sequence up to the chunk's end.
    state.chunks.push_back({.sequence = {.first_slot = chunk.plan.scratch_offset,
                                         .tokens = chunk.plan.first_token + chunk.plan.tokens},
                            .first_position = chunk.plan.first_token,
                            .tokens = chunk.plan.tokens,
                            .first_row = chunk.first_row});
  }
  return absl::OkStatus();
}

plan::WindowHeader RemoteAttention::QueryHeader(const Lane& lane, uint32_t node) const {
  const NodeRows& rows = RowsTo(lane, node);
  plan::WindowHeader header = context_.HeaderOf(lane, lane.slice, rows.rows.count, context_.node);
  header.kv_rows = rows.kv_rows.count;
  return header;
}

plan::WindowHeader RemoteAttention::ReplyHeader(const Lane& lane, uint32_t layer,
                                                uint32_t node) const {
  return context_.HeaderOf(lane, layer, RowsTo(lane, node).rows.count, node);
}

absl::Status RemoteAttention::Attend(Lane& lane) {
  if (!context_.executor.device().is_host()) {
    LAMINA_RETURN_IF_ERROR(context_.executor.QkvToHost(lane.slice, lane.positions.size(),
                                                       lane.decode_rows, lane.buffers));
    context_.laps.LapOf(lane, telemetry::WorkPart::kDense, lane.slice);
  }
  LAMINA_RETURN_IF_ERROR(Send(lane));
  return AttendChunks(lane);
}

// While decode rows attend at the memory nodes.
absl::Status RemoteAttention::AttendChunks(Lane& lane) {
  const std::vector<kernels::ChunkItem>& chunks = lanes_[lane.index].chunks;
  if (chunks.empty()) {
    return absl::OkStatus();
  }
  const uint32_t layer = lane.slice;
  const size_t rows = lane.positions.size();
  LAMINA_RETURN_IF_ERROR(chunks_.Attend(
      layer - first_layer_, chunks, context_.executor.DeviceQkvRows(layer, rows, lane.buffers),
      context_.executor.DeviceAttentionRows(layer, rows, lane.buffers)));
  context_.laps.LapOf(lane, telemetry::WorkPart::kChunks, layer);
  return absl::OkStatus();
}

bool RemoteAttention::Await(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.awaited = false;
  for (uint32_t node = 0; node < state.units.size(); ++node) {
    state.units[node].awaited = RowsTo(lane, node).involved();
    state.awaited |= state.units[node].awaited;
  }
  return state.awaited;
}

void RemoteAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  const std::vector<Unit>& units = lanes_[lane.index].units;
  for (uint32_t node = 0; node < units.size(); ++node) {
    if (units[node].awaited) {
      awaited.push_back({.peer = MemoryPeer(node),
                         .word = context_.layout.reply_word(node, lane.index),
                         .value = context_.UnitValue(lane, lane.slice - 1)});
    }
  }
}

// The first piece to every memory node, then the second, so that all begin early.
absl::Status RemoteAttention::Send(Lane& lane) {
  const std::vector<Unit>& units = lanes_[lane.index].units;
  uint32_t most = 0;
  for (uint32_t node = 0; node < units.size(); ++node) {
    if (RowsTo(lane, node).involved()) {
      BeginSend(lane, node);
      most = std::max(most, units[node].pieces.count());
    }
  }
  for (uint32_t piece = 0; piece < most; ++piece) {
    for (uint32_t node = 0; node < units.size(); ++node) {
      if (!RowsTo(lane, node).involved() || piece >= units[node].pieces.count()) {
        continue;
      }
      LAMINA_RETURN_IF_ERROR(SendPiece(lane, node, piece));
    }
  }
  return absl::OkStatus();
}

void RemoteAttention::BeginSend(Lane& lane, uint32_t node) {
  LaneState& state = lanes_[lane.index];
  Unit& unit = state.units[node];
  unit.pieces = PiecesTo(lane, lane.slice, node);
  state.headers[node] = QueryHeader(lane, node);
  if (ByHead(context_.config) || BySpan(context_.config) || unit.pieces.query_first ||
      unit.pieces.head_groups() > 1) {
    StageRows(lane, node);
  } else {
    const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
    const RowRange& rows = RowsTo(lane, node).rows;
    unit.staged = {qkv.row(rows.first), rows.count * qkv.cols};
  }
}

// How the rows of the layer that go to the node, and their outputs, are cut.
plan::RowPieces RemoteAttention::PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const {
  return plan::PiecesOf(lane.plan.chunking, RowsTo(lane, node).rows.count,
                        context_.PartOf(layer, node).kv_heads);
}

// The header goes before the first piece, k and v of prompt chunks behind the last one.
absl::Status RemoteAttention::SendPiece(Lane& lane, uint32_t node, uint32_t piece) {
  const Unit& unit = lanes_[lane.index].units[node];
  const plan::WindowHeader& header = lanes_[lane.index].headers[node];
  const uint32_t pieces = unit.pieces.count();
  const uint64_t value = context_.UnitValue(lane, lane.slice);
  const size_t window = context_.layout.QueryWindow(context_.node, lane.index, value);
  const transport::SignalUpdate signal{
      .word = context_.layout.query_word(context_.node, lane.index),
      .value = plan::PieceValue(value, piece, pieces)};
  const bool kv_follows = piece + 1 == pieces && RowsTo(lane, node).kv_rows.count > 0;
  size_t bytes = 0;
  if (piece == 0) {
    LAMINA_RETURN_IF_ERROR(Put(node, window, transport::AsBytes(&header, 1), nullptr));
    bytes += sizeof(header);
  }
  const size_t begin = piece == 0 ? 0 : PieceEnd(lane, node, piece - 1);
  const size_t end = PieceEnd(lane, node, piece);
  const auto rows = transport::AsBytes(unit.staged.data() + begin, end - begin);
  const size_t offset = window + sizeof(header) + begin * sizeof(BFloat16);
  LAMINA_RETURN_IF_ERROR(Put(node, offset, rows, kv_follows ? nullptr : &signal));
  bytes += rows.size();
  if (kv_follows) {
    StageChunks(lane, node);
    const absl::Span<const BFloat16> staged = KvStaging(lane, node);
    const auto kv = transport::AsBytes(staged.data(), staged.size());
    LAMINA_RETURN_IF_ERROR(Put(node, offset + rows.size(), kv, &signal));
    bytes += kv.size();
  }
  const PeerId peer = MemoryPeer(node);
  context_.peers.CountSent(
      peer, bytes, context_.laps.LapOf(lane, telemetry::WorkPart::kSend, lane.slice, peer, bytes));
  return absl::OkStatus();
}

absl::StatusOr<bool> RemoteAttention::Poll(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  if (!state.awaited) {
    return true;
  }
  const uint32_t layer = lane.slice - 1;
  bool missing = false;
  for (uint32_t node = 0; node < state.units.size(); ++node) {
    Unit& unit = state.units[node];
    if (!unit.awaited) {
      continue;
    }
    if (context_.region.LoadSignal(context_.layout.reply_word(node, lane.index)) <
        context_.UnitValue(lane, layer)) {
      missing = true;
      continue;
    }
    LAMINA_RETURN_IF_ERROR(TakeReply(lane, node));
    unit.awaited = false;
  }
  if (missing) {
    return false;
  }
  state.awaited = false;
  const RowRange& decode = state.rows.decode;
  if (BySpan(context_.config) && decode.count > 0) {
    merge_.Run(lane, state.rows);
  }
  context_.executor.AttentionToDevice(layer, decode.first, decode.count, lane.buffers);
  return true;
}

absl::Status RemoteAttention::TakeReply(Lane& lane, uint32_t node) {
  const uint32_t layer = lane.slice - 1;
  const RowRange& rows = RowsTo(lane, node).rows;
  const std::byte* window =
      context_.region.bytes().data() +
      context_.layout.ReplyWindow(node, lane.index, context_.UnitValue(lane, layer));
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(
      context_.peers.CheckWindow(MemoryPeer(node), header, ReplyHeader(lane, layer, node)));
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  if (BySpan(context_.config)) {  // Merged when all nodes have answered.
    const size_t partials = RowsTo(lane, node).partials * merge_.PartialBytes(layer);
    telemetry::AddTo(context_.counters.bytes_received, sizeof(header) + partials);
    context_.laps.LapOf(lane, telemetry::WorkPart::kTake, layer, MemoryPeer(node), partials);
    return absl::OkStatus();
  }
  const AttentionDescriptor part = context_.PartOf(layer, node);
  const size_t bytes = size_t{rows.count} * part.q_width() * sizeof(BFloat16);
  const plan::RowPieces pieces = PiecesTo(lane, layer, node);
  if (part.q_width() == out.cols && pieces.head_groups() == 1) {
    std::memcpy(out.row(rows.first), window + sizeof(header), bytes);
  } else {
    const auto* from = reinterpret_cast<const BFloat16*>(window + sizeof(header));
    for (uint32_t group = 0; group < pieces.head_groups(); ++group) {
      const HeadRange heads = pieces.Heads(group);
      const size_t width = lamina::PartOf(part, heads).q_width();
      const size_t first =
          size_t{context_.HeadsOf(layer, node).first + heads.first} * part.group() * part.head_dim;
      for (uint32_t i = 0; i < rows.count; ++i, from += width) {
        std::copy_n(from, width, out.row(rows.first + i) + first);
      }
    }
  }
  telemetry::AddTo(context_.counters.bytes_received, sizeof(header) + bytes);
  context_.laps.LapOf(lane, telemetry::WorkPart::kTake, layer, MemoryPeer(node), bytes);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
