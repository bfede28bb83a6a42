// SPDX-License-Identifier: Apache-2.0
//
// One function for each block layout. Letters: d is the block's scale, m its minimum (both
// binary16), qs the low bits and qh the high bits of the quanta. Quanta and scales are small
// integers, so only the products and sums written here round; they must stay in this order.

#include "model/gguf/dequantize.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "model/float16.h"

namespace lamina::model {
namespace {

constexpr int kSuperBlock = 256;  // Elements of a K-quant block.

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* bytes) { return HalfToFloat(Load<uint16_t>(bytes)); }

void F32(const uint8_t* block, float* out) { *out = Load<float>(block); }

void F16(const uint8_t* block, float* out) { *out = LoadHalf(block); }

void BF16(const uint8_t* block, float* out) { *out = ToFloat(BFloat16{Load<uint16_t>(block)}); }

// d, qs[16]: low nibbles are elements 0-15, high nibbles 16-31; offset 8.
void Q4_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const uint8_t* qs = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((qs[i] >> 4) - 8);
  }
}

// d, m, qs[16].
void Q4_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint8_t* qs = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(qs[i] >> 4) + m;
  }
}

// The fifth bit of element i is bit i of qh.
int FifthBit(uint32_t qh, int i) { return static_cast<int>((qh >> i) & 1u) << 4; }

// d, qh (32 bits), qs[16]; offset 16.
void Q5_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const auto qh = Load<uint32_t>(block + 2);
  const uint8_t* qs = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((qs[i] & 15) | FifthBit(qh, i)) - 16);
    out[i + 16] = d * static_cast<float>(((qs[i] >> 4) | FifthBit(qh, i + 16)) - 16);
  }
}

// d, m, qh (32 bits), qs[16].
void Q5_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const auto qh = Load<uint32_t>(block + 4);
  const uint8_t* qs = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((qs[i] & 15) | FifthBit(qh, i)) + m;
    out[i + 16] = d * static_cast<float>((qs[i] >> 4) | FifthBit(qh, i + 16)) + m;
  }
}

// d, qs[32] signed.
void Q8_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// scales[16] (low nibble scale, high nibble minimum of 16 elements), qs[64], d, dmin. Bytes
// 32h .. 32h+31 of qs hold elements 128h .. 128h+127, two bits for each 32 of them.
void Q2_K(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* qs = block + 16;
  const float d = LoadHalf(block + 80);
  const float dmin = LoadHalf(block + 82);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int scale = scales[i / 16];
    const float dl = d * static_cast<float>(scale & 15);
    const float ml = dmin * static_cast<float>(scale >> 4);
    const int q = (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    out[i] = dl * static_cast<float>(q) - ml;
  }
}

// hmask[32], qs[64], scales[12], d. The low two bits of a quantum as in Q2_K; its offset of 4 is
// left out where bit i/32 of hmask[i%32] is set. Scales have six bits: four in bytes 0-7, two in
// 8-11; offset 32.
void Q3_K(const uint8_t* block, float* out) {
  const uint8_t* hmask = block;
  const uint8_t* qs = block + 32;
  const uint8_t* scales = block + 96;
  const float d = LoadHalf(block + 108);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int group = i / 16;
    const int low = (scales[group % 8] >> (group / 8 * 4)) & 15;
    const int high = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
    const float dl = d * static_cast<float>((low | (high << 4)) - 32);
    const int q = (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    const int offset = ((hmask[i % 32] >> (i / 32)) & 1) != 0 ? 0 : 4;
    out[i] = dl * static_cast<float>(q - offset);
  }
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

// Six-bit scales and minima of Q4_K and Q5_K in 12 bytes, for groups of 32 elements.
ScaleAndMinimum UnpackScale(const uint8_t* scales, int group) {
  if (group < 4) {
    return {scales[group] & 63, scales[group + 4] & 63};
  }
  const int low = scales[group + 4];
  return {(low & 15) | ((scales[group - 4] >> 2) & 48), (low >> 4) | ((scales[group] >> 2) & 48)};
}

// d, dmin, scales[12], qs[128]: bytes 32h .. 32h+31 hold elements 64h .. 64h+63.
void Q4_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const uint8_t* qs = block + 16;
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMinimum s = UnpackScale(block + 4, group);
    const float dl = d * static_cast<float>(s.scale);
    const float ml = dmin * static_cast<float>(s.minimum);
    for (int i = 0; i < 32; ++i) {
      const int q = (qs[group / 2 * 32 + i] >> (group % 2 * 4)) & 15;
      out[group * 32 + i] = dl * static_cast<float>(q) - ml;
    }
  }
}

// d, dmin, scales[12], qh[32], qs[128]: as Q4_K, with a fifth bit: bit `group` of qh[i].
void Q5_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const uint8_t* qh = block + 16;
  const uint8_t* qs = block + 48;
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMinimum s = UnpackScale(block + 4, group);
    const float dl = d * static_cast<float>(s.scale);
    const float ml = dmin * static_cast<float>(s.minimum);
    for (int i = 0; i < 32; ++i) {
      const int low = (qs[group / 2 * 32 + i] >> (group % 2 * 4)) & 15;
      const int high = ((qh[i] >> group) & 1) << 4;
      out[group * 32 + i] = dl * static_cast<float>(low | high) - ml;
    }
  }
}

// ql[128], qh[64], scales[16] signed, d; offset 32. Bytes 64h .. 64h+63 of ql hold elements
// 128h .. 128h+127, bytes 32h .. 32h+31 of qh their upper two bits.
void Q6_K(const uint8_t* block, float* out) {
  const uint8_t* ql = block;
  const uint8_t* qh = block + 128;
  const uint8_t* scales = block + 192;
  const float d = LoadHalf(block + 208);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float dl = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    const int low = (ql[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 15;
    const int high = (qh[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    out[i] = dl * static_cast<float>((low | (high << 4)) - 32);
  }
}

// The values that four bits choose in IQ4 types; a table of the format.
constexpr float kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

// qs[16]: low halves choose elements 0-15, high ones 16-31.
void Iq4Group(const uint8_t* qs, float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * kIq4Values[qs[i] & 15];
    out[i + 16] = scale * kIq4Values[qs[i] >> 4];
  }
}

// d, qs[16].
void Iq4Nl(const uint8_t* block, float* out) { Iq4Group(block + 2, LoadHalf(block), out); }

// d, the upper two bits of eight scales, their lower four in 4 bytes, qs[128]: scales are of groups
// of 32 elements; offset 32.
void Iq4Xs(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const auto upper = Load<uint16_t>(block + 2);
  for (int group = 0; group < 8; ++group) {
    const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 15;
    const int high = (upper >> (2 * group)) & 3;
    const float dl = d * static_cast<float>((low | (high << 4)) - 32);
    Iq4Group(block + 8 + 16 * group, dl, out + 32 * group);
  }
}

// e, qs[16]: 2^(e - 127) times a value of E2M1; byte i of qs holds elements i and i + 16, the low
// half first. The smallest scales are subnormal.
void Mxfp4(const uint8_t* block, float* out) {
  static constexpr float kDoubled[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float half = std::ldexp(1.0f, static_cast<int>(block[0]) - 128);
  for (int i = 0; i < 16; ++i) {
    out[i] = half * kDoubled[block[1 + i] & 15];
    out[i + 16] = half * kDoubled[block[1 + i] >> 4];
  }
}

constexpr GgufTensorType kTypes[] = {
    {0, "F32", 1, 4, F32},           {1, "F16", 1, 2, F16},        {30, "BF16", 1, 2, BF16},
    {2, "Q4_0", 32, 18, Q4_0},       {3, "Q4_1", 32, 20, Q4_1},    {6, "Q5_0", 32, 22, Q5_0},
    {7, "Q5_1", 32, 24, Q5_1},       {8, "Q8_0", 32, 34, Q8_0},    {10, "Q2_K", 256, 84, Q2_K},
    {11, "Q3_K", 256, 110, Q3_K},    {12, "Q4_K", 256, 144, Q4_K}, {13, "Q5_K", 256, 176, Q5_K},
    {14, "Q6_K", 256, 210, Q6_K},    {39, "MXFP4", 32, 17, Mxfp4}, {20, "IQ4_NL", 32, 18, Iq4Nl},
    {23, "IQ4_XS", 256, 136, Iq4Xs},
};

struct UnreadType {
  uint32_t id;
  absl::string_view name;
};

// Types that exist and that we do not read, so that the message can name them.
constexpr UnreadType kUnread[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

absl::StatusOr<const GgufTensorType*> FindGgufTensorType(uint32_t id) {
  for (const GgufTensorType& type : kTypes) {
    if (type.id == id) {
      return &type;
    }
  }
  std::string name = absl::StrCat("number ", id);
  for (const UnreadType& type : kUnread) {
    if (type.id == id) {
      name = std::string(type.name);
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      "tensor type ", name, " is not supported; the known ones are ", KnownGgufTensorTypes()));
}

const GgufTensorType* FindGgufTensorType(absl::string_view name) {
  for (const GgufTensorType& type : kTypes) {
    if (type.name == name) {
      return &type;
    }
  }
  return nullptr;
}

std::string KnownGgufTensorTypes() {
  std::string names;
  for (const GgufTensorType& type : kTypes) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", type.name);
  }
  return names;
}

}  // namespace lamina::model
