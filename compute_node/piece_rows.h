// SPDX-License-Identifier: Apache-2.0
//
// PieceRows: where the rows of a lane's slice have their q, k, v and outputs for the KV heads of a
// piece that a memory node has put here (piece_windows.h), and the small KV arena that the piece
// is.
//
// Threading: the data thread. Allocation: Fill()'s list.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "compute_node/lane.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/matrix_view.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class PieceRows {
 public:
  // `elements` are those of the piece of bf16 slots, which `node` sent of this layer.
  PieceRows(const WorkerContext& context, Lane& lane, uint32_t node, uint32_t layer,
            const plan::FetchPiece& piece, BFloat16* elements);

  // The piece's heads, counted from the layer's first one, and their shape.
  HeadRange heads() const { return heads_; }
  const AttentionDescriptor& part() const { return part_; }
  // Shapes: as KvView's on the host, of the piece's slots.
  kernels::KvView View() const { return {.k = k_, .v = v_, .head_stride = head_stride_}; }

  // Shapes: [tokens, kv_heads or query_heads of part(), head_dim] bf16 from a row of the step on,
  // with that stride between tokens.
  const BFloat16* q(uint32_t row) const { return qkv_.row(row) + first_q_; }
  const BFloat16* k(uint32_t row) const { return qkv_.row(row) + first_k_; }
  const BFloat16* v(uint32_t row) const { return k(row) + kv_width_; }
  size_t qkv_stride() const { return qkv_.stride; }
  BFloat16* out(uint32_t row) const { return out_.row(row) + first_q_; }
  size_t out_stride() const { return out_.stride; }

  // Stores k and v of rows from `row` on into slots of the piece.
  void Store(uint32_t row, const Extent& slots) const {
    kernels::StoreKv(part_, k(row), v(row), qkv_.stride, {&slots, 1}, k_, v_, head_stride_);
  }

  // Copies tokens of the piece's heads from slots of an arena of all heads of the layer, as many as
  // `slots` has, into these.
  void Fill(const kernels::KvView& arena, absl::Span<const Extent> tokens,
            const Extent& slots) const;

 private:
  const kernels::MatrixView<BFloat16> qkv_;
  const kernels::MatrixView<BFloat16> out_;
  const HeadRange heads_;
  const AttentionDescriptor part_;
  const size_t first_q_;
  const size_t first_k_;
  const size_t kv_width_;
  BFloat16* const k_;
  BFloat16* const v_;
  const size_t head_stride_;
};

}  // namespace lamina::compute_node
