// SPDX-License-Identifier: Apache-2.0
//
// The loop of bf16 pairs: products that are exact, and that neither cutting the steps, nor the
// number of rows or strips, nor where words come from changes a bit.

#include "kernels/cpu/pair_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "common/philox.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kSteps = 50;
constexpr size_t kRows = 70;
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

  // In calls of so many steps: rows [row, row + rows) by strips [strip, strip + strips), whose
  // features alone are written.
  struct Call {
    bool from_memory = false;
    size_t steps_each = kSteps;
    size_t row = 0;
    size_t rows = kRows;
    size_t strip = 0;
    size_t strips = kPanelStrips;
  };
  std::vector<float> Multiply(const Call& call) const {
    const size_t feature = call.strip * kStripFeatures;
    std::vector<float> out(call.rows * kOutStride, -1.0f);
    for (size_t first = 0; first < kSteps; first += call.steps_each) {
      const size_t steps = std::min(call.steps_each, kSteps - first);
      MultiplyPanelPairs({.words = words.data() + feature * kSteps + first * kStripFeatures,
                          .strip_words = kSteps * kStripFeatures,
                          .strips = call.strips,
                          .from_memory = call.from_memory,
                          .steps = steps,
                          .in = in.data() + call.row * 2 * kSteps + 2 * first,
                          .in_stride = 2 * kSteps,
                          .rows = call.rows,
                          .first = first == 0,
                          .bias = first + steps == kSteps ? bias.data() + feature : nullptr,
                          .out = out.data() + feature,
                          .out_stride = kOutStride});
    }
    return out;
  }

  std::vector<uint32_t> words = std::vector<uint32_t>(kSteps * kPanelFeatures);
  std::vector<BFloat16> in = std::vector<BFloat16>(kRows * 2 * kSteps);
  std::vector<float> bias = std::vector<float>(kPanelFeatures, 0.25f);
};

// Whether words count as coming from memory.
class PairTilesTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!HasPairTiles()) {
      GTEST_SKIP() << "this processor has no AVX-512 BF16";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Words, PairTilesTest, testing::Bool(), [](const auto& words) {
  return std::string(words.param ? "from_memory" : "from_a_cache");
});

// Small whole numbers: every order of the sums gives the same.
TEST_P(PairTilesTest, MultipliesEveryFeatureByEveryRow) {
  Prng prng(1);
  const Panel panel([&] { return static_cast<float>(prng.Below(31)) - 15.0f; });
  for (const size_t rows : {size_t{20}, kRows}) {
    const std::vector<float> out = panel.Multiply({.from_memory = GetParam(), .rows = rows});
    for (size_t row = 0; row < rows; ++row) {
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
}

TEST_P(PairTilesTest, NoRowsWriteNothing) {
  const Panel panel([] { return 1.0f; });
  const std::vector<float> before(2 * kOutStride, -1.0f);
  std::vector<float> out = before;
  MultiplyPanelPairs({.words = panel.words.data(),
                      .strip_words = kSteps * kStripFeatures,
                      .from_memory = GetParam(),
                      .steps = kSteps,
                      .in = panel.in.data(),
                      .in_stride = 2 * kSteps,
                      .rows = 0,
                      .bias = panel.bias.data(),
                      .out = out.data(),
                      .out_stride = kOutStride});
  EXPECT_EQ(out, before);
}

// Tiles differ by how many rows there are.
TEST_P(PairTilesTest, RowsTogetherHaveTheBitsOfRowsAlone) {
  Prng prng(3);
  const Panel panel([&] { return static_cast<float>(prng.Normal()); });
  for (size_t rows = 1; rows <= kRows; ++rows) {
    const std::vector<float> together = panel.Multiply({.from_memory = GetParam(), .rows = rows});
    for (size_t row = 0; row < rows; ++row) {
      const std::vector<float> alone = panel.Multiply({.row = row, .rows = 1});
      ASSERT_EQ(
          std::memcmp(&together[row * kOutStride], alone.data(), kPanelFeatures * sizeof(float)), 0)
          << "row " << row << " of " << rows;
    }
  }
}

TEST_P(PairTilesTest, CuttingTheStepsChangesNoBit) {
  Prng prng(2);
  const Panel panel([&] { return static_cast<float>(prng.Uniform() - 0.5); });
  for (const size_t rows : {size_t{5}, size_t{30}, kRows}) {
    const std::vector<float> whole = panel.Multiply({.rows = rows});
    for (const size_t steps : {1, 7, 25, 49}) {
      const std::vector<float> cut =
          panel.Multiply({.from_memory = GetParam(), .steps_each = steps, .rows = rows});
      EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << steps << " steps at once, " << rows << " rows";
    }
  }
}

TEST_P(PairTilesTest, NarrowTasksHaveTheBitsOfThePanelAndWriteNoOtherFeature) {
  Prng prng(4);
  const Panel panel([&] { return static_cast<float>(prng.Normal()); });
  for (const size_t rows : {1, 6, 13, 25, 49, 70}) {
    const std::vector<float> whole = panel.Multiply({.rows = rows});
    for (const size_t strips : {1, 2}) {
      for (size_t strip = 0; strip < kPanelStrips; strip += strips) {
        const std::vector<float> narrow = panel.Multiply(
            {.from_memory = GetParam(), .rows = rows, .strip = strip, .strips = strips});
        for (size_t i = 0; i < whole.size(); ++i) {
          const size_t at = i % kOutStride / kStripFeatures;
          const bool own = strip <= at && at < strip + strips;
          ASSERT_EQ(std::bit_cast<uint32_t>(narrow[i]),
                    std::bit_cast<uint32_t>(own ? whole[i] : -1.0f))
              << rows << " rows, strip " << strip << " and " << strips - 1 << " behind it";
        }
      }
    }
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
