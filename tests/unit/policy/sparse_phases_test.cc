// SPDX-License-Identifier: Apache-2.0
#include "policy/sparse_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/philox.h"

namespace lamina::policy {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kBetas = 64;

double Draw(Prng& random) {  // From 1e-2 to 1e2.
  return std::exp((random.Uniform() - 0.5) * 9.2);
}

PhaseProfile RandomProfile(Prng& random, uint32_t prompt_max, uint32_t output_max) {
  PhaseProfile profile{.prompt = static_cast<uint32_t>(random.Below(prompt_max + 1)),
                       .output = static_cast<uint32_t>(random.Below(output_max + 1)),
                       .ratio = random.Chance(0.2) ? 1 : 0.05 + 0.95 * random.Uniform(),
                       .kv = Draw(random),
                       .make = random.Chance(0.2) ? 0 : Draw(random),
                       .attend = random.Uniform(),
                       .keeps_activations = true};
  profile.resident = static_cast<uint32_t>(random.Below(profile.prompt + profile.output + 3));
  profile.activation = profile.kv * 1.2 * random.Uniform();
  return profile;
}

void ExpectNoneIsShorter(const PhaseProfile& profile, const SparsePhases& found, double least) {
  EXPECT_EQ(found.seconds, PhaseSeconds(profile, found));
  EXPECT_TRUE(std::isfinite(found.seconds));
  // Sums of other orders differ in their last digits.
  EXPECT_LE(found.seconds, least * (1 + 1e-12));
}

// All p1, alpha, p2 and beta are tried.
TEST(SearchPhasesTest, IsTheBestOfAllFour) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    const PhaseProfile profile = RandomProfile(random, 9, 7);
    const uint32_t all = profile.prompt + profile.output;
    double least = std::numeric_limits<double>::infinity();
    SparsePhases tried;
    for (tried.p1 = 0; tried.p1 <= profile.output; ++tried.p1) {
      for (tried.p2 = tried.p1; tried.p2 <= profile.output; ++tried.p2) {
        for (uint32_t left = 0; left <= all; ++left) {
          tried.alpha = all == 0 ? 0 : static_cast<double>(left) / all;
          for (uint32_t share = 0; share <= kBetas; ++share) {
            tried.beta = static_cast<double>(share) / kBetas;
            least = std::min(least, PhaseSeconds(profile, tried));
          }
        }
      }
    }
    ExpectNoneIsShorter(profile, SearchPhases(profile), least);
  }
}

// With p1 and alpha as they were found, all p2 and beta of longer sequences.
TEST(SearchPhasesTest, IsTheBestOfAllOfLongSequences) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    const PhaseProfile profile = RandomProfile(random, 200, 96);
    const SparsePhases found = SearchPhases(profile);
    double least = std::numeric_limits<double>::infinity();
    SparsePhases tried = found;
    for (tried.p2 = found.p1; tried.p2 <= profile.output; ++tried.p2) {
      for (uint32_t share = 0; share <= kBetas; ++share) {
        tried.beta = static_cast<double>(share) / kBetas;
        least = std::min(least, PhaseSeconds(profile, tried));
      }
    }
    ExpectNoneIsShorter(profile, found, least);
  }
}

TEST(SearchPhasesTest, WhereAnActivationIsNoSmallerNothingIsRecomputed) {
  for (const double activation : {768.0, 1152.0}) {
    const SparsePhases phases = SearchPhases({.prompt = 500,
                                              .output = 100,
                                              .ratio = 0.5,
                                              .kv = 768,
                                              .activation = activation,
                                              .keeps_activations = true});
    EXPECT_EQ(phases.p2, 100u);
    EXPECT_EQ(phases.beta, 0);
  }
}

TEST(SearchPhasesTest, WithoutActivationsNothingIsRecomputed) {
  const SparsePhases phases =
      SearchPhases({.prompt = 500, .output = 100, .ratio = 0.5, .kv = 2, .activation = 1});
  EXPECT_EQ(phases.p2, 100u);
  EXPECT_EQ(phases.beta, 0);
}

// With c = 1/4 the best step is (1/2 + c) / (1 + c) of one without recomputing.
TEST(SearchPhasesTest, MultiHeadModelsGainWhatASplitGains) {
  const PhaseProfile profile{.prompt = 10000,
                             .output = 10,
                             .kv = 1,
                             .activation = 0.5,
                             .make = 0.25,
                             .keeps_activations = true};
  const SparsePhases found = SearchPhases(profile);
  EXPECT_EQ(found.p2, 0u);
  EXPECT_NEAR(found.beta, 0.8, 1.0 / kBetas);
  SparsePhases without = found;
  without.p2 = profile.output;
  EXPECT_NEAR(found.seconds / PhaseSeconds(profile, without), 0.6, 0.01);
}

TEST(SearchPhasesTest, PhaseIIsAsLongAsThereIsRoom) {
  const PhaseProfile profile{.prompt = 20, .output = 100, .ratio = 0.2, .kv = 1};
  const auto phases_of = [&profile](uint32_t resident) {
    PhaseProfile with = profile;
    with.resident = resident;
    return SearchPhases(with);
  };
  EXPECT_EQ(phases_of(0).p1, 0u);
  EXPECT_EQ(phases_of(0).alpha, 1);
  EXPECT_EQ(phases_of(20).p1, 0u);
  EXPECT_EQ(phases_of(21).p1, 1u);
  EXPECT_EQ(phases_of(60).p1, 40u);
  EXPECT_EQ(phases_of(60).alpha, 0.5);
  EXPECT_EQ(phases_of(120).p1, 100u);
  EXPECT_EQ(phases_of(120).p2, 100u);
  EXPECT_EQ(phases_of(120).alpha, 0);
  EXPECT_EQ(phases_of(1000).p1, 100u);
  EXPECT_EQ(phases_of(1000).seconds, 0);
}

TEST(PhaseSecondsTest, WhatHasNoRoomIsNeverOver) {
  const PhaseProfile profile{.prompt = 20, .output = 100, .resident = 60, .kv = 1};
  EXPECT_TRUE(std::isfinite(PhaseSeconds(profile, {.p1 = 40, .p2 = 100, .alpha = 0.5})));
  EXPECT_TRUE(std::isinf(PhaseSeconds(profile, {.p1 = 41, .p2 = 100, .alpha = 0.5})));
  EXPECT_TRUE(std::isinf(PhaseSeconds(profile, {.p1 = 40, .p2 = 100, .alpha = 0.49})));
  EXPECT_TRUE(std::isinf(PhaseSeconds(profile, {.p1 = 40, .p2 = 39, .alpha = 0.5})));
  EXPECT_TRUE(std::isinf(PhaseSeconds(profile, {.p1 = 40, .p2 = 101, .alpha = 0.5})));
}

// 20% of the tokens are chosen, half of these the most recent: 102 of 1024.
TEST(ComingTokensTest, TokensThatStayDoNotCome) {
  const PhaseProfile profile{.output = 1025, .ratio = 0.2, .resident = 80, .kv = 1};
  const SparsePhases phases = SearchPhases(profile);
  EXPECT_EQ(ComingTokens(profile, phases, 80), 0u);
  EXPECT_EQ(ComingTokens(profile, phases, 81), 1u);
  EXPECT_EQ(ComingTokens(profile, phases, 384), 38u);
  EXPECT_EQ(ComingTokens(profile, phases, 1024), 204u - 80u);
  const PhaseProfile dense{.output = 1025, .ratio = 1, .resident = 80, .kv = 1};
  EXPECT_EQ(ComingTokens(dense, SearchPhases(dense), 1024), 1024u - 80u);
}

// SmolLM2's bytes, which `lamina explain` prints.
TEST(DescribePhasesTest, SaysWhatStaysAndWhyNoneIsRecomputed) {
  PhaseProfile profile{.output = 1024, .ratio = 0.2, .resident = 80, .kv = 768, .activation = 1152};
  EXPECT_EQ(DescribePhases(profile, {.kv = 768, .activation = 1152}, SearchPhases(profile)),
            "80 of 1024 tokens stay (p1 = 80, alpha = 0.922), none is recomputed (p2 = n): an "
            "activation has 1152 bytes in a layer, K and V 768");

  const PhaseBytes half{.kv = 1024, .activation = 512};
  profile.kv = half.kv;
  profile.activation = half.activation;
  profile.resident = 0;
  EXPECT_EQ(DescribePhases(profile, half, SearchPhases(profile)),
            "0 of 1024 tokens stay (p1 = 0, alpha = 1), none is recomputed (p2 = n): memory nodes "
            "keep no activations, with which they would have room for 67% of the tokens; "
            "recomputing would save at most 50% of what comes (an activation has 512 bytes in a "
            "layer, K and V 1024)");

  profile.resident = 2000;
  EXPECT_EQ(DescribePhases(profile, half, SearchPhases(profile)),
            "all 1024 tokens stay (p1 = n, alpha = 0), none is recomputed (p2 = n): none has to "
            "come");

  profile.keeps_activations = true;
  profile.resident = 80;
  profile.make = 1e9;
  EXPECT_THAT(DescribePhases(profile, half, SearchPhases(profile)),
              HasSubstr("none is recomputed (p2 = n): K and V of one take "));
  profile.make = 1;
  EXPECT_THAT(DescribePhases(profile, half, SearchPhases(profile)),
              ::testing::AllOf(StartsWith("80 of 1024 tokens stay (p1 = 80, "),
                               HasSubstr("% of those that come are recomputed from p2 = "),
                               EndsWith(" on")));
}

}  // namespace
}  // namespace lamina::policy
