// SPDX-License-Identifier: Apache-2.0
#include "policy/token_recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/philox.h"
#include "plan/fetch_pieces.h"

namespace lamina::policy {
namespace {

using ::testing::HasSubstr;

static_assert(kTokenTile == plan::kFetchTile);

double Draw(Prng& random) {  // From 1e-3 to 1e3.
  return std::exp((static_cast<double>(random.Below(1000001)) / 1e6 - 0.5) * 13.8);
}

// Written out anew: every tile is tried.
TEST(BestTokenSplitTest, IsTheBestOfAllTiles) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Prng random(seed);
    const TokenProfile profile{.kv = Draw(random),
                               .make = Draw(random),
                               .attend = random.Below(3) == 0 ? 0 : Draw(random) / 100,
                               .other = random.Below(3) == 0 ? 0 : 100 * Draw(random),
                               .weights = random.Below(3) == 0 ? 100 * Draw(random) : 0};
    const TokenLoad load{.rows = static_cast<uint32_t>(1 + random.Below(40)),
                         .context = static_cast<uint32_t>(random.Below(700))};
    const double rows = load.rows;
    double best = -1;
    uint32_t best_made = 0;
    for (uint32_t made = 0; made <= load.context; made += 16) {
      double pairs = 0;
      for (uint32_t token = 1; token <= made; ++token) {
        pairs += token;
      }
      const double seconds =
          std::max(profile.weights + rows * profile.kv * (load.context - made),
                   profile.other + rows * (profile.make * made + profile.attend * pairs));
      ASSERT_NEAR(TokenLayerSeconds(profile, load, made), seconds, 1e-9 * seconds);
      if (best < 0 || seconds < best * (1 - 1e-12)) {
        best = seconds;
        best_made = made;
      }
    }
    const TokenSplit split = BestTokenSplit(profile, load);
    EXPECT_EQ(split.made, best_made) << "seed " << seed;
    EXPECT_NEAR(split.seconds, best, 1e-9 * best) << "seed " << seed;
  }
}

// An idle device that takes c times as long to make a token's K and V as the link to bring them
// makes 1 / (1 + c) of them.
TEST(BestTokenSplitTest, AnIdleDeviceMakesAsMuchAsBalancesTheLink) {
  for (const uint32_t c : {1u, 3u, 4u, 7u}) {
    const TokenSplit split = BestTokenSplit({.kv = 1, .make = static_cast<double>(c)},
                                            {.rows = 5, .context = 1600 * (1 + c)});
    EXPECT_EQ(split.made, 1600u) << "c " << c;
    EXPECT_DOUBLE_EQ(split.seconds, 5.0 * 1600 * c);
  }
}

TEST(BestTokenSplitTest, ADeviceThatIsBusyLongerThanTheLinkMakesNone) {
  const TokenProfile busy{.kv = 1, .make = 0.1, .other = 10001};
  EXPECT_EQ(BestTokenSplit(busy, {.rows = 10, .context = 1000}).made, 0u);
  EXPECT_EQ(BestTokenSplit(busy, {.rows = 10, .context = 1000}).seconds, 10001);
  EXPECT_GT(BestTokenSplit(busy, {.rows = 20, .context = 1000}).made, 0u);
  EXPECT_THAT(DescribeTokens(busy, 0), HasSubstr("no tokens made from their numbers: K and V"));
  EXPECT_THAT(DescribeTokens(busy, 0.25), HasSubstr("25% of tokens made from their numbers"));
}

// While weights come over the link, the device has time.
TEST(BestTokenSplitTest, AllAreMadeInTheTimeOfTheWeights) {
  const TokenProfile profile{.kv = 1, .make = 4, .other = 100, .weights = 2020};
  const TokenSplit split = BestTokenSplit(profile, {.rows = 3, .context = 160});
  EXPECT_EQ(split.made, 160u);
  EXPECT_DOUBLE_EQ(split.seconds, 2020);
  EXPECT_THAT(DescribeTokens(profile, 1), HasSubstr("the layer's weights 2.02e+09 us there"));
}

// Where K and V are INT8 a tile is a block.
TEST(BestTokenSplitTest, TilesMayBeBlocks) {
  const TokenProfile balanced{.kv = 1, .make = 3};
  EXPECT_EQ(BestTokenSplit(balanced, {.rows = 2, .context = 4096, .tile = 64}).made, 1024u);
  const TokenSplit near = BestTokenSplit(balanced, {.rows = 1, .context = 400, .tile = 64});
  EXPECT_EQ(near.made, 64u);  // The others take 336 on the link then, and 128 would take 384.
  EXPECT_DOUBLE_EQ(near.seconds, 336);
}

TEST(BestTokenSplitTest, LessThanATileIsNotMade) {
  EXPECT_EQ(BestTokenSplit({.kv = 1, .make = 1e-6}, {.rows = 1, .context = 15}).made, 0u);
  EXPECT_EQ(BestTokenSplit({.kv = 1, .make = 1e-6}, {.rows = 1, .context = 47}).made, 32u);
  EXPECT_EQ(BestTokenSplit({.kv = 1, .make = 1}, {.rows = 1, .context = 0}).made, 0u);
}

}  // namespace
}  // namespace lamina::policy
