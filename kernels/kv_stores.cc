// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_stores.h"

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

// Pieces end at multiples of this. Lines of a tile of K have elements of many tokens, so that two
// threads of one tile would take them from each other.
constexpr uint32_t kPieceSlots = 4 * kTileSlots;

// Elements of K below which one thread stores all: eight rows of three heads of 64, some 10 us. A
// thread takes some microseconds to wake.
constexpr size_t kLeastElements = size_t{8} * 3 * 64;

}  // namespace

void KvStores::Add(const KvRows& rows) {
  size_t token = 0;
  for (const Extent& extent : rows.slots) {
    for (uint32_t done = 0; done < extent.tokens;) {
      const uint32_t slot = extent.first_slot + done;
      const uint32_t count = std::min(extent.tokens - done, kPieceSlots - slot % kPieceSlots);
      pieces_.push_back({.k = rows.k + token * rows.stride,
                         .v = rows.v + token * rows.stride,
                         .stride = rows.stride,
                         .slots = {.first_slot = slot, .tokens = count}});
      done += count;
      token += count;
    }
  }
  tokens_ += token;
}

void KvStores::Run(HeadRange heads, size_t head_dim, const KvPlanes& to) {
  const AttentionDescriptor one_head = {.kv_heads = 1, .head_dim = static_cast<uint32_t>(head_dim)};
  const auto store = [&](size_t index) {
    const Piece& piece = pieces_[index / heads.count];
    const size_t head = index % heads.count;
    const size_t from = head * head_dim;
    const size_t plane = (heads.first + head) * to.head_stride;
    StoreKv(one_head, piece.k + from, piece.v + from, piece.stride, {&piece.slots, 1}, to.k + plane,
            to.v + plane, to.head_stride);
  };
  const size_t count = pieces_.size() * heads.count;
  if (tokens_ * heads.count * head_dim < kLeastElements) {
    for (size_t index = 0; index < count; ++index) {
      store(index);
    }
  } else {
    pool_.Run(count, [&store](size_t index, size_t) { store(index); });
  }
  pieces_.clear();
  tokens_ = 0;
}

}  // namespace lamina::kernels
