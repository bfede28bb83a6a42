// SPDX-License-Identifier: Apache-2.0
#include "kernels/int8_arena.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/k_tiles.h"
#include "kernels/stream_copy.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kTokens = kInt8BlockTokens;

bool IsFinite(BFloat16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }

Int8Scale ScaleOfValues(const float* values, size_t count) {
  float min = values[0];
  float max = values[0];
  for (size_t i = 1; i < count; ++i) {
    min = std::min(min, values[i]);
    max = std::max(max, values[i]);
  }
  return Int8ScaleOf(min, max);
}

// Widens them. Returns whether all are finite.
bool Widen(const BFloat16* from, size_t count, float* to) {
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    to[i] = ToFloat(from[i]);
    finite &= IsFinite(from[i]);
  }
  return finite;
}

// Where the tail and the slots of one block lie, of one KV head.
struct Head {
  size_t head_dim;
  const BFloat16* tail_k;  // Slot 0.
  const BFloat16* tail_v;
  size_t tail_slot;
  const uint32_t* slots;  // [64]
  bool in_tiles;          // They follow each other from a tile's first on.
  uint8_t* k;
  uint8_t* v;
  Int8Scale* k_scales;
  Int8Scale* v_scales;

  void CloseK() const {
    const size_t share = Int8ScalesOfSlot(static_cast<uint32_t>(head_dim));
    BFloat16 halves[kTokens];
    float values[kTokens];
    uint8_t bytes[kTokens];
    for (size_t channel = 0; channel < head_dim; ++channel) {
      ReadChannel(channel, halves);
      const bool finite = Widen(halves, kTokens, values);
      const Int8Scale scale = finite ? ScaleOfValues(values, kTokens) : kInt8NotFinite;
      Quantise(values, kTokens, scale, bytes);
      WriteChannel(channel, bytes);
      k_scales[slots[channel / share] * share + channel % share] = scale;
    }
  }

  void CloseV() const {
    float values[256];
    for (size_t t = 0; t < kTokens; ++t) {
      const bool finite = Widen(tail_v + (tail_slot + t) * head_dim, head_dim, values);
      const Int8Scale scale = finite ? ScaleOfValues(values, head_dim) : kInt8NotFinite;
      Quantise(values, head_dim, scale, v + slots[t] * head_dim);
      v_scales[slots[t]] = scale;
    }
  }

 private:
  // Reads a channel of the block's tokens. In whole tiles four tokens of a channel follow each
  // other.
  void ReadChannel(size_t channel, BFloat16* to) const {
    if (tail_slot % kTileSlots != 0) {
      for (size_t t = 0; t < kTokens; ++t) {
        to[t] = tail_k[OffsetInTiles(tail_slot + t, channel, head_dim)];
      }
      return;
    }
    constexpr size_t kQuad = 4;
    const BFloat16* tile = tail_k + OffsetInTiles(tail_slot, channel, head_dim);
    for (size_t t = 0; t < kTokens; t += kTileSlots, tile += kTileSlots * head_dim) {
      for (size_t quad = 0; quad < kTileSlots; quad += kQuad) {
        std::copy_n(tile + 2 * quad, kQuad, to + t + quad);
      }
    }
  }

  void WriteChannel(size_t channel, const uint8_t* bytes) const {
    for (size_t t = 0; t < kTokens; t += kTileSlots) {
      if (in_tiles) {
        std::copy_n(bytes + t, kTileSlots, k + OffsetInInt8Tiles(slots[t], channel, head_dim));
        continue;
      }
      for (size_t i = t; i < t + kTileSlots; ++i) {
        k[OffsetInInt8Tiles(slots[i], channel, head_dim)] = bytes[i];
      }
    }
  }

  static void Quantise(const float* values, size_t count, Int8Scale scale, uint8_t* to) {
    if (scale.step.bits == kInt8NotFinite.step.bits) {
      std::fill_n(to, count, uint8_t{0});
    } else {
      for (size_t i = 0; i < count; ++i) {
        to[i] = ToInt8(values[i], scale);
      }
    }
  }
};

// So many slots that are neighbours in a tile of K on both sides. No other slot is read or written.
// Where the compiler knows how many, a channel of them is a move or two, and no call.
using MoveNeighbours = void (*)(const uint8_t* source, uint8_t* target, size_t head_dim);

template <size_t kCount>
void MoveSome(const uint8_t* source, uint8_t* target, size_t head_dim) {
  for (size_t at = 0; at < head_dim * kTileSlots; at += kTileSlots) {
    std::memcpy(target + at, source + at, kCount);
  }
}

template <size_t... kLess>
constexpr std::array<MoveNeighbours, kTileSlots> MovesOf(std::index_sequence<kLess...>) {
  return {MoveSome<kLess + 1>...};
}
constexpr std::array<MoveNeighbours, kTileSlots> kMoves =
    MovesOf(std::make_index_sequence<kTileSlots>());

// Copies whole tiles of K, and V.
using Copy = void (*)(void* to, const void* from, size_t bytes);

// What comes out of an arena is read at once.
void CopyOut(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// `tokens` slots of K of one head, from tile to tile.
void MoveInt8Tiles(const uint8_t* from, size_t from_slot, uint8_t* to, size_t to_slot,
                   size_t tokens, size_t head_dim, Copy copy) {
  const size_t end = to_slot + tokens;
  while (to_slot < end) {
    const size_t from_place = from_slot % kTileSlots;
    const size_t to_place = to_slot % kTileSlots;
    const bool whole = from_place == 0 && to_place == 0;
    if (const size_t tiles = whole ? (end - to_slot) / kTileSlots : 0; tiles > 0) {
      copy(to + to_slot * head_dim, from + from_slot * head_dim, tiles * kTileSlots * head_dim);
      from_slot += tiles * kTileSlots;
      to_slot += tiles * kTileSlots;
      continue;
    }
    const size_t count = std::min({kTileSlots - from_place, kTileSlots - to_place, end - to_slot});
    kMoves[count - 1](from + OffsetInInt8Tiles(from_slot, 0, head_dim),
                      to + OffsetInInt8Tiles(to_slot, 0, head_dim), head_dim);
    from_slot += count;
    to_slot += count;
  }
}

// What the target has arrays for.
void CopySlots(uint32_t head_dim, const Int8View& from, size_t from_slot, const Int8View& to,
               size_t to_slot, size_t count, Copy copy) {
  if (to.k != nullptr) {
    MoveInt8Tiles(from.k, from_slot, to.k, to_slot, count, head_dim, copy);
    copy(to.v + to_slot * head_dim, from.v + from_slot * head_dim, count * head_dim);
    std::copy_n(from.v_scales + from_slot, count, to.v_scales + to_slot);
  }
  if (to.k_scales != nullptr) {
    const size_t share = Int8ScalesOfSlot(head_dim);
    std::copy_n(from.k_scales + from_slot * share, count * share, to.k_scales + to_slot * share);
  }
}

// Calls `run` with (slot, token, count) for each run of tokens [first, first + tokens) whose slots
// follow each other. Requires: `extents` name so many (CHECKed).
template <typename Run>
void ForEachRun(absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, const Run& run) {
  const uint32_t end = first + tokens;
  uint32_t token = 0;  // That the extent begins with.
  for (const Extent& extent : extents) {
    const uint32_t begin = std::max(first, token);
    const uint32_t upto = std::min(end, token + extent.tokens);
    if (begin < upto) {
      run(extent.first_slot + size_t{begin} - token, size_t{begin}, size_t{upto} - begin);
    }
    token += extent.tokens;
  }
  LAMINA_CHECK(end <= token);
}

}  // namespace

absl::StatusOr<Int8Arena> Int8Arena::Create(absl::Span<const AttentionDescriptor> layers,
                                            uint32_t slots) {
  const uint64_t slot_bytes = KvSlotBytes(layers, KvForm::kInt8);
  if (slots == 0 || slot_bytes == 0 || slot_bytes > (uint64_t{1} << 47) / slots) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", slots, " slots of ", slot_bytes,
                                                   " bytes of INT8 cannot be made"));
  }
  Int8Arena arena;
  arena.slots_ = slots;
  const size_t whole = WholeTiles(slots);
  LAMINA_ASSIGN_OR_RETURN(arena.memory_, ArenaMemory::Create(slot_bytes * whole));
  size_t offset = 0;
  const auto take = [&offset](size_t bytes) { return std::exchange(offset, offset + bytes); };
  for (const AttentionDescriptor& layer : layers) {
    const size_t heads = whole * layer.kv_heads;
    Plane plane{.head_dim = layer.head_dim};
    plane.k = take(heads * layer.head_dim);
    plane.v = take(heads * layer.head_dim);
    plane.k_scales = take(heads * Int8ScalesOfSlot(layer.head_dim) * sizeof(Int8Scale));
    plane.v_scales = take(heads * sizeof(Int8Scale));
    arena.planes_.push_back(plane);
  }
  LAMINA_CHECK(offset == slot_bytes * whole);
  return arena;
}

Int8View Int8Arena::View(uint32_t layer, uint32_t head) {
  const Plane& plane = planes_[layer];
  const size_t slots = WholeTiles(slots_);
  const size_t first = head * slots;  // Slots before the head's.
  std::byte* const data = memory_.data();
  const size_t share = Int8ScalesOfSlot(plane.head_dim);
  return {.k = reinterpret_cast<uint8_t*>(data + plane.k) + first * plane.head_dim,
          .v = reinterpret_cast<uint8_t*>(data + plane.v) + first * plane.head_dim,
          .k_scales = reinterpret_cast<Int8Scale*>(data + plane.k_scales) + first * share,
          .v_scales = reinterpret_cast<Int8Scale*>(data + plane.v_scales) + first,
          .slots = slots};
}

void CloseInt8Block(const AttentionDescriptor& descriptor, const KvView& tail, size_t tail_slot,
                    absl::Span<const Extent> extents, uint32_t first, const Int8View& to) {
  uint32_t slots[kTokens];
  uint32_t found = 0;
  for (const Extent& extent : extents) {
    const uint32_t skipped = std::min(first, extent.tokens);
    first -= skipped;
    for (uint32_t i = skipped; i < extent.tokens && found < kTokens; ++i) {
      slots[found++] = extent.first_slot + i;
    }
  }
  LAMINA_CHECK(found == kTokens);
  bool in_tiles = slots[0] % kTileSlots == 0;
  for (uint32_t t = 1; t < kTokens; ++t) {
    in_tiles = in_tiles && slots[t] == slots[0] + t;
  }
  const size_t head_dim = descriptor.head_dim;
  for (size_t head = 0; head < descriptor.kv_heads; ++head) {
    const Head one = {
        .head_dim = head_dim,
        .tail_k = tail.k + head * tail.head_stride,
        .tail_v = tail.v + head * tail.head_stride,
        .tail_slot = tail_slot,
        .slots = slots,
        .in_tiles = in_tiles,
        .k = to.k + head * to.slots * head_dim,
        .v = to.v + head * to.slots * head_dim,
        .k_scales = to.k_scales + head * to.k_scale_slots() * Int8ScalesOfSlot(descriptor.head_dim),
        .v_scales = to.v_scales + head * to.slots};
    one.CloseK();
    one.CloseV();
  }
}

void LoadInt8(uint32_t head_dim, const Int8View& from, absl::Span<const Extent> extents,
              uint32_t first, uint32_t tokens, const Int8View& to) {
  ForEachRun(extents, first, tokens, [&](size_t slot, size_t token, size_t count) {
    CopySlots(head_dim, from, slot, to, token, count, CopyOut);
  });
}

void UnloadInt8(uint32_t head_dim, const Int8View& from, absl::Span<const Extent> extents,
                uint32_t first, uint32_t tokens, const Int8View& to) {
  ForEachRun(extents, first, tokens, [&](size_t slot, size_t token, size_t count) {
    CopySlots(head_dim, from, token, to, slot, count, StreamCopy);
  });
  EndStreamCopies();
}

}  // namespace lamina::kernels
