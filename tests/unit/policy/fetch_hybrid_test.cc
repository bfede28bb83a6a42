// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_hybrid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "common/philox.h"

namespace lamina::policy {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

// K and V of a token take 1 second, its activation half of it, making them `c`.
HybridProfile Profile(double c) {
  return {.load_kv = {.slope = 1}, .load_activations = {.slope = 0.5}, .make = {.slope = c}};
}
constexpr double kTokens = 600;

double StepSeconds(const HybridProfile& profile, const HybridTokens& tokens) {
  return std::max(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens));
}

TEST(FitLineTest, ALineIsFoundAndExplainsAll) {
  const FittedLine fitted = FitLine(std::vector<TimeSample>{{10, 23}, {20, 43}, {40, 83}});
  EXPECT_NEAR(fitted.line.fixed, 3, 1e-9);
  EXPECT_NEAR(fitted.line.slope, 2, 1e-9);
  EXPECT_NEAR(fitted.r_squared, 1, 1e-9);
  EXPECT_EQ(fitted.line.At(0), 0);
  EXPECT_NEAR(fitted.line.At(5), 13, 1e-9);
}

// By hand: means 2 and 10/3, sums of products 3 and of squares 2, unexplained 1/6 of 14/3.
TEST(FitLineTest, RSquaredIsThatOfTheClosedForm) {
  const FittedLine fitted = FitLine(std::vector<TimeSample>{{1, 2}, {2, 3}, {3, 5}});
  EXPECT_NEAR(fitted.line.slope, 3.0 / 2, 1e-12);
  EXPECT_NEAR(fitted.line.fixed, 1.0 / 3, 1e-12);
  EXPECT_NEAR(fitted.r_squared, 27.0 / 28, 1e-12);
}

TEST(FitLineTest, NoiseIsSaidAndNothingIsNegative) {
  const FittedLine noisy = FitLine(std::vector<TimeSample>{{10, 30}, {20, 10}, {30, 50}, {40, 30}});
  EXPECT_GT(noisy.r_squared, 0);
  EXPECT_LT(noisy.r_squared, 0.5);
  // A line that would begin below zero goes through it.
  const FittedLine steep = FitLine(std::vector<TimeSample>{{10, 1}, {20, 10}});
  EXPECT_EQ(steep.line.fixed, 0);
  EXPECT_NEAR(steep.line.slope, 210.0 / 500, 1e-9);
  const FittedLine falling = FitLine(std::vector<TimeSample>{{10, 10}, {20, 1}});
  EXPECT_EQ(falling.line.slope, 0);
  EXPECT_NEAR(falling.line.fixed, 5.5, 1e-9);
}

// With resident weights the share is K / (G + K - A), and a step is 1.5 times as fast as with
// either kind alone where making takes as long as sending.
TEST(AllocateHybridTest, BothSidesAreBusyEquallyLong) {
  const HybridTokens tokens = AllocateHybrid(Profile(1), kTokens);
  EXPECT_NEAR(tokens.share(), 1 / 1.5, 1e-9);
  EXPECT_NEAR(tokens.activations + tokens.kv, kTokens, 1e-9);
  EXPECT_NEAR(LinkSeconds(Profile(1), tokens), DeviceSeconds(Profile(1), tokens), 1e-6);
  EXPECT_NEAR(StepSeconds(Profile(1), tokens), kTokens / 1.5, 1e-6);
}

TEST(AllocateHybridTest, WhereMakingIsFreeAllAreActivations) {
  EXPECT_NEAR(AllocateHybrid(Profile(0.5), kTokens).share(), 1, 1e-9);
  EXPECT_NEAR(AllocateHybrid(Profile(0.1), kTokens).share(), 1, 1e-9);
}

TEST(AllocateHybridTest, ActivationsThatAreAsLargeAsKAndVAreNotHeld) {
  HybridProfile profile = Profile(1);
  profile.load_activations.slope = 1;
  EXPECT_EQ(AllocateHybrid(profile, kTokens).share(), 0);
}

// Against every split of the tokens, with all that a step may have.
TEST(AllocateHybridTest, NoOtherSplitOfTheTokensIsFaster) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Prng random(seed);
    const auto up_to = [&random](double most) {
      return most * static_cast<double>(random.Below(1001)) / 1000;
    };
    const auto either = [&](double most) { return random.Below(2) == 0 ? 0 : up_to(most); };
    HybridProfile profile = Profile(0.1 + up_to(5));
    profile.load_activations.slope = 0.05 + up_to(1.2);
    profile.attend = either(1.2);
    profile.load_weights = either(1500);
    profile.dense = either(1500);
    profile.resident = either(300);
    profile.make.fixed = either(100);
    profile.load_kv.fixed = either(100);
    profile.load_activations.fixed = either(100);
    const double tokens = 100 + up_to(1000);
    const double chosen = StepSeconds(profile, AllocateHybrid(profile, tokens));
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= 10'000; ++i) {
      best = std::min(best, StepSeconds(profile, WithShare(profile, tokens, i / 10'000.0)));
    }
    EXPECT_LE(chosen, best * (1 + 1e-8)) << "seed " << seed;
  }
}

// Algorithm 1's first step: what one side waits for is made up for by the other.
TEST(AllocateHybridTest, WeightsAndResidentActivationsAreMadeUpForFirst) {
  HybridProfile profile = Profile(1);
  profile.load_weights = 50;
  HybridTokens tokens = AllocateHybrid(profile, kTokens);
  EXPECT_NEAR(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens), 1e-6);
  EXPECT_GT(tokens.share(), 1 / 1.5);
  profile.load_weights = 0;
  profile.resident = 50;
  tokens = AllocateHybrid(profile, kTokens);
  EXPECT_NEAR(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens), 1e-6);
  EXPECT_LT(tokens.share(), 1 / 1.5);
  // Weights that take longer than making K and V of all tokens can hide.
  profile = Profile(1);
  profile.load_weights = 1e6;
  EXPECT_NEAR(AllocateHybrid(profile, kTokens).share(), 1, 1e-9);
  // While dense layers run, nothing is made.
  profile = Profile(1);
  profile.dense = 50;
  tokens = AllocateHybrid(profile, kTokens);
  EXPECT_NEAR(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens), 1e-6);
  EXPECT_LT(tokens.share(), 1 / 1.5);
  profile.dense = 1e6;
  EXPECT_EQ(AllocateHybrid(profile, kTokens).share(), 0);
  // Fixed parts of the lines count.
  profile = Profile(1);
  profile.load_weights = 50;
  profile.make.fixed = 10;
  profile.load_activations.fixed = 4;
  profile.load_kv.fixed = 0;
  tokens = AllocateHybrid(profile, kTokens);
  EXPECT_NEAR(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens), 1e-6);
}

// (1 - s) K = s G, so that a step is (G + K) / G times as fast as with K and V alone, where it is
// 1 + K / (2 G) times without room on the device.
TEST(AllocateHybridTest, WhereAllActivationsStayTheLinkHasTheOthersAlone) {
  for (const double c : {0.5, 1.0, 2.0, 4.0}) {
    HybridProfile profile = Profile(c);
    profile.resident = kTokens;
    const HybridTokens tokens = AllocateHybrid(profile, kTokens);
    EXPECT_NEAR(tokens.share(), 1 / (1 + c), 1e-9);
    EXPECT_EQ(tokens.activations, 0);
    EXPECT_NEAR(kTokens / StepSeconds(profile, tokens), 1 + 1 / c, 1e-9);
    const HybridProfile without = Profile(c);
    EXPECT_NEAR(kTokens / StepSeconds(without, AllocateHybrid(without, kTokens)), 1 + 1 / (2 * c),
                1e-9);
  }
}

// What the link is relieved of, the device need not make up for. A step is the shorter the more
// stays, and those that stay grow.
TEST(AllocateHybridTest, TheMoreActivationsStayTheFasterIsAStep) {
  HybridProfile profile = Profile(1);
  HybridTokens before = AllocateHybrid(profile, kTokens);
  double seconds = StepSeconds(profile, before);
  for (const double room : {60.0, 150.0, 300.0, 450.0, 600.0, 9000.0}) {
    profile.resident = room;
    const HybridTokens tokens = AllocateHybrid(profile, kTokens);
    EXPECT_NEAR(tokens.all(), kTokens, 1e-9);
    EXPECT_NEAR(tokens.resident, tokens.share() * std::min(room, kTokens), 1e-9);
    EXPECT_GE(tokens.resident, before.resident);
    EXPECT_LE(tokens.share(), before.share());
    EXPECT_LE(StepSeconds(profile, tokens), seconds);
    before = tokens;
    seconds = StepSeconds(profile, tokens);
  }
  EXPECT_NEAR(seconds, kTokens / 2, 1e-9);
}

// One that stays costs the link nothing, however large it is.
TEST(AllocateHybridTest, LargeActivationsAreHeldWhereTheyStay) {
  HybridProfile profile = Profile(1);
  profile.load_activations.slope = 1.5;
  EXPECT_EQ(AllocateHybrid(profile, kTokens).share(), 0);
  profile.resident = 0.9 * kTokens;
  const double most = AllocateHybrid(profile, kTokens).share();
  EXPECT_NEAR(most, 1 / (2 - 0.15), 1e-9);
  profile.resident = kTokens;
  EXPECT_NEAR(AllocateHybrid(profile, kTokens).share(), 0.5, 1e-9);
}

TEST(PackMiniBatchesTest, RequestsThatBalanceEachOtherGoTogether) {
  // Link 1 a, 2 k; device 2 a: balance at a = 2 k.
  const HybridProfile profile{
      .load_kv = {.slope = 2}, .load_activations = {.slope = 1}, .make = {.slope = 2}};
  const std::vector<HybridRequest> requests = {{10, 0}, {10, 0}, {0, 5}, {0, 5}};
  // The second request would leave the imbalance as it is; the third mends it.
  EXPECT_THAT(PackMiniBatches(requests, profile, {100, 100}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(PackMiniBatchesTest, WhatStaysKeepsTheDeviceBusyAlone) {
  // The device takes 10 for what it has, which needs no buffer, the link 10 for K and V of five.
  const HybridProfile profile{
      .load_kv = {.slope = 2}, .load_activations = {.slope = 1}, .make = {.slope = 1}};
  const std::vector<HybridRequest> requests = {
      {.resident = 10}, {.resident = 10}, {.kv = 5}, {.kv = 5}};
  EXPECT_THAT(PackMiniBatches(requests, profile, {.activations = 5, .kv = 5}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(PackMiniBatchesTest, WhoWasPassedOverIsTakenBehindAnother) {
  // Link 1 a, 2 k; device 2 a. The second request leaves the imbalance of the first at 1/2; behind
  // the third, with which it is 1/5, it brings it to 3/20.
  const HybridProfile profile{
      .load_kv = {.slope = 2}, .load_activations = {.slope = 1}, .make = {.slope = 2}};
  const std::vector<HybridRequest> requests = {{.activations = 10}, {.activations = 10}, {.kv = 7}};
  EXPECT_THAT(PackMiniBatches(requests, profile, {.activations = 100, .kv = 100}),
              ElementsAre(ElementsAre(0, 2, 1)));
}

// Equation 13.
double Imbalance(const HybridProfile& profile, const HybridTokens& tokens) {
  const double make = DeviceSeconds(profile, tokens);
  return make > 0 ? std::abs(1 - LinkSeconds(profile, tokens) / make)
                  : std::numeric_limits<double>::infinity();
}

TEST(PackMiniBatchesTest, EachRequestMendsTheBalanceAndNoneThatWouldIsLeft) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    const HybridRequest buffers{.activations = 900, .kv = 700};
    std::vector<HybridRequest> requests(random() % 20);
    std::set<uint32_t> left;
    for (uint32_t i = 0; i < requests.size(); ++i) {
      requests[i] = {.activations = static_cast<uint32_t>(random() % 300),
                     .kv = static_cast<uint32_t>(random() % 300)};
      left.insert(i);
    }
    const HybridProfile profile = Profile(0.5 + static_cast<double>(random() % 4));
    for (const auto& batch : PackMiniBatches(requests, profile, buffers)) {
      HybridTokens tokens;
      const auto with = [&](uint32_t request) {
        return HybridTokens{.activations = tokens.activations + requests[request].activations,
                            .kv = tokens.kv + requests[request].kv};
      };
      for (const uint32_t request : batch) {
        if (request != batch.front()) {
          EXPECT_LT(Imbalance(profile, with(request)), Imbalance(profile, tokens));
        }
        tokens = with(request);
        left.erase(request);
      }
      for (const uint32_t request : left) {
        const HybridTokens more = with(request);
        EXPECT_TRUE(more.activations > buffers.activations || more.kv > buffers.kv ||
                    Imbalance(profile, more) >= Imbalance(profile, tokens))
            << request;
      }
    }
  }
}

TEST(PackMiniBatchesTest, EveryRequestIsInOneThatFits) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Prng random(seed);
    const HybridRequest buffers{.activations = 500, .kv = 400};
    std::vector<HybridRequest> requests(random() % 40);
    for (HybridRequest& request : requests) {
      request = {.activations = static_cast<uint32_t>(random() % 300),
                 .kv = static_cast<uint32_t>(random() % 300)};
    }
    std::multiset<uint32_t> seen;
    for (const auto& batch : PackMiniBatches(requests, Profile(1), buffers)) {
      EXPECT_FALSE(batch.empty());
      uint64_t activations = 0;
      uint64_t kv = 0;
      for (const uint32_t request : batch) {
        seen.insert(request);
        activations += requests[request].activations;
        kv += requests[request].kv;
      }
      EXPECT_LE(activations, buffers.activations);
      EXPECT_LE(kv, buffers.kv);
    }
    EXPECT_EQ(seen.size(), requests.size());
    EXPECT_EQ(std::set<uint32_t>(seen.begin(), seen.end()).size(), requests.size());
  }
}

TEST(DescribeHybridTest, SaysWhatItIsChosenBy) {
  HybridProfile profile = Profile(1e-6);
  profile.load_kv.slope = 2e-6;
  profile.load_activations.slope = 1e-6;
  EXPECT_EQ(DescribeHybrid(profile, 0.625, 1000),
            "62% of tokens held as activations: K and V of one take 2 us on the link, its "
            "activation 1 us, making K and V of it 1 us, and attention 0 us");
  profile.load_weights = 5e-6;
  profile.dense = 7e-6;
  EXPECT_THAT(
      DescribeHybrid(profile, 0.625, 1000),
      HasSubstr("attention 0 us, the layer's weights 5 us, and a layer's dense part 7 us in "
                "a step of 1000 tokens"));
  profile.load_activations.slope = 3e-6;
  EXPECT_THAT(DescribeHybrid(profile, 0, 1000), HasSubstr("no token held as an activation"));
}

}  // namespace
}  // namespace lamina::policy
