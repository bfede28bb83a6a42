// SPDX-License-Identifier: Apache-2.0
//
// Weights of 8 bits against the definition, computed in double.

#include "kernels/int8_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/philox.h"
#include "kernels/block_type.h"
#include "kernels/dense.h"
#include "tests/unit/kernels/dense_test_util.h"

namespace lamina::kernels {
namespace {

// To `bits` bits of mantissa, ties to even, subnormals as numbers of binary32's least exponent.
double RoundTo(double x, int bits) {
  if (x == 0) {
    return 0;
  }
  const int exponent = std::max(std::ilogb(x), -126);
  const double unit = std::ldexp(1.0, exponent + 1 - bits);
  return std::nearbyint(x / unit) * unit;
}

double ToBF16(double x) { return RoundTo(x, 8); }
double ToF32(double x) { return RoundTo(x, 24); }

// The values of a row as the header defines them. What is double here has at most 48 bits before it
// is rounded.
std::vector<float> Expected(const std::vector<float>& row) {
  std::vector<float> values(row.size(), 0.0f);
  for (size_t first = 0; first < row.size(); first += kInt8Group) {
    const size_t end = std::min(first + kInt8Group, row.size());
    double largest = 0;
    for (size_t i = first; i < end; ++i) {
      largest = std::max(largest, std::fabs(double{row[i]}));
    }
    const double scale = ToBF16(ToF32(largest / 127));
    if (scale < std::ldexp(1.0, -126)) {
      continue;
    }
    for (size_t i = first; i < end; ++i) {
      values[i] = static_cast<float>(ToBF16(std::nearbyint(ToF32(row[i] / scale)) * scale));
    }
  }
  return values;
}

std::vector<float> Quantised(const std::vector<float>& row) {
  std::vector<uint8_t> blocks(Int8RowBytes(row.size()));
  EXPECT_TRUE(QuantiseInt8(row, blocks.data()));
  std::vector<float> values(row.size());
  Int8Values(blocks.data(), absl::MakeSpan(values));
  return values;
}

std::vector<float> RandomRow(size_t inputs, int exponent, uint64_t seed) {
  Prng prng(seed);
  std::vector<float> row(inputs);
  for (float& weight : row) {
    const double unit = static_cast<double>(prng.Below(1u << 24)) / (1 << 23) - 1;
    weight = static_cast<float>(std::ldexp(unit, exponent - static_cast<int>(prng.Below(6))));
  }
  return row;
}

TEST(Int8WeightsTest, HaveTheValuesOfTheDefinition) {
  for (const size_t inputs : {1, 2, 63, 64, 65, 127, 128, 576, 1000}) {
    for (const int exponent : {-140, -126, -122, -120, -40, -3, 0, 100}) {
      const std::vector<float> row = RandomRow(inputs, exponent, 100 * inputs + 7);
      EXPECT_EQ(Quantised(row), Expected(row)) << inputs << " inputs, 2^" << exponent;
    }
  }
}

TEST(Int8WeightsTest, TiesGoToEven) {
  std::vector<float> row(64, 0.0f);
  row[0] = 127;  // The scale is 1.
  const std::vector<std::pair<float, float>> ties = {{0.5f, 0},  {1.5f, 2},   {2.5f, 2},
                                                     {-0.5f, 0}, {-1.5f, -2}, {126.5f, 126}};
  for (size_t i = 0; i < ties.size(); ++i) {
    row[1 + i] = ties[i].first;
  }
  const std::vector<float> values = Quantised(row);
  EXPECT_EQ(values[0], 127);
  for (size_t i = 0; i < ties.size(); ++i) {
    EXPECT_EQ(values[1 + i], ties[i].second) << ties[i].first;
  }
}

// Half of a step, and the rounding to bf16 of what comes of it.
TEST(Int8WeightsTest, AreAsNearAsAStep) {
  const std::vector<float> row = RandomRow(4096, -4, 5);
  const std::vector<float> values = Quantised(row);
  for (size_t first = 0; first < row.size(); first += kInt8Group) {
    float largest = 0;
    for (size_t i = first; i < first + kInt8Group; ++i) {
      largest = std::max(largest, std::fabs(row[i]));
    }
    for (size_t i = first; i < first + kInt8Group; ++i) {
      EXPECT_LE(std::fabs(values[i] - row[i]),
                largest / 127 * 0.505f + std::fabs(row[i]) / 256 + largest / 256 / 127);
    }
  }
}

TEST(Int8WeightsTest, GroupsHaveScalesOfTheirOwn) {
  std::vector<float> row(130, 0.0f);
  row[0] = 100;
  row[64] = 1e-6f;
  row[129] = -3;
  const std::vector<float> values = Quantised(row);
  EXPECT_NEAR(values[0], 100, 0.5);
  EXPECT_NEAR(values[64], 1e-6, 1e-8);
  EXPECT_NEAR(values[129], -3, 0.02);
}

// Products of pairs take subnormals for zeros, and values shall not depend on who multiplies.
TEST(Int8WeightsTest, AreZeroOrNormal) {
  for (int exponent = -149; exponent < -110; ++exponent) {
    for (const float value : Quantised(RandomRow(200, exponent, 3))) {
      EXPECT_TRUE(value == 0 || std::isnormal(value)) << value;
    }
  }
}

TEST(Int8WeightsTest, WhatIsNotFiniteHasNoBlocks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {kInfinity, -kInfinity, kNan, std::numeric_limits<float>::max()}) {
    for (const size_t at : {size_t{0}, size_t{63}, size_t{70}}) {
      std::vector<float> row(71, 0.5f);
      row[at] = bad;
      std::vector<uint8_t> blocks(Int8RowBytes(row.size()));
      EXPECT_FALSE(QuantiseInt8(row, blocks.data())) << bad << " at " << at;
    }
  }
}

TEST(Int8WeightsTest, ALastBlockIsCompletedByZeros) {
  std::vector<uint8_t> blocks(Int8RowBytes(65), 0xff);
  ASSERT_EQ(blocks.size(), 3 * kInt8BlockBytes);
  ASSERT_TRUE(QuantiseInt8(std::vector<float>(65, -1.0f), blocks.data()));
  const auto last = blocks.begin() + 2 * kInt8BlockBytes;
  EXPECT_EQ(static_cast<int8_t>(last[2]), -127);
  EXPECT_TRUE(std::all_of(last + 3, blocks.end(), [](uint8_t byte) { return byte == 0; }));
}

// All bytes with a scale of these bits, and the values that they mean.
struct EveryByte {
  static constexpr size_t kInputs = 256;

  explicit EveryByte(uint16_t scale) : blocks(Int8RowBytes(kInputs)), values(kInputs) {
    for (size_t i = 0; i < kInputs; ++i) {
      uint8_t* const block = blocks.data() + i / kInt8Block * kInt8BlockBytes;
      std::memcpy(block, &scale, sizeof(scale));
      block[2 + i % kInt8Block] = static_cast<uint8_t>(scale == 0 ? 0 : i);
    }
    Int8Values(blocks.data(), absl::MakeSpan(values));
  }

  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

TEST(Int8WeightsTest, PackedBytesAreExactWithEveryScale) {
  // From the least normal number to the largest that pairs take, and one that they leave as bf16.
  const std::vector<uint16_t> scales = {0x0000, 0x0080, 0x0081, 0x00ff, 0x3c55,
                                        0x3f80, 0x3fff, 0x77ff, 0x7800};
  for (const uint16_t scale : scales) {
    const EveryByte row(scale);
    const uint8_t* const pointer = row.blocks.data();
    const BlockRows rows = {.type = BlockType::kInt8, .rows = {&pointer, 1}};
    for (const DenseLoop loop :
         {DenseLoop::kFastest, DenseLoop::kFallbackGemm, DenseLoop::kEmulatedTiles}) {
      const std::unique_ptr<Dense> dense = MakeDense(DType::kBF16, loop, 1);
      if (!KeepsBlocks(*dense)) {
        continue;
      }
      const auto packed = dense->PackBlocks({&rows, 1}, EveryByte::kInputs, {});
      if (scale == 0x7800 && !packed.ok()) {
        EXPECT_EQ(packed.status().code(), absl::StatusCode::kUnimplemented) << packed.status();
        EXPECT_NE(packed.status().message().find("too large"), std::string::npos);
        continue;
      }
      ASSERT_TRUE(packed.ok()) << packed.status();
      Activations got(1, EveryByte::kInputs, DType::kF32);
      const uint32_t ids[] = {0};
      dense->LookUp(**packed, ids, got.floats());
      for (size_t i = 0; i < EveryByte::kInputs; ++i) {
        ASSERT_TRUE(SameBits(got.Get(0, i), row.values[i]))
            << dense->description() << ", scale " << scale << ", byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
