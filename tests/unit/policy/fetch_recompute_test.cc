// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/philox.h"

namespace lamina::policy {
namespace {

using cost::ActivationsCome;
using cost::RecomputeProfile;

constexpr ActivationsCome kWithinLayer = ActivationsCome::kWithinLayer;
constexpr ActivationsCome kAhead = ActivationsCome::kAhead;

double SecondsOf(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed,
                 ActivationsCome come) {
  return cost::RecomputeLayerSeconds(profile, static_cast<double>(tokens),
                                     static_cast<double>(recomputed), come);
}

double Draw(Prng& random) {  // From 1e-3 to 1e3.
  return std::exp((static_cast<double>(random.Below(1000001)) / 1e6 - 0.5) * 13.8);
}

// Every l that can be had is tried.
void ExpectTheBestOfAll(ActivationsCome come) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Prng random(seed);
    const RecomputeProfile profile{
        .activation = random.Below(4) == 0 ? 0 : Draw(random),
        .kv = Draw(random),
        .make = Draw(random),
        .weights = random.Below(4) == 0 ? 0 : 100 * Draw(random),
        .resident = random.Below(3) == 0 ? 0 : static_cast<double>(random.Below(250)),
        .other_work = random.Below(3) == 0 ? 0 : 100 * Draw(random)};
    const uint64_t tokens = random.Below(200);
    const uint64_t grain = random.Below(2) == 0 ? 1 : 1 + random.Below(60);
    double best = SecondsOf(profile, tokens, tokens, come);
    for (uint64_t l = 0; l < tokens; l += grain) {
      best = std::min(best, SecondsOf(profile, tokens, l, come));
    }
    const RecomputeSplit split = BestRecomputeSplit(profile, tokens, come, grain);
    ASSERT_LE(split.recomputed, tokens);
    EXPECT_TRUE(split.recomputed % grain == 0 || split.recomputed == tokens);
    EXPECT_EQ(split.seconds, SecondsOf(profile, tokens, split.recomputed, come));
    EXPECT_LE(split.seconds, best) << "seed " << seed << " tokens " << tokens;
  }
}

TEST(BestRecomputeSplitTest, IsTheBestOfAll) { ExpectTheBestOfAll(kWithinLayer); }

TEST(BestRecomputeSplitTest, IsTheBestOfAllWhereActivationsComeAhead) {
  ExpectTheBestOfAll(kAhead);
}

// Link and device are busy at once: everything is made again where that takes no longer than
// activations do, half of full transfer; with c = 1 two thirds, as under policy fetch_hybrid.
TEST(BestRecomputeSplitTest, SeveralLanesHideOneAnother) {
  const uint64_t tokens = 999999;
  for (const double c : {0.125, 0.25, 0.5}) {
    const RecomputeSplit split =
        BestRecomputeSplit({.activation = 0.5, .kv = 1, .make = c}, tokens, kAhead);
    EXPECT_EQ(split.recomputed, tokens) << "c " << c;
    EXPECT_DOUBLE_EQ(split.seconds, 0.5 * tokens) << "c " << c;
  }
  const RecomputeSplit split =
      BestRecomputeSplit({.activation = 0.5, .kv = 1, .make = 1}, tokens, kAhead);
  EXPECT_EQ(split.recomputed, tokens / 3 * 2);
  EXPECT_NEAR(split.seconds, tokens / 1.5, 1);
}

// Row by row: neither K and V nor activations of what is made again cross the link.
TEST(BestRecomputeSplitTest, ActivationsThatStayCostTheLinkNothing) {
  for (const double c : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0}) {
    const RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = c, .resident = 1000000};
    const RecomputeSplit split = BestRecomputeSplit(profile, 1000000, kWithinLayer);
    EXPECT_NEAR(split.seconds / 1e6, c / (1 + c), 1e-5) << "c " << c;
    EXPECT_EQ(BestRecomputeSplit(profile, 1000000, kAhead).recomputed, split.recomputed);
  }
  // Fewer stay: activations of 100 others come while K and V of these 400 are made.
  const RecomputeProfile some{.activation = 0.5, .kv = 1, .make = 1, .resident = 400};
  EXPECT_DOUBLE_EQ(SecondsOf(some, 1000, 400, kWithinLayer), 600);
  EXPECT_DOUBLE_EQ(SecondsOf(some, 1000, 500, kWithinLayer), 550);
  EXPECT_DOUBLE_EQ(SecondsOf(some, 1000, 600, kWithinLayer), 600);
  // Both sides take equally long at (1000 - 400 / 2) / 1.5.
  EXPECT_EQ(BestRecomputeSplit(some, 1000, kWithinLayer).recomputed, 533u);
  EXPECT_EQ(SecondsOf({.activation = 0.5, .kv = 1, .make = 1}, 1000, 400, kWithinLayer), 800);
  EXPECT_THAT(DescribeRecompute(some, 0.5),
              testing::EndsWith("; activations of 400 tokens are on the compute node"));
}

// Closed forms of multi-head models, whose activations have half the bytes of K and V: with c the
// time to make K and V over that to send them, the best step takes (1/2 + c) / (1 + c).
TEST(BestRecomputeSplitTest, HasTheBoundsOfThePaper) {
  for (const double c : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0}) {
    const RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = c};
    const uint64_t tokens = 1000000;
    const double full = SecondsOf(profile, tokens, 0, kWithinLayer);
    const double wanted = std::min(1.0, (0.5 + c) / (1 + c));
    EXPECT_NEAR(BestRecomputeSplit(profile, tokens, kWithinLayer).seconds / full, wanted, 1e-5)
        << "c " << c;
  }
  // Without activations on the link (row by row) it is c / (1 + c).
  const RecomputeSplit by_rows =
      BestRecomputeSplit({.activation = 0, .kv = 1, .make = 0.25}, 1000000, kWithinLayer);
  EXPECT_NEAR(by_rows.seconds / 1e6, 0.2, 1e-5);
}

TEST(BestRecomputeSplitTest, NothingIsGainedWhereActivationsAreAsLarge) {
  const RecomputeProfile grouped{.activation = 576, .kv = 384, .make = 0.001};
  EXPECT_EQ(BestRecomputeSplit(grouped, 1000, kWithinLayer).recomputed, 0u);
  EXPECT_THAT(DescribeRecompute(grouped, 0), testing::StartsWith("nothing recomputed: "));
  const RecomputeProfile as_large{.activation = 1, .kv = 1, .make = 0.1};
  EXPECT_EQ(BestRecomputeSplit(as_large, 7, kWithinLayer).recomputed, 0u);
}

TEST(BestRecomputeSplitTest, NoTokensAreNoSplit) {
  for (const double weights : {0.0, 3.0}) {
    const RecomputeProfile profile{.activation = 1, .kv = 2, .make = 1, .weights = weights};
    for (const ActivationsCome come : {kWithinLayer, kAhead}) {
      const RecomputeSplit split = BestRecomputeSplit(profile, 0, come);
      EXPECT_EQ(split.recomputed, 0u);
      EXPECT_EQ(split.seconds, weights);
    }
  }
}

// As in the paper: A l + max(F l, K (s - l)).
TEST(BestRecomputeSplitTest, WithoutWeightsItIsThePapersEquation) {
  const RecomputeProfile profile{.activation = 0.375, .kv = 1, .make = 0.5};
  const uint64_t tokens = 300;
  for (uint64_t l = 0; l <= tokens; ++l) {
    const auto made = static_cast<double>(l);
    EXPECT_EQ(SecondsOf(profile, tokens, l, kWithinLayer),
              0.375 * made + std::max(0.5 * made, static_cast<double>(tokens) - made));
  }
  EXPECT_EQ(BestRecomputeSplit(profile, tokens, kWithinLayer).recomputed, tokens * 2 / 3);
}

// What is made again hides behind them: W + K (s - l) = F l.
TEST(BestRecomputeSplitTest, WeightsOnTheLinkAreAReasonToMakeMore) {
  RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = 1};
  EXPECT_EQ(BestRecomputeSplit(profile, 300, kWithinLayer).recomputed, 150u);
  profile.weights = 100;
  EXPECT_EQ(BestRecomputeSplit(profile, 300, kWithinLayer).recomputed, 200u);
  EXPECT_DOUBLE_EQ(BestRecomputeSplit(profile, 300, kWithinLayer).seconds, 300);
  EXPECT_EQ(BestRecomputeSplit(profile, 300, kAhead).recomputed, 266u);  // 400 / 1.5
}

TEST(BestRecomputeSplitTest, WeightsThatHideItHaveAllMadeAgain) {
  for (const double weights : {300.0, 301.0, 1e6}) {
    const RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = 1, .weights = weights};
    const RecomputeSplit split = BestRecomputeSplit(profile, 300, kWithinLayer);
    EXPECT_EQ(split.recomputed, 300u) << weights;
    EXPECT_DOUBLE_EQ(split.seconds, 150 + weights) << weights;
    EXPECT_EQ(BestRecomputeSplit(profile, 300, kAhead).recomputed, 300u) << weights;
  }
  // But an activation that takes as long as K and V is never worth it.
  const RecomputeProfile grouped{.activation = 1, .kv = 1, .make = 0.1, .weights = 1e6};
  EXPECT_EQ(BestRecomputeSplit(grouped, 300, kWithinLayer).recomputed, 0u);
  EXPECT_EQ(BestRecomputeSplit(grouped, 300, kAhead).recomputed, 0u);
}

// D + F l = W + A l + K (s - l).
TEST(BestRecomputeSplitTest, AttentionAndDenseLayersTakeTheSameDevice) {
  RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = 4, .other_work = 75};
  for (const ActivationsCome come : {kWithinLayer, kAhead}) {
    const RecomputeSplit split = BestRecomputeSplit(profile, 300, come);
    EXPECT_EQ(split.recomputed, 50u);  // 225 / 4.5
    EXPECT_DOUBLE_EQ(split.seconds, 275);
    // The best without them takes longer: 66 tokens, or 60.
    EXPECT_GT(SecondsOf(profile, 300, 60, come), 300);
  }
  // Activations that come within a layer hide a little of it.
  profile.other_work = 15;
  EXPECT_EQ(BestRecomputeSplit(profile, 300, kWithinLayer).recomputed, 60u);
  EXPECT_DOUBLE_EQ(BestRecomputeSplit(profile, 300, kWithinLayer).seconds, 270);
  EXPECT_EQ(BestRecomputeSplit(profile, 300, kAhead).recomputed, 63u);  // 285 / 4.5
  // The device is what takes longest.
  for (const double seconds : {300.0, 400.0}) {
    profile.other_work = seconds;
    for (const ActivationsCome come : {kWithinLayer, kAhead}) {
      EXPECT_EQ(BestRecomputeSplit(profile, 300, come).recomputed, 0u);
      EXPECT_DOUBLE_EQ(BestRecomputeSplit(profile, 300, come).seconds, seconds);
    }
  }
}

TEST(BestRecomputeSplitTest, WhereTheLinkTakesLongestOtherWorkChangesNothing) {
  const RecomputeProfile alone{.activation = 0.5, .kv = 1, .make = 0.25};
  RecomputeProfile busy = alone;
  busy.other_work = 30;
  for (const ActivationsCome come : {kWithinLayer, kAhead}) {
    const RecomputeSplit split = BestRecomputeSplit(busy, 300, come);
    EXPECT_EQ(split.recomputed, BestRecomputeSplit(alone, 300, come).recomputed);
    EXPECT_EQ(split.seconds, BestRecomputeSplit(alone, 300, come).seconds);
  }
  EXPECT_EQ(BestRecomputeSplit(busy, 300, kAhead).recomputed, 300u);
}

// Eight sequences have 512 tokens each, in tiles of 16.
TEST(BestRecomputeSplitTest, WholeTilesAreTakenDownOrUp) {
  constexpr uint64_t kTokens = 8 * 512;
  constexpr uint64_t kTile = 8 * 16;
  RecomputeProfile profile{.activation = 0.5, .kv = 1, .make = 1};
  EXPECT_EQ(BestRecomputeSplit(profile, kTokens, kAhead).recomputed, 2730u);
  EXPECT_EQ(BestRecomputeSplit(profile, kTokens, kAhead, kTile).recomputed, 21 * kTile);
  profile.make = 0.51;
  EXPECT_EQ(BestRecomputeSplit(profile, kTokens, kAhead).recomputed, 4055u);
  EXPECT_EQ(BestRecomputeSplit(profile, kTokens, kAhead, kTile).recomputed, kTokens);
  // Fewer tokens than a tile of each: none or all can be had.
  EXPECT_EQ(
      BestRecomputeSplit({.activation = 0.5, .kv = 1, .make = 4}, 100, kAhead, kTile).recomputed,
      0u);
}

TEST(DescribeRecomputeTest, SaysWhatWasMeasured) {
  EXPECT_EQ(DescribeRecompute({.activation = 1e-6, .kv = 2e-6, .make = 0.5e-6}, 0.8),
            "80% of tokens recomputed: K and V of one take 2 us on the link, its activation 1 us, "
            "and making them 0.5 us");
  EXPECT_EQ(
      DescribeRecompute({.activation = 1e-6, .kv = 2e-6, .make = 0.5e-6, .weights = 310e-6}, 0.8),
      "80% of tokens recomputed: K and V of one take 2 us on the link, its activation 1 us, "
      "making them 0.5 us, and the layer's weights 310 us");
  EXPECT_EQ(DescribeRecompute(
                {.activation = 1e-6, .kv = 2e-6, .make = 0.5e-6, .other_work = 810e-6}, 0.8),
            "80% of tokens recomputed: K and V of one take 2 us on the link, its activation 1 us, "
            "making them 0.5 us, and attention and dense layers 810 us of a layer");
}

}  // namespace
}  // namespace lamina::policy
