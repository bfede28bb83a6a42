// SPDX-License-Identifier: Apache-2.0
#include "plan/reply_window.h"

#include <cstring>

namespace lamina::plan {

ReplyChunk::ReplyChunk(const ReplyShape& shape, uint32_t chunk)
    : heads_(shape.pieces.Heads(chunk)),
      first_row_(shape.pieces.FirstRow(chunk)),
      rows_end_(shape.pieces.RowsEnd(chunk)),
      query_heads_(heads_.count * shape.part.group()),
      first_query_head_(heads_.first * shape.part.group()) {
  const bool whole = shape.partial_width == 0;
  const size_t head = whole ? shape.part.head_dim : shape.partial_width;
  const size_t element = whole ? sizeof(BFloat16) : sizeof(float);
  width_ = query_heads_ * head;
  // What all rows, or partials, have of the heads before.
  begin_ = sizeof(WindowHeader) +
           size_t{whole ? shape.pieces.rows : shape.partials} * first_query_head_ * head * element;
}

size_t ReplyWindow::bytes() const {
  const ReplyChunk last = Chunk(shape_.pieces.chunks - 1);
  return shape_.partial_width == 0 ? last.Rows().end : last.Partial(shape_.partials);
}

void ReplyWindowReader::Scatter(BFloat16* out, size_t stride) const {
  for (uint32_t index = 0; index < shape().pieces.chunks; ++index) {
    const ReplyChunk chunk = Chunk(index);
    if (chunk.Rows().size() == 0) {
      continue;  // `out` may be null.
    }
    BFloat16* const to = out + size_t{chunk.first_query_head()} * shape().part.head_dim;
    if (chunk.width() == stride) {
      std::memcpy(to + chunk.first_row() * stride, window_ + chunk.Rows().begin,
                  chunk.Rows().size());
      continue;
    }
    for (uint32_t row = chunk.first_row(); row < chunk.rows_end(); ++row) {
      std::memcpy(to + row * stride, window_ + chunk.Row(row), chunk.width() * sizeof(BFloat16));
    }
  }
}

}  // namespace lamina::plan
