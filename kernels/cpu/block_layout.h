// SPDX-License-Identifier: Apache-2.0
//
// How weights of block types (block_type.h) lie in memory here: the same scales and quanta, of 16
// features side by side, so that one vector widens one element of each.
//
// A strip block is one block of inputs of 16 features (a strip, panel_task.h):
//
//   d     16 x u16   scales: binary16, of MXFP4 and int8 bf16
//   m     16 x u16   minima, where the type has them
//   subs  groups x 16 x u8   of types with groups inside a block: the groups' scales,
//   mins  groups x 16 x u8   and their minima; not where subs have both, of 4 bits each
//   low   the quanta's low 2 or 4 bits, or all 8
//   high  their other 1 or 2 bits
//
// A quantum has a lane (0 to 15) and a number n (0 to the block's elements), by an order that
// depends on who widens it. Its 8 bits are byte [n][lane]. Fewer are in 32-bit words, 32 / bits
// quanta in each: those of n are the n % (32 / bits)-th, from the lowest on, of word
// [n / (32 / bits)][lane].
//
// Quanta of int8 in the order of pairs are raised (IsRaised()): in words, four in each, and 128
// above what they mean.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block_type.h"
#include "kernels/cpu/panel_task.h"

namespace lamina::kernels::cpu {

// Which feature and input of a strip block a lane and a number mean.
enum class LaneOrder : uint8_t {
  kFeatures,  // Lane: the feature; n: the input.
  kPairs,     // Lane: feature % 8 and which of a pair of inputs; n: the pair, then feature / 8.
};

struct StripPlace {
  size_t feature = 0;
  size_t input = 0;
};

constexpr StripPlace PlaceOf(LaneOrder order, size_t lane, size_t n) {
  return order == LaneOrder::kFeatures
             ? StripPlace{.feature = lane, .input = n}
             : StripPlace{.feature = n % 2 * 8 + lane / 2, .input = n / 2 * 2 + lane % 2};
}

enum class SubScale : uint8_t {
  kNone,
  kUnsigned,
  kSigned,
  kNibbles,  // Unsigned in the low 4 bits; the high ones are the minimum.
};

// The parts of a strip block.
struct BlockFormat {
  size_t elements = 32;  // Inputs of a block.
  size_t group = 32;     // Inputs that share a scale.
  size_t low_bits = 4;   // 2, 4 or 8.
  size_t high_bits = 0;  // 0, 1 or 2.
  bool minima = false;   // Whether m is there, and with groups their minima.
  SubScale sub = SubScale::kNone;
  bool brain_scale = false;  // d is bf16.

  constexpr size_t groups() const { return elements / group; }
  constexpr size_t steps() const { return elements / 2; }
  constexpr size_t quantum_bits() const { return low_bits + high_bits; }
  constexpr bool has_mins() const {
    return minima && (sub == SubScale::kUnsigned || sub == SubScale::kSigned);
  }
  constexpr size_t at_m() const { return 2 * kStripFeatures; }
  constexpr size_t at_subs() const { return at_m() * (minima ? 2 : 1); }
  constexpr size_t at_mins() const {
    return at_subs() + (sub == SubScale::kNone ? 0 : groups() * kStripFeatures);
  }
  constexpr size_t at_low() const {
    return at_mins() + (has_mins() ? groups() * kStripFeatures : 0);
  }
  constexpr size_t at_high() const { return at_low() + elements * kStripFeatures * low_bits / 8; }
  constexpr size_t bytes() const { return at_high() + elements * kStripFeatures * high_bits / 8; }
};

constexpr BlockFormat FormatOf(BlockType type) {
  switch (type) {
    case BlockType::kQ40:
    case BlockType::kIq4Nl:
      return {};
    case BlockType::kQ41:
      return {.minima = true};
    case BlockType::kQ50:
      return {.high_bits = 1};
    case BlockType::kQ51:
      return {.high_bits = 1, .minima = true};
    case BlockType::kQ80:
      return {.low_bits = 8};
    case BlockType::kMxfp4:
      return {.brain_scale = true};
    case BlockType::kQ2K:
      return {
          .elements = 256, .group = 16, .low_bits = 2, .minima = true, .sub = SubScale::kNibbles};
    case BlockType::kQ3K:
      return {
          .elements = 256, .group = 16, .low_bits = 2, .high_bits = 1, .sub = SubScale::kSigned};
    case BlockType::kQ4K:
      return {.elements = 256, .minima = true, .sub = SubScale::kUnsigned};
    case BlockType::kQ5K:
      return {.elements = 256, .high_bits = 1, .minima = true, .sub = SubScale::kUnsigned};
    case BlockType::kQ6K:
      return {.elements = 256, .group = 16, .high_bits = 2, .sub = SubScale::kSigned};
    case BlockType::kIq4Xs:
      return {.elements = 256, .sub = SubScale::kSigned};
    case BlockType::kInt8:
      return {.low_bits = 8, .brain_scale = true};
  }
  return {};
}

// Whether a byte moves into a float with its offset (block_widen_x86-inl.h), which takes the place
// of a conversion. It wants scales that are not negative, or weights of 0 would change their sign,
// and below 2^113.
constexpr bool IsRaised(BlockType type, LaneOrder order) {
  return type == BlockType::kInt8 && order == LaneOrder::kPairs;
}

// The bits of the first scale, as bf16, that raised quanta cannot have.
inline constexpr uint16_t kRaisedScalesEnd = 0x7800;

// What the bits of a quantum mean, before the scale.
enum class Quantum : uint8_t {
  kPlain,   // Itself.
  kLess4,   // Less 4,
  kLess8,   // 8,
  kLess16,  // 16,
  kLess32,  // or 32.
  kSigned,  // A signed byte.
  kIq4,     // An entry of kIq4Values,
  kFloat4,  // or of kFloat4Doubled.
};

constexpr Quantum QuantumOf(BlockType type) {
  switch (type) {
    case BlockType::kQ3K:
      return Quantum::kLess4;
    case BlockType::kQ40:
      return Quantum::kLess8;
    case BlockType::kQ50:
      return Quantum::kLess16;
    case BlockType::kQ6K:
      return Quantum::kLess32;
    case BlockType::kQ80:
    case BlockType::kInt8:
      return Quantum::kSigned;
    case BlockType::kIq4Nl:
    case BlockType::kIq4Xs:
      return Quantum::kIq4;
    case BlockType::kMxfp4:
      return Quantum::kFloat4;
    case BlockType::kQ41:
    case BlockType::kQ51:
    case BlockType::kQ2K:
    case BlockType::kQ4K:
    case BlockType::kQ5K:
      return Quantum::kPlain;
  }
  return Quantum::kPlain;
}

inline constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
// E2M1, doubled: the scale is half of the file's.
inline constexpr float kFloat4Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};

// What a quantum of fewer than eight bits means.
constexpr float MeaningOf(Quantum quantum, size_t bits) {
  switch (quantum) {
    case Quantum::kIq4:
      return kIq4Values[bits % 16];
    case Quantum::kFloat4:
      return kFloat4Doubled[bits % 16];
    case Quantum::kLess4:
      return static_cast<float>(bits) - 4.0f;
    case Quantum::kLess8:
      return static_cast<float>(bits) - 8.0f;
    case Quantum::kLess16:
      return static_cast<float>(bits) - 16.0f;
    case Quantum::kLess32:
      return static_cast<float>(bits) - 32.0f;
    case Quantum::kPlain:
    case Quantum::kSigned:
      return static_cast<float>(bits);
  }
  return 0;
}

// Writes the strip block of 16 features' file blocks; a null one is of zeros. False: a scale is not
// finite, so that rounding to bf16 would not be the file's, or none that raised quanta can have.
// Shapes: blocks  [16]
bool PackStripBlock(BlockType type, LaneOrder order, const uint8_t* const* blocks, uint8_t* to);

}  // namespace lamina::kernels::cpu
