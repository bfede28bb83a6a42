// SPDX-License-Identifier: Apache-2.0
#include "compute_node/making_line.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace lamina::compute_node {
namespace {

TEST(MakingLineTest, SizesThatAreAlikeMakeALineThroughTheOrigin) {
  MakingLine line;
  EXPECT_FALSE(line.Fit().has_value());
  line.Add(100, 1);
  line.Add(100, 3);
  auto fitted = line.Fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_EQ(fitted->line.fixed, 0);
  EXPECT_DOUBLE_EQ(fitted->line.slope, 0.02);
  EXPECT_DOUBLE_EQ(fitted->r_squared, 0.8);
  line.Add(199, 1.5);  // A step that is longer by chance took less.
  EXPECT_EQ(line.Fit()->line.fixed, 0);
  EXPECT_GT(line.Fit()->line.slope, 0);
  line.Add(200, 3);
  EXPECT_GT(line.Fit()->line.fixed, 0);
}

TEST(MakingLineTest, TimesOnALineAreExplainedWhole) {
  MakingLine line;
  for (const uint32_t tokens : {1u, 64u, 65u, 4096u, UINT32_MAX}) {
    line.Add(tokens, 3e-6 + 2e-9 * tokens);
  }
  const auto fitted = line.Fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->line.fixed, 3e-6, 1e-12);
  EXPECT_NEAR(fitted->line.slope, 2e-9, 1e-15);
  EXPECT_NEAR(fitted->r_squared, 1, 1e-9);
}

// Times to make K and V twice as fast, or behind a busy host, as they are of late.
TEST(MakingLineTest, TheLatestOfASizeCountAndTheOthersStay) {
  MakingLine line;
  line.Add(64, 64e-9);
  for (int i = 0; i < 100; ++i) {
    line.Add(1000, i < 92 ? 5e-6 : 1e-6);
  }
  const auto fitted = line.Fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->line.slope, 1e-9, 1e-14);
  EXPECT_NEAR(fitted->r_squared, 1, 1e-9);
}

// The processor has become half as fast, while contexts have one length.
TEST(MakingLineTest, SizesThatHaveNotComeForLongAreForgotten) {
  MakingLine line;
  for (const uint32_t tokens : {64u, 256u, 4096u, 32768u}) {
    for (int i = 0; i < 8; ++i) {
      line.Add(tokens, 3e-6 * tokens);
    }
  }
  EXPECT_NEAR(line.Fit()->line.At(1000) / 1000, 3e-6, 1e-12);
  for (uint32_t i = 0; i < 2000; ++i) {
    line.Add(1000 + i % 8, 6e-6 * (1000 + i % 8));
  }
  EXPECT_NEAR(line.Fit()->line.At(1000) / 1000, 6e-6, 1e-12);
  EXPECT_NEAR(line.Fit()->r_squared, 1, 1e-9);
}

TEST(MakingLineTest, NoiseIsSaid) {
  MakingLine line;
  line.Add(1, 2);
  line.Add(2, 3);
  line.Add(3, 5);
  EXPECT_NEAR(line.Fit()->r_squared, 27.0 / 28, 1e-12);
}

}  // namespace
}  // namespace lamina::compute_node
