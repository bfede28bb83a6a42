// SPDX-License-Identifier: Apache-2.0
//
// Int8Piece: where K and V of a piece lie in a window whose slots are INT8 (plan/fetch_pieces.h).
//
// Threading: plain values.

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

struct Int8Piece {
  kernels::Int8View int8;
  BFloat16* k = nullptr;  // Slots of open blocks, as KvView's on the host.
  BFloat16* v = nullptr;
  size_t head_stride = 0;
  size_t bytes = 0;

  // The view refers to this object, which must outlive it.
  kernels::KvView View() const {
    return {.k = k, .v = v, .head_stride = head_stride, .int8 = &int8};
  }
};

// The piece of the attention `part`: its heads alone. `data` is behind the window's header.
inline Int8Piece Int8PieceOf(const AttentionDescriptor& part, const plan::FetchPiece& piece,
                             std::byte* data) {
  const plan::FetchPlanes planes = plan::PlanesOf(piece, part.head_dim);
  return {.int8 = {.k = reinterpret_cast<uint8_t*>(data + planes.int8_k),
                   .v = reinterpret_cast<uint8_t*>(data + planes.int8_v),
                   .k_scales = reinterpret_cast<kernels::Int8Scale*>(data + planes.k_scales),
                   .v_scales = reinterpret_cast<kernels::Int8Scale*>(data + planes.v_scales),
                   .slots = piece.int8_slots,
                   .scale_slots = piece.scale_slots},
          .k = reinterpret_cast<BFloat16*>(data + planes.k),
          .v = reinterpret_cast<BFloat16*>(data + planes.v),
          .head_stride = size_t{piece.slots} * part.head_dim,
          .bytes = planes.end};
}

// The planes of one head of such a view.
inline kernels::Int8View Int8HeadOf(const kernels::Int8View& view, size_t head, uint32_t head_dim) {
  const size_t first = head * view.slots;
  const size_t first_scales = head * view.k_scale_slots() * Int8ScalesOfSlot(head_dim);
  return {.k = view.k + first * head_dim,
          .v = view.v + first * head_dim,
          .k_scales = view.k_scales + first_scales,
          .v_scales = view.v_scales + first,
          .slots = view.slots,
          .scale_slots = view.scale_slots};
}

}  // namespace lamina::compute_node
