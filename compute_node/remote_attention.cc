// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_attention.h"

#include <algorithm>

#include "common/status_macros.h"
#include "compute_node/step_layout.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

RemoteAttention::RemoteAttention(const WorkerContext& context, const ScratchAttention& chunks)
    : context_(context), chunks_(chunks), lanes_(context.config.lanes), merge_(context) {
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

uint64_t RemoteAttention::buffer_bytes() const {
  uint64_t bytes = 0;
  for (const LaneState& state : lanes_) {
    bytes += (state.kv_staging.size() + state.row_staging.size()) * sizeof(BFloat16);
  }
  return bytes;
}

// Registers what puts are made from.
absl::Status RemoteAttention::Open() {
  for (const LaneState& state : lanes_) {
    for (const absl::Span<const std::byte> source :
         {transport::AsBytes(state.headers.data(), state.headers.size()),
          transport::AsBytes(state.kv_staging.data(), state.kv_staging.size()),
          transport::AsBytes(state.row_staging.data(), state.row_staging.size())}) {
      if (!source.empty()) {
        LAMINA_RETURN_IF_ERROR(control::TransportFault(
            context_.transport.RegisterSource(source, transport::MemoryKind::kHost)));
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
  chunks_.BeginStep(lane, rows);
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
    context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kDense, lane.slice);
  }
  LAMINA_RETURN_IF_ERROR(Send(lane));
  return chunks_.Attend(lane);  // While decode rows attend at the memory nodes.
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
      most = std::max(most, units[node].window.shape().pieces.count());
    }
  }
  for (uint32_t piece = 0; piece < most; ++piece) {
    for (uint32_t node = 0; node < units.size(); ++node) {
      if (!RowsTo(lane, node).involved() || piece >= units[node].window.shape().pieces.count()) {
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
  const NodeRows& to_node = RowsTo(lane, node);
  const bool by_span = BySpan(context_.config);
  unit.window =
      plan::QueryWindowWriter({.part = context_.PartOf(lane.slice, node),
                               .pieces = PiecesTo(lane, lane.slice, node),
                               .own_rows = by_span ? to_node.own_rows : to_node.rows.count,
                               .prompt_tokens = to_node.kv_rows.count},
                              context_.HeadsOf(lane.slice, node).first);
  state.headers[node] = QueryHeader(lane, node);
  const plan::LayerRows rows = LayerRowsOf(lane);
  if (!by_span && unit.window.LieAsIn(rows)) {
    unit.staged = rows.row(to_node.rows.first);
  } else {
    BFloat16* const staging = RowStaging(lane, node);
    unit.window.Gather(rows, {.first = to_node.rows.first, .listed = to_node.span_rows}, staging);
    unit.staged = staging;
  }
}

plan::LayerRows RemoteAttention::LayerRowsOf(Lane& lane) const {
  const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  return {.layer = context_.config.layers[lane.slice], .data = qkv.row(0), .stride = qkv.stride};
}

// The parts of the stagings where a memory node's rows lie; no two nodes' overlap.
BFloat16* RemoteAttention::RowStaging(const Lane& lane, uint32_t node) {
  const AttentionDescriptor part = context_.PartOf(lane.slice, node);
  std::vector<BFloat16>& all = lanes_[lane.index].row_staging;
  if (BySpan(context_.config)) {
    return all.data() + all.size() / RowsOf(lane).nodes.size() * node;
  }
  if (ByHead(context_.config)) {
    const size_t head_width = part.qkv_width() / part.kv_heads;
    return all.data() +
           size_t{context_.HeadsOf(lane.slice, node).first} * head_width * context_.config.rows_max;
  }
  return all.data() + size_t{RowsTo(lane, node).rows.first} * part.qkv_width();
}

BFloat16* RemoteAttention::KvStaging(const Lane& lane, uint32_t node) {
  const AttentionDescriptor part = context_.PartOf(lane.slice, node);
  return lanes_[lane.index].kv_staging.data() +
         size_t{context_.HeadsOf(lane.slice, node).first} * 2 * part.head_dim *
             context_.config.chunk_tokens_max +
         size_t{RowsTo(lane, node).kv_rows.first} * 2 * part.kv_width();
}

// Gathers k and v of the chunks' tokens that the node holds.
void RemoteAttention::GatherPrompts(Lane& lane, uint32_t node) {
  const LaneState& state = lanes_[lane.index];
  const plan::LayerRows rows = LayerRowsOf(lane);
  BFloat16* const staging = KvStaging(lane, node);
  uint32_t token = 0;
  for (const ChunkRows& chunk : ChunksOf(lane, state.path_rows)) {
    const Sequence& sequence = *context_.sequences.Find(chunk.plan.sequence);
    for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
      if (HoldsToken(context_.config, node, sequence, chunk.plan.first_token + i)) {
        state.units[node].window.GatherPrompt(rows, chunk.first_row + i, token++, staging);
      }
    }
  }
}

// How the rows of the layer that go to the node, and their outputs, are cut.
plan::RowPieces RemoteAttention::PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const {
  return plan::PiecesOf(lane.plan.chunking, RowsTo(lane, node).rows.count,
                        context_.PartOf(layer, node).kv_heads);
}

// The header goes before the first piece, k and v of prompt chunks behind the last one.
absl::Status RemoteAttention::SendPiece(Lane& lane, uint32_t node, uint32_t piece) {
  Unit& unit = lanes_[lane.index].units[node];
  unit.sent_at = context_.intervals.end();
  const plan::WindowHeader& header = lanes_[lane.index].headers[node];
  const uint32_t pieces = unit.window.shape().pieces.count();
  const uint64_t value = context_.UnitValue(lane, lane.slice);
  const size_t window = context_.layout.QueryWindow(context_.node, lane.index, value);
  const transport::SignalUpdate signal{
      .word = context_.layout.query_word(context_.node, lane.index),
      .value = plan::PieceValue(value, piece, pieces)};
  const bool kv_follows = piece + 1 == pieces && unit.window.prompt_elements() > 0;
  SentBytes sent;
  if (piece == 0) {
    LAMINA_RETURN_IF_ERROR(Put(node, window, transport::AsBytes(&header, 1), nullptr));
    sent.rows += sizeof(header);
  }
  const auto rows = unit.window.StagedPiece(unit.staged, piece);
  LAMINA_RETURN_IF_ERROR(Put(node, window + unit.window.Piece(piece).begin,
                             transport::AsBytes(rows.data(), rows.size()),
                             kv_follows ? nullptr : &signal));
  sent.rows += rows.size() * sizeof(BFloat16);
  if (kv_follows) {
    GatherPrompts(lane, node);
    const auto kv = transport::AsBytes(KvStaging(lane, node), unit.window.prompt_elements());
    LAMINA_RETURN_IF_ERROR(Put(node, window + unit.window.Prompts().begin, kv, &signal));
    sent.kv += kv.size();
  }
  const size_t bytes = sent.sum();
  unit.sent_bytes = bytes;
  const PeerId peer = MemoryPeer(node);
  context_.peers.CountSent(
      peer, sent,
      context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kSend, lane.slice, peer, bytes));
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
    merge_.Run(lane, state.rows, [&](uint32_t node) { return ReplyFrom(lane, node); });
  }
  if (!context_.windows.on_device()) {
    context_.executor.AttentionToDevice(layer, decode.first, decode.count, lane.buffers);
  }
  return true;
}

plan::ReplyWindowReader RemoteAttention::ReplyFrom(const Lane& lane, uint32_t node) const {
  const uint32_t layer = lane.slice - 1;
  const bool by_span = BySpan(context_.config);
  return plan::ReplyWindowReader(
      {.part = context_.PartOf(layer, node),
       .pieces = PiecesTo(lane, layer, node),
       .partial_width =
           by_span ? static_cast<uint32_t>(kernels::PartialWidth(context_.config.layers[layer]))
                   : 0,
       .partials = by_span ? RowsTo(lane, node).partials : 0},
      context_.region.bytes().data() +
          context_.layout.ReplyWindow(node, lane.index, context_.UnitValue(lane, layer)));
}

absl::Status RemoteAttention::TakeReply(Lane& lane, uint32_t node) {
  const uint32_t layer = lane.slice - 1;
  const plan::ReplyWindowReader window = ReplyFrom(lane, node);
  LAMINA_ASSIGN_OR_RETURN(
      const plan::WindowHeader header,
      context_.windows.ReadHeader(
          context_.layout.ReplyWindow(node, lane.index, context_.UnitValue(lane, layer)),
          window.bytes()));
  LAMINA_RETURN_IF_ERROR(
      context_.peers.CheckWindow(MemoryPeer(node), header, ReplyHeader(lane, layer, node)));
  if (context_.windows.on_device()) {
    TakeOnDevice(lane, node, window);
  } else if (!BySpan(context_.config)) {  // Partials are merged when all nodes have answered.
    TakeOnHost(lane, node, window);
  }
  telemetry::AddTo(context_.counters.bytes_received, window.bytes());
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, layer, MemoryPeer(node),
                                   window.bytes() - sizeof(header));
  const Unit& unit = lanes_[lane.index].units[node];
  context_.peers.CountExchange(MemoryPeer(node), unit.sent_at, context_.intervals.end(),
                               unit.sent_bytes + window.bytes());
  return absl::OkStatus();
}

void RemoteAttention::TakeOnHost(Lane& lane, uint32_t node, const plan::ReplyWindowReader& window) {
  const uint32_t layer = lane.slice - 1;
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  const AttentionDescriptor& shape = context_.config.layers[layer];
  const size_t first = size_t{context_.HeadsOf(layer, node).first} * shape.group() * shape.head_dim;
  window.Scatter(out.row(RowsTo(lane, node).rows.first) + first, out.stride);
}

// The copies are in order with the slice that reads them, and with the query behind which the peer
// may write the window again. Requires: partition request.
void RemoteAttention::TakeOnDevice(Lane& lane, uint32_t node,
                                   const plan::ReplyWindowReader& window) {
  const uint32_t layer = lane.slice - 1;
  const auto out =
      context_.executor.DeviceAttentionRows(layer, lane.positions.size(), lane.buffers);
  BFloat16* const first = out.row(RowsTo(lane, node).rows.first);
  for (uint32_t index = 0; index < window.shape().pieces.chunks; ++index) {
    const plan::ReplyChunk chunk = window.Chunk(index);
    context_.executor.device().CopyRows(
        {.to = first + chunk.first_row() * out.stride +
               size_t{chunk.first_query_head()} * window.shape().part.head_dim,
         .to_stride = out.stride * sizeof(BFloat16),
         .from = window.header() + chunk.Rows().begin,
         .from_stride = chunk.width() * sizeof(BFloat16),
         .row_bytes = chunk.width() * sizeof(BFloat16),
         .rows = chunk.rows_end() - chunk.first_row()});
  }
}

}  // namespace lamina::compute_node
