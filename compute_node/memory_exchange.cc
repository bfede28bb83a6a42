// SPDX-License-Identifier: Apache-2.0
#include "compute_node/memory_exchange.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

MemoryExchange::MemoryExchange(const WorkerContext& context, SequenceTable& sequences,
                               ThreadPool& pool)
    : context_(context),
      sequences_(sequences),
      pool_(pool),
      lanes_(context.config.lanes),
      folded_(pool.threads()) {
  const plan::EpochConfig& config = context.config;
  const size_t nodes = config.memory_nodes.size();
  for (uint32_t lane = 0; lane < config.lanes; ++lane) {
    LaneState& state = lanes_[lane];
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

absl::Status MemoryExchange::RegisterSources() {
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

void MemoryExchange::Await(const Lane& lane) {
  LaneState& state = lanes_[lane.index];
  for (uint32_t node = 0; node < state.units.size(); ++node) {
    state.units[node].awaited = lane.nodes[node].involved();
  }
  state.partials_due = BySpan(context_.config) && lane.decode_rows > 0;
}

void MemoryExchange::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
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
absl::Status MemoryExchange::Send(Lane& lane) {
  const std::vector<Unit>& units = lanes_[lane.index].units;
  uint32_t most = 0;
  for (uint32_t node = 0; node < units.size(); ++node) {
    if (lane.nodes[node].involved()) {
      BeginSend(lane, node);
      most = std::max(most, units[node].pieces.count());
    }
  }
  for (uint32_t piece = 0; piece < most; ++piece) {
    for (uint32_t node = 0; node < units.size(); ++node) {
      if (!lane.nodes[node].involved() || piece >= units[node].pieces.count()) {
        continue;
      }
      LAMINA_RETURN_IF_ERROR(SendPiece(lane, node, piece));
    }
  }
  return absl::OkStatus();
}

void MemoryExchange::BeginSend(Lane& lane, uint32_t node) {
  LaneState& state = lanes_[lane.index];
  Unit& unit = state.units[node];
  unit.pieces = PiecesTo(lane, lane.slice, node);
  state.headers[node] = context_.QueryHeader(lane, node);
  if (ByHead(context_.config) || BySpan(context_.config) || unit.pieces.query_first ||
      unit.pieces.head_groups() > 1) {
    StageRows(lane, node);
  } else {
    const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
    const RowRange& rows = lane.nodes[node].rows;
    unit.staged = {qkv.row(rows.first), rows.count * qkv.cols};
  }
}

// How the rows of the layer that go to the node, and their outputs, are cut.
plan::RowPieces MemoryExchange::PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const {
  return plan::PiecesOf(lane.plan.chunking, lane.nodes[node].rows.count,
                        context_.PartOf(layer, node).kv_heads);
}

// The header goes before the first piece, k and v of prompt chunks behind the last one.
absl::Status MemoryExchange::SendPiece(Lane& lane, uint32_t node, uint32_t piece) {
  const Unit& unit = lanes_[lane.index].units[node];
  const plan::WindowHeader& header = lanes_[lane.index].headers[node];
  const uint32_t pieces = unit.pieces.count();
  const uint64_t value = context_.UnitValue(lane, lane.slice);
  const size_t window = context_.layout.QueryWindow(context_.node, lane.index, value);
  const transport::SignalUpdate signal{
      .word = context_.layout.query_word(context_.node, lane.index),
      .value = plan::PieceValue(value, piece, pieces)};
  const bool kv_follows = piece + 1 == pieces && lane.nodes[node].kv_rows.count > 0;
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

absl::StatusOr<bool> MemoryExchange::Take(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  bool awaited = false;
  for (uint32_t node = 0; node < state.units.size(); ++node) {
    Unit& unit = state.units[node];
    if (!unit.awaited) {
      continue;
    }
    if (context_.region.LoadSignal(context_.layout.reply_word(node, lane.index)) <
        context_.UnitValue(lane, lane.slice - 1)) {
      awaited = true;
      continue;
    }
    LAMINA_RETURN_IF_ERROR(TakeReply(lane, node));
    unit.awaited = false;
  }
  if (!awaited && state.partials_due) {
    state.partials_due = false;
    MergePartials(lane);
  }
  return !awaited;
}

absl::Status MemoryExchange::TakeReply(Lane& lane, uint32_t node) {
  const uint32_t layer = lane.slice - 1;
  const RowRange& rows = lane.nodes[node].rows;
  const std::byte* window =
      context_.region.bytes().data() +
      context_.layout.ReplyWindow(node, lane.index, context_.UnitValue(lane, layer));
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(context_.peers.CheckWindow(MemoryPeer(node), header,
                                                    context_.ReplyHeader(lane, layer, node)));
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  if (BySpan(context_.config)) {  // Merged when all nodes have answered.
    const size_t partials = lane.nodes[node].partials * PartialBytes(layer);
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
