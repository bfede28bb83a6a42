// SPDX-License-Identifier: Apache-2.0
//
// ReplyWindowWriter, ReplyWindowReader: how the attention outputs of one unit lie in a reply
// window, for the memory node that writes them and the compute node that reads them. The layout
// stands here alone.
//
//   window   header | chunks, one behind the other
//   chunk    rows x outputs of the chunk's query heads, bf16
//            With spans: partials x query heads x [out | lse], f32; the partials of a row follow
//            each other in the order of its spans.
//
// A chunk is some rows with all heads, or some heads of all rows (plan/row_pieces.h). The queries
// that go first have no outputs of their own: each chunk is answered once.
//
// Rows, partials and heads count among those of the memory node. Neither class dereferences a
// window, save Scatter().
//
// Threading:   any; plain values.
// Allocation:  none.
// Determinism: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "plan/row_pieces.h"
#include "plan/window_header.h"

namespace lamina::plan {

// What a reply window holds.
struct ReplyShape {
  AttentionDescriptor part;    // The layer over the heads that the memory node was asked for.
  RowPieces pieces;            // pieces.kv_heads is part.kv_heads.
  uint32_t partial_width = 0;  // f32 of a partial of one head; 0: whole rows come.
  uint32_t partials = 0;       // Partials of all rows, with partial_width.
};

// Where the outputs of one chunk lie. Offsets are in bytes from the begin of the window.
class ReplyChunk {
 public:
  // Requires: chunk < pieces.chunks.
  ReplyChunk(const ReplyShape& shape, uint32_t chunk);

  uint32_t first_row() const { return first_row_; }
  uint32_t rows_end() const { return rows_end_; }
  HeadRange heads() const { return heads_; }             // KV heads.
  uint32_t query_heads() const { return query_heads_; }  // Query heads of these.
  uint32_t first_query_head() const { return first_query_head_; }
  // Elements: bf16 of a row, or f32 of a partial.
  size_t width() const { return width_; }

  // Outputs of a whole row. Requires: first_row() <= row < rows_end().
  size_t Row(uint32_t row) const { return begin_ + row * width_ * sizeof(BFloat16); }
  // The bytes of the chunk's whole rows.
  ByteRange Rows() const { return {.begin = Row(first_row_), .end = Row(rows_end_)}; }

  // A partial, of all query heads of the chunk.
  size_t Partial(uint32_t partial) const { return begin_ + partial * width_ * sizeof(float); }
  // The bytes of the chunk's partials [first, end).
  ByteRange Partials(uint32_t first, uint32_t end) const {
    return {.begin = Partial(first), .end = Partial(end)};
  }

 private:
  HeadRange heads_;
  uint32_t first_row_;
  uint32_t rows_end_;
  uint32_t query_heads_;
  uint32_t first_query_head_;
  size_t width_;
  size_t begin_;  // Where row 0, or partial 0, with these heads lies, or would lie.
};

// What both sides know of a window.
class ReplyWindow {
 public:
  explicit ReplyWindow(const ReplyShape& shape) : shape_(shape) {}

  const ReplyShape& shape() const { return shape_; }
  ReplyChunk Chunk(uint32_t chunk) const { return {shape_, chunk}; }
  // With the header.
  size_t bytes() const;

 private:
  ReplyShape shape_;
};

// The sender's side: where kernels are to write in memory that lies as the window does.
class ReplyWindowWriter : public ReplyWindow {
 public:
  // `window` begins with the header, and may be memory that the processor does not reach.
  ReplyWindowWriter(const ReplyShape& shape, std::byte* window)
      : ReplyWindow(shape), window_(window) {}

  BFloat16* Row(const ReplyChunk& chunk, uint32_t row) const {
    return reinterpret_cast<BFloat16*>(window_ + chunk.Row(row));
  }
  float* Partial(const ReplyChunk& chunk, uint32_t partial) const {
    return reinterpret_cast<float*>(window_ + chunk.Partial(partial));
  }

 private:
  std::byte* window_;
};

// The receiver's side.
class ReplyWindowReader : public ReplyWindow {
 public:
  ReplyWindowReader(const ReplyShape& shape, const std::byte* window)
      : ReplyWindow(shape), window_(window) {}

  const std::byte* header() const { return window_; }

  // Copies all outputs to rows of `stride` elements, which have those of the node's query heads
  // from `out` on. Requires: whole rows.
  void Scatter(BFloat16* out, size_t stride) const;

  // [out | lse] of one of the chunk's query heads, counted from first_query_head().
  const float* Partial(const ReplyChunk& chunk, uint32_t partial, uint32_t query_head) const {
    return reinterpret_cast<const float*>(window_ + chunk.Partial(partial)) +
           size_t{query_head} * shape().partial_width;
  }

 private:
  const std::byte* window_;
};

}  // namespace lamina::plan
