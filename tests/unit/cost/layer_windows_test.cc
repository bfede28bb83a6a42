// SPDX-License-Identifier: Apache-2.0
#include "cost/layer_windows.h"

#include <gtest/gtest.h>

namespace lamina::cost {
namespace {

std::vector<AttentionDescriptor> Layers(const std::vector<uint32_t>& windows) {
  std::vector<AttentionDescriptor> layers;
  for (const uint32_t window : windows) {
    layers.push_back({.window = window});
  }
  return layers;
}

TEST(LayerWindowsTest, WithoutWindowsEverythingIsSeen) {
  for (const LayerWindows& windows : {LayerWindows(), LayerWindows(Layers({0, 0}))}) {
    EXPECT_TRUE(windows.empty());
    EXPECT_EQ(windows.longest(), 0u);
    EXPECT_EQ(windows.SeenOf(1000), 1000u);
    EXPECT_EQ(windows.SeenIn(200, 300, 1000), 100u);
  }
}

// Gemma 3 has five layers of a window for each one without.
TEST(LayerWindowsTest, EachLayerCountsTheShorterOfContextAndWindow) {
  const LayerWindows windows(Layers({100, 100, 100, 0, 100, 100}));
  EXPECT_EQ(windows.longest(), 0u);
  EXPECT_EQ(windows.SeenOf(60), 60u);
  EXPECT_EQ(windows.SeenOf(1000), (5 * 100 + 1000u) / 6);
}

TEST(LayerWindowsTest, TheLongestCountsWhereEveryLayerHasOne) {
  const LayerWindows windows(Layers({100, 300}));
  EXPECT_EQ(windows.longest(), 300u);
  EXPECT_EQ(windows.SeenOf(1000), 200u);
}

// What spans hold of a context adds up to what is seen of it.
TEST(LayerWindowsTest, ASpanCountsWhatTheWindowReachesOfIt) {
  const LayerWindows windows(Layers({100, 300}));
  EXPECT_EQ(windows.SeenIn(0, 512, 1000), 0u);
  EXPECT_EQ(windows.SeenIn(512, 768, 1000), (768 - 700) / 2u);
  EXPECT_EQ(windows.SeenIn(768, 1000, 1000), (100 + 232u) / 2);
}

}  // namespace
}  // namespace lamina::cost
