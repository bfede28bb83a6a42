// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compute_node/remote_attention.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

// The parts of the stagings where a memory node's rows lie; no two nodes' overlap.
absl::Span<BFloat16> RemoteAttention::RowStaging(const Lane& lane, uint32_t node) {
  const AttentionDescriptor part = context_.PartOf(lane.slice, node);
  const absl::Span<BFloat16> all = absl::MakeSpan(lanes_[lane.index].row_staging);
  if (BySpan(context_.config)) {
    const size_t nodes = RowsOf(lane).nodes.size();
    return all.subspan(all.size() / nodes * node, all.size() / nodes);
  }
  const size_t elements = size_t{RowsTo(lane, node).rows.count} * part.qkv_width();
  if (ByHead(context_.config)) {
    const size_t head_width = part.qkv_width() / part.kv_heads;
    return all.subspan(
        size_t{context_.HeadsOf(lane.slice, node).first} * head_width * context_.config.rows_max,
        elements);
  }
  return all.subspan(size_t{RowsTo(lane, node).rows.first} * part.qkv_width(), elements);
}

absl::Span<BFloat16> RemoteAttention::KvStaging(const Lane& lane, uint32_t node) {
  const AttentionDescriptor part = context_.PartOf(lane.slice, node);
  const size_t token_width = 2 * size_t{part.kv_width()};
  const size_t offset = size_t{context_.HeadsOf(lane.slice, node).first} * 2 * part.head_dim *
                            context_.config.chunk_tokens_max +
                        RowsTo(lane, node).kv_rows.first * token_width;
  return absl::MakeSpan(lanes_[lane.index].kv_staging)
      .subspan(offset, RowsTo(lane, node).kv_rows.count * token_width);
}

// Gathers q, k and v of the node's rows and heads, as its query window has them: one group of heads
// after the other, if chunks are these.
void RemoteAttention::StageRows(Lane& lane, uint32_t node) {
  const plan::RowPieces& pieces = lanes_[lane.index].units[node].pieces;
  BFloat16* const begin = RowStaging(lane, node).data();
  BFloat16* to = begin;
  for (uint32_t group = 0; group < pieces.head_groups(); ++group) {
    HeadRange heads = pieces.Heads(group);
    heads.first += context_.HeadsOf(lane.slice, node).first;
    const uint32_t ahead = pieces.query_first && group == 0 ? pieces.RowsEnd(0) : 0;
    to = StageHeads(lane, node, heads, ahead, to);
  }
  lanes_[lane.index].units[node].staged = {begin, static_cast<size_t>(to - begin)};
}

// Of these heads [q | k | v] of each row, q alone where its token lies elsewhere; of the first
// `ahead` rows, whose queries go first, q of all and then their [k | v]. Returns where they end.
BFloat16* RemoteAttention::StageHeads(Lane& lane, uint32_t node, HeadRange heads, uint32_t ahead,
                                      BFloat16* to) {
  const NodeRows& to_node = RowsTo(lane, node);
  const AttentionDescriptor& shape = context_.config.layers[lane.slice];
  const AttentionDescriptor part = lamina::PartOf(shape, heads);
  const size_t first_kv = size_t{heads.first} * shape.head_dim;
  const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  BFloat16* kv = to + size_t{ahead} * part.q_width();  // Of the rows whose queries go first.
  for (uint32_t i = 0; i < to_node.rows.count; ++i) {
    const BFloat16* row =
        qkv.row(BySpan(context_.config) ? to_node.span_rows[i] : to_node.rows.first + i);
    to = i == ahead ? kv : to;
    to = std::copy_n(row + first_kv * shape.group(), part.q_width(), to);
    BFloat16*& next = i < ahead ? kv : to;
    if (!BySpan(context_.config) || i < to_node.own_rows) {
      const BFloat16* k = row + shape.q_width() + first_kv;
      next = std::copy_n(k, part.kv_width(), next);
      next = std::copy_n(k + shape.kv_width(), part.kv_width(), next);
    }
  }
  return ahead == to_node.rows.count ? kv : to;
}

// Gathers k and v of the chunks' rows, the same.
void RemoteAttention::StageChunks(Lane& lane, uint32_t node) {
  const AttentionDescriptor& shape = context_.config.layers[lane.slice];
  const AttentionDescriptor part = context_.PartOf(lane.slice, node);
  const size_t first_kv = size_t{context_.HeadsOf(lane.slice, node).first} * shape.head_dim;
  const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  BFloat16* to = KvStaging(lane, node).data();
  for (const ChunkRows& chunk : ChunksOf(lane, lanes_[lane.index].path_rows)) {
    const Sequence& sequence = *context_.sequences.Find(chunk.plan.sequence);
    for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
      if (!HoldsToken(context_.config, node, sequence, chunk.plan.first_token + i)) {
        continue;
      }
      const BFloat16* k = qkv.row(chunk.first_row + i) + shape.q_width() + first_kv;
      to = std::copy_n(k, part.kv_width(), to);
      to = std::copy_n(k + shape.kv_width(), part.kv_width(), to);
    }
  }
}

// Of the first so many rows that go to the node, with so many KV heads.
size_t RemoteAttention::StagedElements(const Lane& lane, uint32_t node, uint32_t rows,
                                       uint32_t kv_heads) const {
  const AttentionDescriptor shape =
      lamina::PartOf(context_.config.layers[lane.slice], {.count = kv_heads});
  const uint32_t own = BySpan(context_.config) ? std::min(rows, RowsTo(lane, node).own_rows) : rows;
  return size_t{own} * shape.qkv_width() + size_t{rows - own} * shape.q_width();
}

// Where piece `piece` of what goes to the node ends, in elements of its staged rows.
size_t RemoteAttention::PieceEnd(const Lane& lane, uint32_t node, uint32_t piece) const {
  const plan::RowPieces& pieces = lanes_[lane.index].units[node].pieces;
  const bool queries = pieces.query_first && piece == 0;
  const uint32_t chunk = piece - (pieces.query_first && !queries ? 1 : 0);
  const HeadRange heads = pieces.Heads(chunk);
  const uint32_t rows = pieces.RowsEnd(chunk);
  return queries ? size_t{rows} * lamina::PartOf(context_.PartOf(lane.slice, node), heads).q_width()
                 : StagedElements(lane, node, rows, heads.first + heads.count);
}

}  // namespace lamina::compute_node
