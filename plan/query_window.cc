// SPDX-License-Identifier: Apache-2.0
#include "plan/query_window.h"

#include <algorithm>

namespace lamina::plan {

QueryChunk::QueryChunk(const QueryShape& shape, uint32_t chunk)
    : heads_(shape.pieces.Heads(chunk)),
      first_row_(shape.pieces.FirstRow(chunk)),
      rows_end_(shape.pieces.RowsEnd(chunk)),
      own_rows_(shape.own_rows),
      ahead_(shape.pieces.query_first && chunk == 0 ? rows_end_ : 0),
      q_width_(size_t{heads_.count} * shape.part.group() * shape.part.head_dim),
      kv_width_(size_t{heads_.count} * shape.part.head_dim) {
  // What all rows have of the heads before.
  const size_t head_dim = shape.part.head_dim;
  begin_ = heads_.first * (size_t{shape.pieces.rows} * shape.part.group() * head_dim +
                           OwnBefore(shape.pieces.rows) * 2 * head_dim);
}

ByteRange QueryWindow::Piece(uint32_t piece) const {
  const bool first = shape_.pieces.query_first;
  const QueryChunk chunk = Chunk(piece - (first && piece > 0 ? 1 : 0));
  size_t begin = chunk.begin();
  size_t end = chunk.end();
  if (first && piece <= 1) {
    (piece == 0 ? end : begin) = chunk.queries_end();
  }
  return {.begin = ByteOf(begin), .end = ByteOf(end)};
}

ByteRange QueryWindow::Prompts() const {
  const size_t begin = ByteOf(Chunk(shape_.pieces.chunks - 1).end());
  return {.begin = begin, .end = begin + shape_.prompt_tokens * prompt_width() * sizeof(BFloat16)};
}

bool QueryWindowWriter::LieAsIn(const LayerRows& rows) const {
  const RowPieces& pieces = shape().pieces;
  return shape().part.kv_heads == rows.layer.kv_heads && rows.stride == rows.layer.qkv_width() &&
         shape().own_rows == pieces.rows && !pieces.query_first && pieces.head_groups() == 1;
}

void QueryWindowWriter::Gather(const LayerRows& rows, const RowSelection& selected,
                               BFloat16* to) const {
  const AttentionDescriptor& layer = rows.layer;
  for (uint32_t index = 0; index < shape().pieces.chunks; ++index) {
    const QueryChunk chunk = Chunk(index);
    const size_t first = (size_t{first_head_} + chunk.heads().first) * layer.head_dim;
    for (uint32_t i = chunk.first_row(); i < chunk.rows_end(); ++i) {
      const BFloat16* row = rows.row(selected[i]);
      std::copy_n(row + first * layer.group(), chunk.q_width(), to + chunk.q(i));
      if (chunk.own(i)) {
        const BFloat16* k = row + layer.q_width() + first;
        std::copy_n(k, chunk.kv_width(), to + chunk.k(i));
        std::copy_n(k + layer.kv_width(), chunk.kv_width(), to + chunk.v(i));
      }
    }
  }
}

void QueryWindowWriter::GatherPrompt(const LayerRows& rows, uint32_t row, uint32_t token,
                                     BFloat16* to) const {
  const AttentionDescriptor& layer = rows.layer;
  const size_t width = shape().part.kv_width();
  const BFloat16* k = rows.row(row) + layer.q_width() + size_t{first_head_} * layer.head_dim;
  to += token * prompt_width();
  std::copy_n(k, width, to);
  std::copy_n(k + layer.kv_width(), width, to + width);
}

}  // namespace lamina::plan
