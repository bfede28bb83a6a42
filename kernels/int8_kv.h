// SPDX-License-Identifier: Apache-2.0
//
// K and V as INT8: their scales, their arithmetic to the bit, and where they lie in an arena
// (docs/adr/0171-int8-behind-the-open-block.md, docs/design/attention_numerics.md).
//
// A value x of a group (K: one channel of a block's 64 tokens; V: one token) is kept as u in
// [0, 255], with the group's scale:
//
//   step = max((max - min) / 255, max(|min|, |max|) / 32767), up to the next bf16; 1 if that is 0
//   zero = round(-min / step)                                 nearest, ties to even
//   u    = clamp(round(x / step) + zero, 0, 255)              0 in a group that is NaN
//   x'   = step * (u - zero)                                  exact in f32: 8 bits times 16
//
// A group with a value that is not finite, or with a step that is not, is NaN as a whole.
//
// Threading: pure functions. They assume the default rounding mode and no flushing of subnormals.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/kv_form.h"
#include "kernels/canonical_math.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {

struct Int8Scale {
  BFloat16 step;
  int16_t zero = 0;
};
static_assert(sizeof(Int8Scale) == 4);

// The nearest integer, ties to even. Requires: |x| < 2^22.
inline float RoundToInteger(float x) {
  return (x + canonical::kRoundMagic) - canonical::kRoundMagic;
}

// The least bf16 that is at least x. Requires: x >= 0.
inline BFloat16 RoundUpToBFloat16(float x) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0xffffu) >> 16)};
}

inline constexpr Int8Scale kInt8NotFinite = {.step = {0x7fc0}, .zero = 0};

// The scale of a group whose values are finite and lie in [min, max].
inline Int8Scale Int8ScaleOf(float min, float max) {
  const float largest = std::max(std::fabs(min), std::fabs(max));
  const float range = (max - min) / 255.0f;
  const float wanted = std::max(range, largest / 32767.0f);
  if (wanted == 0.0f) {
    return {.step = ToBFloat16(1.0f)};
  }
  const BFloat16 step = RoundUpToBFloat16(wanted);
  if (!(ToFloat(step) < INFINITY)) {
    return kInt8NotFinite;
  }
  return {.step = step, .zero = static_cast<int16_t>(RoundToInteger(-min / ToFloat(step)))};
}

// Requires: x is finite, and so is its group.
inline uint8_t ToInt8(float x, Int8Scale scale) {
  const float u = RoundToInteger(x / ToFloat(scale.step)) + static_cast<float>(scale.zero);
  return static_cast<uint8_t>(static_cast<int32_t>(std::min(std::max(u, 0.0f), 255.0f)));
}

inline float FromInt8(uint8_t u, Int8Scale scale) {
  return ToFloat(scale.step) * static_cast<float>(int32_t{u} - scale.zero);
}

// One layer's INT8 in an arena of whole tiles of slots. K lies in tiles of 16 slots, transposed:
// 16 tokens of one channel follow each other.
// Shapes: k  [kv_heads, slots / 16, head_dim, 16] u8
//         v  [kv_heads, slots, head_dim] u8
//         v_scales  [kv_heads, slots]
//         k_scales  [kv_heads, slots, Int8ScalesOfSlot(head_dim)]: the token of a block with
//                   index j has those of as many channels from j * Int8ScalesOfSlot() on
struct Int8View {
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
  Int8Scale* k_scales = nullptr;
  Int8Scale* v_scales = nullptr;
  size_t slots = 0;        // Between heads.
  size_t scale_slots = 0;  // Between heads of k_scales, where these are not as many.

  size_t k_scale_slots() const { return scale_slots == 0 ? slots : scale_slots; }
};

// From a head's slot 0 to a channel of a slot of K.
constexpr size_t OffsetInInt8Tiles(size_t slot, size_t channel, size_t head_dim) {
  return slot / kTileSlots * kTileSlots * head_dim + channel * kTileSlots + slot % kTileSlots;
}

}  // namespace lamina::kernels
