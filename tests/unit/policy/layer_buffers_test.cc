// SPDX-License-Identifier: Apache-2.0
#include "policy/layer_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/philox.h"

namespace lamina::policy {
namespace {

// A layer of OPT-6.7B: rows of 4096 elements of 2 bytes, of 32 sequences of 1024 tokens.
constexpr LayerToken kOpt = {.activation = 2 * 4096, .kv = 2 * 2 * 4096};
constexpr uint64_t kTokens = 32 * 1024;
constexpr double kAll = 32 * 1024;

TEST(LayerBuffersTest, SplitsAreThePapersEquation6) {
  EXPECT_EQ(SplitBytes(kOpt, kTokens, 0), uint64_t{512} << 20);
  EXPECT_EQ(SplitBytes(kOpt, kTokens, kTokens), uint64_t{256} << 20);
  EXPECT_EQ(SplitBytes(kOpt, kTokens, kTokens / 4), uint64_t{448} << 20);
}

TEST(LayerBuffersTest, NoSplitTakesMoreThanTheMostOfAll) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Prng random(seed);
    const LayerToken token{.activation = random.Below(100), .kv = random.Below(100)};
    const uint64_t tokens = random.Below(60);
    uint64_t most = 0;
    for (uint64_t recomputed = 0; recomputed <= tokens; ++recomputed) {
      most = std::max(most, SplitBytes(token, tokens, recomputed));
    }
    EXPECT_EQ(MostSplitBytes(token, tokens), most) << "seed " << seed;
  }
}

// Tokens whose activations stay take no buffer.
TEST(LayerBuffersTest, WhatComesOfHybridTokensHasRoom) {
  EXPECT_EQ(HybridBytes(kOpt, WithShare({}, kAll, 0.25)), SplitBytes(kOpt, kTokens, kTokens / 4));
  const HybridTokens tokens = WithShare({.resident = kAll / 2}, kAll, 0.5);
  EXPECT_EQ(HybridBytes(kOpt, tokens), uint64_t{320} << 20);
  EXPECT_EQ(HybridBytes({.activation = 3, .kv = 5}, {.activations = 0.5, .kv = 1}), 7u);
}

}  // namespace
}  // namespace lamina::policy
