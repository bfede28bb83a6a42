// SPDX-License-Identifier: Apache-2.0
//
// The loop of bf16 pairs: products that are exact, and that cutting the steps changes no bit.

#include "kernels/cpu/pair_tiles.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/philox.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kSteps = 50;
constexpr size_t kRows = 20;
constexpr size_t kOutStride = kPanelFeatures + 3;

// Words of a panel by feature and input, and rows, of which `value` makes the elements.
struct Panel {
  template <class Value>
  explicit Panel(const Value& value) {
    for (size_t k = 0; k < 2 * kSteps; ++k) {
      for (size_t f = 0; f < kPanelFeatures; ++f) {
        const uint32_t bits = ToBFloat16(value()).bits;
        words[f / kStripFeatures * kSteps * kStripFeatures + k / 2 * kStripFeatures +
              f % kStripFeatures] |= bits << (k % 2 * 16);
      }
    }
    for (BFloat16& x : in) {
      x = ToBFloat16(value());
    }
  }

  float Weight(size_t feature, size_t k) const {
    const uint32_t word = words[feature / kStripFeatures * kSteps * kStripFeatures +
                                k / 2 * kStripFeatures + feature % kStripFeatures];
    return ToFloat({static_cast<uint16_t>(word >> (k % 2 * 16))});
  }

  // In calls of so many steps: rows [row, row + rows).
  std::vector<float> Multiply(size_t steps_each, size_t row = 0, size_t rows = kRows) const {
    std::vector<float> out(rows * kOutStride, -1.0f);
    for (size_t first = 0; first < kSteps; first += steps_each) {
      const size_t steps = std::min(steps_each, kSteps - first);
      MultiplyPanelPairs({.words = words.data() + first * kStripFeatures,
                          .strip_words = kSteps * kStripFeatures,
                          .steps = steps,
                          .in = in.data() + row * 2 * kSteps + 2 * first,
                          .in_stride = 2 * kSteps,
                          .rows = rows,
                          .first = first == 0,
                          .bias = first + steps == kSteps ? bias.data() : nullptr,
                          .out = out.data(),
                          .out_stride = kOutStride});
    }
    return out;
  }

  std::vector<uint32_t> words = std::vector<uint32_t>(kSteps * kPanelFeatures);
  std::vector<BFloat16> in = std::vector<BFloat16>(kRows * 2 * kSteps);
  std::vector<float> bias = std::vector<float>(kPanelFeatures, 0.25f);
};

// Small whole numbers: every order of the sums gives the same.
TEST(PairTilesTest, MultipliesEveryFeatureByEveryRow) {
  if (!HasPairTiles()) {
    GTEST_SKIP() << "this processor has no AVX-512 BF16";
  }
  Prng prng(1);
  const Panel panel([&] { return static_cast<float>(prng.Below(31)) - 15.0f; });
  const std::vector<float> out = panel.Multiply(kSteps);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t f = 0; f < kPanelFeatures; ++f) {
      float sum = 0.25f;
      for (size_t k = 0; k < 2 * kSteps; ++k) {
        sum += ToFloat(panel.in[row * 2 * kSteps + k]) * panel.Weight(f, k);
      }
      ASSERT_EQ(out[row * kOutStride + f], sum) << "row " << row << ", feature " << f;
    }
    for (size_t f = kPanelFeatures; f < kOutStride; ++f) {
      ASSERT_EQ(out[row * kOutStride + f], -1.0f) << "wrote past a row's end";
    }
  }
}

// Tiles differ by how many rows there are.
TEST(PairTilesTest, RowsTogetherHaveTheBitsOfRowsAlone) {
  if (!HasPairTiles()) {
    GTEST_SKIP() << "this processor has no AVX-512 BF16";
  }
  Prng prng(3);
  const Panel panel([&] { return static_cast<float>(prng.Normal()); });
  for (size_t rows = 1; rows <= kRows; ++rows) {
    const std::vector<float> together = panel.Multiply(kSteps, 0, rows);
    for (size_t row = 0; row < rows; ++row) {
      const std::vector<float> alone = panel.Multiply(kSteps, row, 1);
      ASSERT_EQ(
          std::memcmp(&together[row * kOutStride], alone.data(), kPanelFeatures * sizeof(float)), 0)
          << "row " << row << " of " << rows;
    }
  }
}

TEST(PairTilesTest, CuttingTheStepsChangesNoBit) {
  if (!HasPairTiles()) {
    GTEST_SKIP() << "this processor has no AVX-512 BF16";
  }
  Prng prng(2);
  const Panel panel([&] { return static_cast<float>(prng.Uniform() - 0.5); });
  const std::vector<float> whole = panel.Multiply(kSteps);
  for (const size_t steps : {1, 7, 25, 49}) {
    const std::vector<float> cut = panel.Multiply(steps);
    EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0)
        << steps << " steps at once";
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
