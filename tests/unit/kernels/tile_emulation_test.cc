// SPDX-License-Identifier: Apache-2.0
//
// EmulatedTiles: sums worked out by hand, and shapes.

#include "kernels/cpu/tile_emulation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/dtype.h"

namespace lamina::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastNormal = 0x1p-126f;

// The two factors of a product; both are bf16.
using Product = std::pair<float, float>;
struct Pair {
  Product first = {0, 0};
  Product second = {0, 0};
};

uint32_t Word(float first, float second) {
  for (const float x : {first, second}) {
    EXPECT_TRUE(std::isnan(x) || ToFloat(ToBFloat16(x)) == x) << x;
  }
  return ToBFloat16(first).bits | uint32_t{ToBFloat16(second).bits} << 16;
}

// c plus the products of a row of pairs and a column of pairs, in one Dot().
float Dot(float c, const std::vector<Pair>& products) {
  std::vector<uint32_t> row;
  std::vector<uint32_t> column;
  for (const Pair& pair : products) {
    row.push_back(Word(pair.first.first, pair.second.first));
    column.push_back(Word(pair.first.second, pair.second.second));
  }
  TileConfig config;
  config.Set(0, 1, sizeof(float));
  config.Set(1, 1, products.size() * sizeof(uint32_t));
  config.Set(2, products.size(), sizeof(uint32_t));
  EmulatedTiles tiles;
  tiles.Configure(config);
  tiles.Load<0>(&c, sizeof(float));
  tiles.Load<1>(row.data(), 0);
  tiles.Load<2>(column.data(), sizeof(uint32_t));
  tiles.Dot<0, 1, 2>();
  tiles.Store<0>(&c, sizeof(float));
  return c;
}

void ExpectBits(float got, float wanted) {
  EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(wanted))
      << got << " instead of " << wanted;
}

TEST(EmulatedTilesTest, FirstAndSecondProductsAreSummedApart) {
  // 2^24 + 1 rounds to 2^24, 1 + 1 does not round.
  ExpectBits(Dot(0, {{{0x1p12f, 0x1p12f}, {1, 1}}, {{1, 1}, {1, 1}}}), 0x1p24f + 2);
}

TEST(EmulatedTilesTest, TheSumOfBothIsAddedToTheAccumulator) {
  ExpectBits(Dot(0x1p24f, {{{1, 1}, {1, 1}}}), 0x1p24f + 2);
  ExpectBits(Dot(0x1p24f, {{{1, 1}, {0, 0}}}), 0x1p24f);
}

TEST(EmulatedTilesTest, ProductsAreAddedInOrder) {
  ExpectBits(Dot(0, {{{1, 1}, {}}, {{0x1p12f, 0x1p12f}, {}}, {{-0x1p12f, 0x1p12f}, {}}}), 0);
  ExpectBits(Dot(0, {{{0x1p12f, 0x1p12f}, {}}, {{-0x1p12f, 0x1p12f}, {}}, {{1, 1}, {}}}), 1);
}

TEST(EmulatedTilesTest, RoundsToNearestAndEven) {
  const Pair one = {{1, 1}, {}};
  const Pair last_bit = {{0x1p-11f, 0x1p-12f}, {}};
  const Pair half = {{0x1p-12f, 0x1p-12f}, {}};
  const Pair more_than_half = {{0x1.02p-12f, 0x1p-12f}, {}};
  ExpectBits(Dot(0, {one, half}), 1.0f);
  ExpectBits(Dot(0, {one, more_than_half}), 1.0f + 0x1p-23f);
  ExpectBits(Dot(0, {one, last_bit, half}), 1.0f + 0x1p-22f);
  // Both sums, and the accumulator.
  ExpectBits(Dot(0, {{{1, 1}, {0x1p-12f, 0x1p-12f}}}), 1.0f);
  ExpectBits(Dot(1.0f + 0x1p-23f, {half}), 1.0f + 0x1p-22f);
}

TEST(EmulatedTilesTest, ProductsAreNotRoundedBeforeTheyAreAdded) {
  // 2^128 is infinite as an f32, and 2^-130 subnormal.
  ExpectBits(Dot(0, {{{-0x1p63f, 0x1p64f}, {}}, {{0x1p64f, 0x1p64f}, {}}}), 0x1p127f);
  ExpectBits(Dot(0, {{{0x1p-63f, 0x1p-63f}, {}}, {{0x1p-65f, 0x1p-65f}, {}}}),
             kLeastNormal * 1.0625f);
}

TEST(EmulatedTilesTest, SubnormalInputsAreZeros) {
  const float subnormal = ToFloat(BFloat16{0x007f});
  ExpectBits(Dot(0, {{{subnormal, 0x1p127f}, {0x1p127f, subnormal}}}), 0);
  ExpectBits(Dot(1, {{{subnormal, 0x1p127f}, {0x1p127f, -subnormal}}}), 1);
  ExpectBits(Dot(0x1p-149f, {{{1, 0}, {}}}), 0);
  // -0 + 0.
  ExpectBits(Dot(-0x1p-149f, {{{1, 0}, {}}}), 0);
  // Zero times infinity is NaN.
  EXPECT_TRUE(std::isnan(Dot(0, {{{subnormal, kInfinity}, {}}})));
}

TEST(EmulatedTilesTest, SubnormalResultsAreZerosOfTheirSign) {
  // A sum of products; the sum of both sums; the accumulator.
  ExpectBits(Dot(0, {{{0x1p-65f, 0x1p-65f}, {}}}), 0);
  ExpectBits(Dot(kLeastNormal, {{{-0x1.8p-63f, 0x1p-63f}, {}}}), -0.0f);
  ExpectBits(Dot(kLeastNormal, {{{-0x1p-63f, 0x1p-63f}, {}}}), 0.0f);
  ExpectBits(Dot(1, {{{0x1.8p-63f, 0x1p-63f}, {-0x1p-63f, 0x1p-63f}}}), 1);
  // Nothing is lost by the way: 2^-127 is zero before 2^-127 is added.
  ExpectBits(Dot(0, {{{0x1p-63f, 0x1p-64f}, {}}, {{0x1p-63f, 0x1p-64f}, {}}}), 0);
}

TEST(EmulatedTilesTest, WhatRoundsToTheLeastNormalNumberStays) {
  const Pair least = {{0x1p-63f, 0x1p-63f}, {}};
  ExpectBits(Dot(0, {least, {{-0x1p-76f, 0x1p-76f}, {}}}), kLeastNormal);
  ExpectBits(Dot(0, {least, {{-0x1p-75f, 0x1p-76f}, {}}}), kLeastNormal);  // A tie.
  ExpectBits(Dot(0, {least, {{-0x1.8p-75f, 0x1p-76f}, {}}}), 0);
}

TEST(EmulatedTilesTest, InfinitiesAndNanArriveInTheResult) {
  const float nan = std::nanf("");
  ExpectBits(Dot(0, {{{kInfinity, -2}, {}}, {{1, 1}, {1, 1}}}), -kInfinity);
  ExpectBits(Dot(kInfinity, {{{1, 1}, {}}}), kInfinity);
  ExpectBits(Dot(0, {{{0x1p127f, 1}, {}}, {{0x1p127f, 1}, {}}}), kInfinity);
  ExpectBits(Dot(0, {{{0x1p127f, 1}, {0x1p127f, 1}}}), kInfinity);
  ExpectBits(Dot(0x1.fep127f, {{{0x1p127f, 1}, {}}}), kInfinity);
  EXPECT_TRUE(std::isnan(Dot(0, {{{kInfinity, 0}, {}}})));
  EXPECT_TRUE(std::isnan(Dot(0, {{{kInfinity, 1}, {-kInfinity, 1}}})));
  EXPECT_TRUE(std::isnan(Dot(-kInfinity, {{{kInfinity, 1}, {}}})));
  EXPECT_TRUE(std::isnan(Dot(0, {{{1, 1}, {}}, {{nan, 0}, {}}})));
  EXPECT_TRUE(std::isnan(Dot(nan, {{{1, 1}, {}}})));
}

TEST(EmulatedTilesTest, LoadsAndStoresTheConfiguredRowsAndColumns) {
  constexpr size_t kStride = 20;  // Words.
  std::vector<uint32_t> from(kTileRows * kStride);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<uint32_t>(i + 1);
  }
  for (const auto& [rows, columns] : {std::pair<size_t, size_t>{16, 16}, {1, 16}, {5, 3}}) {
    TileConfig config;
    config.Set(7, rows, columns * sizeof(uint32_t));
    EmulatedTiles tiles;
    tiles.Configure(config);
    std::vector<uint32_t> to(from.size(), 0);
    tiles.Load<7>(from.data(), kStride * sizeof(uint32_t));
    tiles.Store<7>(to.data(), kStride * sizeof(uint32_t));
    for (size_t i = 0; i < to.size(); ++i) {
      const bool inside = i / kStride < rows && i % kStride < columns;
      EXPECT_EQ(to[i], inside ? from[i] : 0) << rows << " x " << columns << ", word " << i;
    }
    tiles.Zero<7>();
    tiles.Store<7>(to.data(), kStride * sizeof(uint32_t));
    EXPECT_EQ(to, std::vector<uint32_t>(to.size(), 0));
  }
}

TEST(EmulatedTilesTest, ConfiguringMakesTilesZero) {
  TileConfig config;
  config.Set(3, 1, 4);
  EmulatedTiles tiles;
  tiles.Configure(config);
  uint32_t word = 5;
  tiles.Load<3>(&word, 4);
  tiles.Configure(config);
  tiles.Store<3>(&word, 4);
  EXPECT_EQ(word, 0u);
  EXPECT_TRUE(tiles.configured());
  tiles.Release();
  EXPECT_FALSE(tiles.configured());
}

TEST(EmulatedTilesTest, EveryRowMeetsEveryColumn) {
  constexpr size_t kRows = 3;
  constexpr size_t kPairs = 5;
  constexpr size_t kColumns = 7;
  const auto a = [](size_t row, size_t k) { return static_cast<float>(row * 11 + k); };
  const auto b = [](size_t k, size_t column) {
    return static_cast<float>(k) - 2.0f * static_cast<float>(column);
  };
  std::vector<uint32_t> rows;
  std::vector<uint32_t> columns;
  std::vector<float> sums(kRows * kColumns, 0.5f);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t pair = 0; pair < kPairs; ++pair) {
      rows.push_back(Word(a(row, 2 * pair), a(row, 2 * pair + 1)));
    }
  }
  for (size_t pair = 0; pair < kPairs; ++pair) {
    for (size_t column = 0; column < kColumns; ++column) {
      columns.push_back(Word(b(2 * pair, column), b(2 * pair + 1, column)));
    }
  }
  TileConfig config;
  config.Set(0, kRows, kColumns * 4);
  config.Set(1, kRows, kPairs * 4);
  config.Set(2, kPairs, kColumns * 4);
  EmulatedTiles tiles;
  tiles.Configure(config);
  tiles.Load<0>(sums.data(), kColumns * 4);
  tiles.Load<1>(rows.data(), kPairs * 4);
  tiles.Load<2>(columns.data(), kColumns * 4);
  tiles.Dot<0, 1, 2>();
  tiles.Store<0>(sums.data(), kColumns * 4);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t column = 0; column < kColumns; ++column) {
      float wanted = 0.5f;
      for (size_t k = 0; k < 2 * kPairs; ++k) {
        wanted += a(row, k) * b(k, column);
      }
      EXPECT_EQ(sums[row * kColumns + column], wanted) << row << ", " << column;
    }
  }
}

TEST(EmulatedTilesDeathTest, RefusesShapesThatDoNotFit) {
  TileConfig config;
  config.Set(0, 2, 8);
  config.Set(1, 1, 8);
  config.Set(2, 2, 8);
  EmulatedTiles tiles;
  EXPECT_DEATH(tiles.Zero<0>(), "configured_");
  tiles.Configure(config);
  EXPECT_DEATH((tiles.Dot<0, 1, 2>()), "sums.rows == rows.rows");
  EXPECT_DEATH((tiles.Dot<1, 1, 2>()), "c != a");
  EXPECT_DEATH(tiles.Zero<3>(), "rows > 0");
}

}  // namespace
}  // namespace lamina::kernels::cpu
