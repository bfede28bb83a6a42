// SPDX-License-Identifier: Apache-2.0
//
// From blocks (model/gguf/dequantize.cc and kernels/int8_weights.h have their layouts) to strip
// blocks.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/dtype.h"
#include "kernels/cpu/block_layout.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kElementsMax = 256;
constexpr size_t kGroupsMax = 16;

// One block, taken apart.
struct OpenBlock {
  uint16_t d = 0;
  uint16_t m = 0;
  std::array<uint8_t, kGroupsMax> subs = {};
  std::array<uint8_t, kGroupsMax> mins = {};
  std::array<uint8_t, kElementsMax> quanta = {};
};

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Groups of 32 elements in 16 bytes: the low halves are the first 16.
void OpenNibbles(const uint8_t* qs, size_t groups, OpenBlock& open) {
  for (size_t group = 0; group < groups; ++group, qs += 16) {
    for (size_t i = 0; i < 16; ++i) {
      open.quanta[32 * group + i] = qs[i] & 15;
      open.quanta[32 * group + 16 + i] = qs[i] >> 4;
    }
  }
}

void AddFifthBits(const uint8_t* qh, OpenBlock& open) {
  const auto bits = Load<uint32_t>(qh);
  for (size_t i = 0; i < 32; ++i) {
    open.quanta[i] = static_cast<uint8_t>(open.quanta[i] | ((bits >> i) & 1u) << 4);
  }
}

// Six-bit scales and minima of Q4_K and Q5_K in 12 bytes.
void OpenSixBits(const uint8_t* scales, OpenBlock& open) {
  for (size_t group = 0; group < 4; ++group) {
    open.subs[group] = scales[group] & 63;
    open.mins[group] = scales[group + 4] & 63;
    const uint8_t low = scales[group + 8];
    open.subs[group + 4] = static_cast<uint8_t>((low & 15) | ((scales[group] >> 2) & 48));
    open.mins[group + 4] = static_cast<uint8_t>((low >> 4) | ((scales[group + 4] >> 2) & 48));
  }
}

// Bytes 32h .. 32h+31 hold elements 128h .. 128h+127, two bits for each 32 of them.
void OpenTwoBits(const uint8_t* qs, OpenBlock& open) {
  for (size_t i = 0; i < 256; ++i) {
    open.quanta[i] = (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
}

void OpenQ3K(const uint8_t* block, OpenBlock& open) {
  OpenTwoBits(block + 32, open);
  for (size_t i = 0; i < 256; ++i) {
    const int third = (block[i % 32] >> (i / 32)) & 1;
    open.quanta[i] = static_cast<uint8_t>(open.quanta[i] | third << 2);
  }
  for (size_t group = 0; group < 16; ++group) {
    const int low = (block[96 + group % 8] >> (group / 8 * 4)) & 15;
    const int high = (block[104 + group % 4] >> (group / 4 * 2)) & 3;
    open.subs[group] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  open.d = Load<uint16_t>(block + 108);
}

// Bytes 32h .. 32h+31 hold elements 64h .. 64h+63.
void OpenLongNibbles(const uint8_t* qs, OpenBlock& open) {
  for (size_t i = 0; i < 256; ++i) {
    open.quanta[i] = (qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15;
  }
}

void OpenQ5K(const uint8_t* block, OpenBlock& open) {
  OpenLongNibbles(block + 48, open);
  for (size_t i = 0; i < 256; ++i) {
    const int fifth = (block[16 + i % 32] >> (i / 32)) & 1;
    open.quanta[i] = static_cast<uint8_t>(open.quanta[i] | fifth << 4);
  }
}

void OpenQ6K(const uint8_t* block, OpenBlock& open) {
  for (size_t i = 0; i < 256; ++i) {
    const int low = (block[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 15;
    const int high = (block[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    open.quanta[i] = static_cast<uint8_t>(low | high << 4);
  }
  std::copy_n(block + 192, 16, open.subs.begin());
  open.d = Load<uint16_t>(block + 208);
}

void OpenIq4Xs(const uint8_t* block, OpenBlock& open) {
  const auto upper = Load<uint16_t>(block + 2);
  for (size_t group = 0; group < 8; ++group) {
    const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 15;
    const int high = (upper >> (2 * group)) & 3;
    open.subs[group] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  OpenNibbles(block + 8, 8, open);
}

OpenBlock Open(BlockType type, const uint8_t* block) {
  OpenBlock open;
  open.d = Load<uint16_t>(block);
  switch (type) {
    case BlockType::kQ40:
    case BlockType::kIq4Nl:
      OpenNibbles(block + 2, 1, open);
      break;
    case BlockType::kQ41:
      open.m = Load<uint16_t>(block + 2);
      OpenNibbles(block + 4, 1, open);
      break;
    case BlockType::kQ50:
      OpenNibbles(block + 6, 1, open);
      AddFifthBits(block + 2, open);
      break;
    case BlockType::kQ51:
      open.m = Load<uint16_t>(block + 2);
      OpenNibbles(block + 8, 1, open);
      AddFifthBits(block + 4, open);
      break;
    case BlockType::kQ80:
    case BlockType::kInt8:
      std::copy_n(block + 2, 32, open.quanta.begin());
      break;
    case BlockType::kMxfp4:
      open.d = ToBFloat16(std::ldexp(1.0f, static_cast<int>(block[0]) - 128)).bits;
      OpenNibbles(block + 1, 1, open);
      break;
    case BlockType::kQ2K:
      std::copy_n(block, 16, open.subs.begin());
      OpenTwoBits(block + 16, open);
      open.d = Load<uint16_t>(block + 80);
      open.m = Load<uint16_t>(block + 82);
      break;
    case BlockType::kQ3K:
      OpenQ3K(block, open);
      break;
    case BlockType::kQ4K:
      open.m = Load<uint16_t>(block + 2);
      OpenSixBits(block + 4, open);
      OpenLongNibbles(block + 16, open);
      break;
    case BlockType::kQ5K:
      open.m = Load<uint16_t>(block + 2);
      OpenSixBits(block + 4, open);
      OpenQ5K(block, open);
      break;
    case BlockType::kQ6K:
      OpenQ6K(block, open);
      break;
    case BlockType::kIq4Xs:
      OpenIq4Xs(block, open);
      break;
  }
  return open;
}

// Whether a binary16 is neither infinite nor NaN.
bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

using OpenStrip = std::array<OpenBlock, kStripFeatures>;

// `bits` of every quantum from bit `shift` on, in 32-bit words [elements * bits / 32][lane].
template <LaneOrder kOrder>
void PlaceWords(const OpenStrip& open, size_t elements, size_t bits, size_t shift, uint8_t* to) {
  const size_t in_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (size_t n = 0; n < elements; n += in_word) {
    for (size_t lane = 0; lane < kStripFeatures; ++lane, to += sizeof(uint32_t)) {
      uint32_t word = 0;
      for (size_t j = 0; j < in_word; ++j) {
        const StripPlace place = PlaceOf(kOrder, lane, n + j);
        word |= (uint32_t{open[place.feature].quanta[place.input]} >> shift & mask) << (j * bits);
      }
      std::memcpy(to, &word, sizeof(word));
    }
  }
}

template <LaneOrder kOrder>
void PlaceQuanta(const OpenStrip& open, BlockType type, uint8_t* to) {
  const BlockFormat format = FormatOf(type);
  if (format.low_bits == 8 && !IsRaised(type, kOrder)) {
    for (size_t n = 0; n < format.elements; ++n) {
      for (size_t lane = 0; lane < kStripFeatures; ++lane) {
        const StripPlace place = PlaceOf(kOrder, lane, n);
        to[format.at_low() + n * kStripFeatures + lane] = open[place.feature].quanta[place.input];
      }
    }
    return;
  }
  PlaceWords<kOrder>(open, format.elements, format.low_bits, 0, to + format.at_low());
  if (format.high_bits != 0) {
    PlaceWords<kOrder>(open, format.elements, format.high_bits, format.low_bits,
                       to + format.at_high());
  }
}

void Raise(size_t elements, OpenBlock& open) {
  for (size_t i = 0; i < elements; ++i) {
    open.quanta[i] = static_cast<uint8_t>(open.quanta[i] ^ 0x80);
  }
}

bool TakesScale(const BlockFormat& format, bool raised, uint16_t d) {
  return format.brain_scale ? !raised || d < kRaisedScalesEnd : IsFinite(d);
}

}  // namespace

bool PackStripBlock(BlockType type, LaneOrder order, const uint8_t* const* blocks, uint8_t* to) {
  const BlockFormat format = FormatOf(type);
  const bool raised = IsRaised(type, order);
  std::fill_n(to, format.at_low(), uint8_t{0});
  OpenStrip open;
  bool finite = true;
  for (size_t f = 0; f < kStripFeatures; ++f) {
    if (blocks[f] == nullptr) {
      continue;
    }
    open[f] = Open(type, blocks[f]);
    if (raised) {
      Raise(format.elements, open[f]);
    }
    finite = finite && TakesScale(format, raised, open[f].d) && IsFinite(open[f].m);
    std::memcpy(to + 2 * f, &open[f].d, 2);
    if (format.minima) {
      std::memcpy(to + format.at_m() + 2 * f, &open[f].m, 2);
    }
    for (size_t group = 0; format.sub != SubScale::kNone && group < format.groups(); ++group) {
      to[format.at_subs() + group * kStripFeatures + f] = open[f].subs[group];
      if (format.has_mins()) {
        to[format.at_mins() + group * kStripFeatures + f] = open[f].mins[group];
      }
    }
  }
  if (order == LaneOrder::kPairs) {
    PlaceQuanta<LaneOrder::kPairs>(open, type, to);
  } else {
    PlaceQuanta<LaneOrder::kFeatures>(open, type, to);
  }
  return finite;
}

}  // namespace lamina::kernels::cpu
