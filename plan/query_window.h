// SPDX-License-Identifier: Apache-2.0
//
// QueryWindowWriter, QueryWindowReader: how the rows of one unit lie in a query window, for the
// compute node that writes them and the memory node that reads them. The layout stands here alone.
//
//   window   header | chunks, one behind the other | prompt tokens x [k | v | activation]
//   chunk    rows x [q | k | v], of the chunk's heads. Rows whose own token lies on another memory
//            node come last and are q alone.
//   first chunk, where queries go first
//            rows x q | own rows x [k | v]
//
// A chunk is some rows with all heads, or some heads of all rows (plan/row_pieces.h). Prompt tokens
// always have all heads. Elements are bf16.
//
// Rows count among the rows of the unit for this memory node, heads among the heads that it is
// asked for. Neither class dereferences a window, so that windows may lie in a device's memory.
//
// Threading:   any; plain values.
// Allocation:  none.
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "plan/row_pieces.h"
#include "plan/window_header.h"

namespace lamina::plan {

// What a query window holds.
struct QueryShape {
  AttentionDescriptor part;  // The layer over the heads that the memory node is asked for.
  RowPieces pieces;          // pieces.kv_heads is part.kv_heads.
  uint32_t own_rows = 0;     // So many rows, the first ones, bring k and v.
  uint32_t prompt_tokens = 0;
  uint32_t activation_width = 0;  // Elements of the activation of a prompt token; 0: it has none.
};

// Where the rows of one chunk lie. Offsets are in elements from the end of the header.
class QueryChunk {
 public:
  // The head groups and row ranges that `chunk` has in `shape`. Requires: chunk < pieces.chunks.
  QueryChunk(const QueryShape& shape, uint32_t chunk);

  uint32_t first_row() const { return first_row_; }
  uint32_t rows_end() const { return rows_end_; }
  HeadRange heads() const { return heads_; }
  size_t q_width() const { return q_width_; }
  size_t kv_width() const { return kv_width_; }  // Elements of k, and as many of v.

  // Whether the row brings k and v.
  bool own(uint32_t row) const { return row < own_rows_; }
  // Requires: first_row() <= row < rows_end(), and own(row) for k and v.
  size_t q(uint32_t row) const {
    return begin_ + row * q_width_ + (row < ahead_ ? 0 : OwnBefore(row) * 2 * kv_width_);
  }
  size_t k(uint32_t row) const {
    return row < ahead_ ? begin_ + ahead_ * q_width_ + row * 2 * kv_width_ : q(row) + q_width_;
  }
  size_t v(uint32_t row) const { return k(row) + kv_width_; }

  // All of the chunk.
  size_t begin() const { return q(first_row_); }
  size_t end() const {
    return begin_ + rows_end_ * q_width_ + OwnBefore(rows_end_) * 2 * kv_width_;
  }
  // Where the queries of a first chunk end, if they go first; else begin().
  size_t queries_end() const { return ahead_ > 0 ? begin_ + ahead_ * q_width_ : begin(); }

 private:
  size_t OwnBefore(uint32_t row) const { return std::min(row, own_rows_); }

  HeadRange heads_;
  uint32_t first_row_;
  uint32_t rows_end_;
  uint32_t own_rows_;
  uint32_t ahead_;  // Rows whose queries go first.
  size_t q_width_;
  size_t kv_width_;
  size_t begin_;  // Where row 0 with these heads lies, or would lie.
};

// What both sides know of a window.
class QueryWindow {
 public:
  explicit QueryWindow(const QueryShape& shape) : shape_(shape) {}

  const QueryShape& shape() const { return shape_; }
  QueryChunk Chunk(uint32_t chunk) const { return {shape_, chunk}; }
  // The byte of the window at which an element lies.
  static size_t ByteOf(size_t element) { return sizeof(WindowHeader) + element * sizeof(BFloat16); }

  // The bytes of the window that piece `piece` covers, without the header and prompt tokens.
  // Requires: piece < shape().pieces.count().
  ByteRange Piece(uint32_t piece) const;
  // The bytes of prompt tokens, behind the last piece.
  ByteRange Prompts() const;
  // Elements between two prompt tokens.
  size_t prompt_width() const {
    return 2 * size_t{shape_.part.kv_width()} + shape_.activation_width;
  }
  size_t bytes() const { return Prompts().end; }

 private:
  QueryShape shape_;
};

// Says which rows of a matrix go to a memory node: consecutive ones, or those that are listed.
struct RowSelection {
  uint32_t first = 0;
  absl::Span<const uint32_t> listed = {};
  uint32_t operator[](uint32_t i) const { return listed.empty() ? first + i : listed[i]; }
};

// Rows [q | k | v] of a layer with all heads that the sender has, `stride` elements apart.
struct LayerRows {
  AttentionDescriptor layer;
  const BFloat16* data = nullptr;
  size_t stride = 0;
  const BFloat16* row(size_t i) const { return data + i * stride; }
};

// The sender's side. Rows are gathered into memory of the sender that then lies as the window does
// behind its header: byte range Piece(p) of the window is put from the gathered rows at
// StagedPiece(p).
class QueryWindowWriter : public QueryWindow {
 public:
  // `first_head`: the first of the layer's KV heads that go to the memory node.
  QueryWindowWriter(const QueryShape& shape, uint32_t first_head)
      : QueryWindow(shape), first_head_(first_head) {}

  // Elements that Gather() and GatherPrompt() write.
  size_t staged_elements() const {
    return (Prompts().begin - sizeof(WindowHeader)) / sizeof(BFloat16);
  }
  size_t prompt_elements() const { return shape().prompt_tokens * prompt_width(); }

  // Whether gathered rows would be consecutive ones as they are in `rows`, so that they can be put
  // from there.
  bool LieAsIn(const LayerRows& rows) const;

  // Writes all pieces behind `to`.
  void Gather(const LayerRows& rows, const RowSelection& selected, BFloat16* to) const;

  // Writes k and v of prompt token `token`, whose row of the layer is `row`, behind `to`, where
  // those of token 0 begin.
  void GatherPrompt(const LayerRows& rows, uint32_t row, uint32_t token, BFloat16* to) const;
  // Writes the token's activation behind them.
  void GatherActivation(const BFloat16* activation, uint32_t token, BFloat16* to) const {
    std::copy_n(activation, shape().activation_width,
                to + token * prompt_width() + 2 * size_t{shape().part.kv_width()});
  }

  // Piece(piece) in elements of what Gather() wrote.
  absl::Span<const BFloat16> StagedPiece(const BFloat16* staged, uint32_t piece) const {
    const ByteRange range = Piece(piece);
    return {staged + (range.begin - sizeof(WindowHeader)) / sizeof(BFloat16),
            range.size() / sizeof(BFloat16)};
  }

 private:
  uint32_t first_head_;
};

// The receiver's side: addresses in a window that kernels take, with strides, as arguments.
class QueryWindowReader : public QueryWindow {
 public:
  // `window` begins with the header, and may be memory that the processor does not reach.
  QueryWindowReader(const QueryShape& shape, const std::byte* window)
      : QueryWindow(shape),
        rows_(reinterpret_cast<const BFloat16*>(window + sizeof(WindowHeader))) {}

  const BFloat16* At(size_t element) const { return rows_ + element; }
  // k of the prompt tokens from `token` on; v is part.kv_width() elements behind, the activation
  // as many behind v, the next token prompt_width().
  const BFloat16* Prompt(uint32_t token) const {
    return At((Prompts().begin - sizeof(WindowHeader)) / sizeof(BFloat16) + token * prompt_width());
  }

 private:
  const BFloat16* rows_;
};

}  // namespace lamina::plan
