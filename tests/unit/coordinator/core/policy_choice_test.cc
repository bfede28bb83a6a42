// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/cost/two_cores.h"

namespace lamina::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using cost::KvPolicy;
using test_support::kModel;
using test_support::kPools;
using test_support::TwoCores;
using test_support::Whole;

// Memory nodes and the compute node.
const std::vector<PolicyCandidate> kBoth = {{.policy = KvPolicy::kAttendRemote},
                                            {.policy = KvPolicy::kLocal}};

PolicyInputs Inputs(const plan::PolicyTimes& times = TwoCores()) {
  return {.compute = Whole(times), .model = kModel, .pools = kPools};
}

struct Point {
  double rows;
  double context;
  bool local;
};

TEST(KvBytesReadPerTokenTest, CountsNoMoreThanTheWindowOfEachLayer) {
  const AttentionDescriptor whole = {.query_heads = 8, .kv_heads = 2, .head_dim = 64};
  AttentionDescriptor windowed = whole;
  windowed.window = 100;

  EXPECT_EQ(KvBytesReadPerToken({whole, windowed}, 100), 2 * 4 * 128);
  EXPECT_EQ(KvBytesReadPerToken({whole, windowed}, 400), 4 * 128 + 4 * 128 / 4);
}

class PolicyChoicePointTest : public ::testing::TestWithParam<Point> {};

// Much context with few rows keeps both cores busy on two pools; many rows, or so much context
// that the memory nodes' core bounds the step, are faster where all cores do what there is to do.
TEST_P(PolicyChoicePointTest, IsTheShorterStepAndSaysSo) {
  const auto& [rows, context, local] = GetParam();
  const PolicyChoice choice = ChoosePolicy(Inputs(), kBoth, {.rows = rows, .context = context});
  EXPECT_EQ(choice.local(), local) << choice.why;
  EXPECT_EQ(choice.local(),
            choice.SecondsOf(KvPolicy::kLocal) < choice.SecondsOf(KvPolicy::kAttendRemote));
  EXPECT_THAT(choice.why, HasSubstr(local ? ", on memory nodes " : ", with local "));
}

INSTANTIATE_TEST_SUITE_P(Points, PolicyChoicePointTest,
                         ::testing::Values(Point{16, 1024, false}, Point{64, 128, true},
                                           Point{64, 512, true}, Point{1, 128, true},
                                           Point{16, 4096, true}));

TEST(PolicyChoiceTest, SaysTheFiguresOfBoth) {
  const PolicyChoice choice = ChoosePolicy(Inputs(), kBoth, {.rows = 16, .context = 1000});
  EXPECT_EQ(choice.why,
            "16 rows at 1000 tokens: a step takes 83.7 ms (dense 74.0, attention 48.5, 2 lanes), "
            "with local 98.6 ms (dense 74.0, attention 24.6)");
}

// 16 rows decode faster with memory nodes; a token of a prompt takes them 3.0 ms, and local 1.8.
TEST(PolicyChoiceTest, PromptsCountByTheirTokensForEachGeneratedOne) {
  const auto choose = [](double prompts, std::optional<KvPolicy> current = std::nullopt) {
    return ChoosePolicy(Inputs(), kBoth, {.rows = 16, .context = 1000, .prompts = prompts},
                        current);
  };
  EXPECT_FALSE(choose(0.5).local());
  EXPECT_TRUE(choose(1).local());
  const PolicyChoice choice = choose(2);
  EXPECT_EQ(choice.why,
            "16 rows at 1000 tokens, 2.0 of a prompt to each: a step takes 98.6 ms (dense 74.0, "
            "attention 24.6) and its prompts 58.0, on memory nodes 83.7 ms (dense 74.0, attention "
            "48.5, 2 lanes) and its prompts 95.7");
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kLocal), 98.6e-3, 1e-4) << "of the step alone";
  EXPECT_FALSE(choose(1, KvPolicy::kAttendRemote).local()) << "127.6 of 131.5 is no tenth less";
  EXPECT_TRUE(choose(3, KvPolicy::kAttendRemote).local());
}

TEST(PolicyLoadMeterTest, CountsPromptsToEachGeneratedTokenOfLate) {
  PolicyLoadMeter meter;
  meter.Add(1, 4, 400);
  EXPECT_EQ(meter.load().prompts, 0);
  meter.AddTokens(1, 0, 300);
  EXPECT_EQ(meter.load().prompts, 300) << "none was generated yet";
  meter.AddTokens(1, 100, 0);
  EXPECT_NEAR(meter.load().prompts, 3, 0.05);
  for (int second = 0; second < 600; ++second) {
    meter.AddTokens(1, 100, 50);
  }
  EXPECT_NEAR(meter.load().prompts, 0.5, 0.01);
}

TEST(PolicyChoiceTest, WithoutMemoryNodesOnlyLocalIsLeft) {
  std::vector<PolicyCandidate> candidates = kBoth;
  candidates[0].why_not = "no memory node is there";
  const PolicyChoice choice =
      ChoosePolicy(Inputs(), candidates, {.rows = 1, .context = 100}, KvPolicy::kAttendRemote);
  EXPECT_TRUE(choice.local());
  EXPECT_EQ(choice.SecondsOf(KvPolicy::kAttendRemote), 0);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("1 row at 100 tokens"),
                                HasSubstr("no memory node is there"), Not(HasSubstr("lane"))));
}

// Around the load where both are equally fast, whichever runs stays.
TEST(PolicyChoiceTest, TheCurrentPolicyStaysUntilTheOtherIsClearlyFaster) {
  plan::PolicyTimes times = TwoCores();
  const cost::PolicyLoad load = {.rows = 64, .context = 512};
  const double remote = cost::PoolsStep(Whole(times), kModel, kPools, load).seconds;
  for (const double factor : {0.85, 0.95, 1.05, 1.2}) {
    // Attention takes what makes local's step so much longer.
    const double dense = cost::LocalStep(Whole(times), load).dense;
    times.attention_local =
        load.rows * load.context * kModel.kv_bytes_per_token / (remote * factor - dense);
    const auto local = [&](std::optional<KvPolicy> current) {
      return ChoosePolicy(Inputs(times), kBoth, load, current).local();
    };
    EXPECT_EQ(local(std::nullopt), factor < 1) << factor;
    EXPECT_EQ(local(KvPolicy::kLocal), factor < 1.1) << factor;
    EXPECT_EQ(local(KvPolicy::kAttendRemote), factor < 0.9) << factor;
  }
}

// Two pools are faster by a sixth while reads are fast, and slower by a third while they are slow.
class PolicyEndsTest : public ::testing::Test {
 protected:
  PolicyEndsTest() {
    plan::PolicyTimes slow = TwoCores();
    slow.attention_local = 13e9;
    ends_ = {Inputs(slow), Inputs(TwoCores())};
    ends_[0].pools.attention = 3e9;
  }
  PolicyChoice Choose(const PolicyInputs& inputs, std::optional<KvPolicy> current = std::nullopt,
                      const PolicyCorrections& corrections = {}) const {
    return ChoosePolicy(inputs, kBoth, {.rows = 16, .context = 1000}, current, corrections, ends_);
  }

  std::vector<PolicyInputs> ends_;  // Slow, fast.
};

TEST_F(PolicyEndsTest, WhatLosesLeastWhereItLosesMostIsTakenWhicheverEndIsSeenMore) {
  for (const PolicyInputs& inputs : ends_) {
    const PolicyChoice choice = Choose(inputs);
    EXPECT_TRUE(choice.local()) << choice.why;
    ASSERT_EQ(choice.figures.size(), 2u);
    EXPECT_NEAR(choice.figures[0].worst, 140.1 / 102.4, 0.01);
    EXPECT_NEAR(choice.figures[1].worst, 98.6 / 83.7, 0.01);
    EXPECT_EQ(choice.figures[1].ends.size(), 2u);
    EXPECT_THAT(choice.why, HasSubstr("; from slow reads to fast ones 102.4 to 98.6 ms, on memory "
                                      "nodes 140.1 to 83.7 ms: at worst 1.18 and 1.37 of the "
                                      "fastest"));
  }
}

TEST_F(PolicyEndsTest, PromptsCountAtBothEnds) {
  const PolicyChoice choice =
      ChoosePolicy(ends_[1], kBoth, {.rows = 16, .context = 1000, .prompts = 1}, {}, {}, ends_);
  EXPECT_NEAR(choice.figures[1].ends[0], 0.1024 + 0.0290, 2e-4);
  EXPECT_NEAR(choice.figures[0].worst, (140.1 + 47.9) / (102.4 + 29.0), 0.01);
}

TEST_F(PolicyEndsTest, WhereBothEndsAgreeTheFastestIsTaken) {
  ends_[0] = ends_[1];
  ends_[0].pools.attention = 7.5e9;
  const PolicyChoice choice = Choose(ends_[1]);
  EXPECT_FALSE(choice.local()) << choice.why;
  EXPECT_EQ(choice.figures[0].worst, 1);
}

TEST_F(PolicyEndsTest, WhatServesStaysUnlessItLosesATenthMore) {
  EXPECT_TRUE(Choose(ends_[1], KvPolicy::kAttendRemote).local()) << "1.18 against 1.37";
  ends_[0].pools.attention = 3.4e9;  // 125.6 ms, 1.23 of the fastest.
  EXPECT_TRUE(Choose(ends_[1]).local());
  const PolicyChoice stays = Choose(ends_[1], KvPolicy::kAttendRemote);
  EXPECT_FALSE(stays.local()) << stays.why;
  EXPECT_THAT(stays.why, HasSubstr("too little less for another epoch"));
}

TEST_F(PolicyEndsTest, WhatStepsReallyTookCountsAtBothEnds) {
  const PolicyChoice choice = Choose(ends_[1], std::nullopt, {{KvPolicy::kLocal, 1.25}});
  EXPECT_NEAR(choice.figures[1].ends[0], 1.25 * 0.1024, 1e-3);
  EXPECT_NEAR(choice.figures[1].worst, 1.25 * 98.6 / 83.7, 0.01);
  EXPECT_FALSE(choice.local()) << choice.why;
}

// A host on which two pools were predicted to take 113 ms a step where local took 125, and took
// 130.
class CorrectedPolicyTest : public ::testing::Test {
 protected:
  CorrectedPolicyTest() : times_(TwoCores()) {
    const double dense = cost::LocalStep(Whole(times_), kLoad).dense;
    const double remote = cost::PoolsStep(Whole(times_), kModel, kPools, kLoad).seconds;
    times_.attention_local =
        kLoad.rows * kLoad.context * kModel.kv_bytes_per_token / (remote * 125 / 113 - dense);
  }
  PolicyChoice Choose(std::optional<KvPolicy> current, const PolicyCorrections& corrections) const {
    return ChoosePolicy(Inputs(times_), kBoth, kLoad, current, corrections);
  }

  static constexpr cost::PolicyLoad kLoad = {.rows = 64, .context = 512};
  plan::PolicyTimes times_;
};

TEST_F(CorrectedPolicyTest, WhatServesIsTriedAgainstWhatIsPredicted) {
  EXPECT_FALSE(Choose(std::nullopt, {}).local());
  EXPECT_FALSE(Choose(KvPolicy::kAttendRemote, {}).local());
  const PolicyChoice choice =
      Choose(KvPolicy::kAttendRemote, {{KvPolicy::kAttendRemote, 130.0 / 113}});
  EXPECT_TRUE(choice.local());
  EXPECT_THAT(choice.why, HasSubstr("; steps on memory nodes took 1.15 of what was predicted"));
  EXPECT_FALSE(Choose(KvPolicy::kAttendRemote, {{KvPolicy::kAttendRemote, 120.0 / 113}}).local())
      << "no shorter than now";
}

TEST_F(CorrectedPolicyTest, OnceBothAreMeasuredNeitherIsLeftForLittle) {
  const PolicyCorrections both = {{KvPolicy::kLocal, 122.0 / 125},
                                  {KvPolicy::kAttendRemote, 130.0 / 113}};
  EXPECT_TRUE(Choose(KvPolicy::kLocal, both).local());
  EXPECT_FALSE(Choose(KvPolicy::kAttendRemote, both).local())
      << "122 is more than nine tenths of 130";
}

TEST_F(CorrectedPolicyTest, ABusyHostIsNotTakenForAWrongPrediction) {
  const PolicyChoice predicted = Choose(KvPolicy::kAttendRemote, {});
  EXPECT_NEAR(Choose(KvPolicy::kAttendRemote, {{KvPolicy::kAttendRemote, 9}})
                  .SecondsOf(KvPolicy::kAttendRemote),
              predicted.SecondsOf(KvPolicy::kAttendRemote) * 4 / 3, 1e-9);
  EXPECT_NEAR(
      Choose(KvPolicy::kAttendRemote, {{KvPolicy::kLocal, 0.1}}).SecondsOf(KvPolicy::kLocal),
      predicted.SecondsOf(KvPolicy::kLocal) * 0.75, 1e-9);
}

// Two memory nodes that send 10 GB/s: at 8 rows of 1,000 tokens K and V take 18 ms.
class FetchChoiceTest : public ::testing::Test {
 protected:
  FetchChoiceTest() : inputs_(Inputs()) {
    plan::PolicyTimes times = TwoCores();
    times.attention_pools = 15e9;
    times.make_seconds = 1e-7;
    inputs_.compute = Whole(times);
    inputs_.model.activation_bytes_per_token = kModel.kv_bytes_per_token / 2;
    inputs_.pools.link = 10e9;
  }
  PolicyChoice Choose(const std::vector<PolicyCandidate>& candidates) const {
    return ChoosePolicy(inputs_, candidates, kLoad);
  }

  static constexpr cost::PolicyLoad kLoad = {.rows = 8, .context = 1000};
  const std::vector<PolicyCandidate> all_ = {
      {.policy = KvPolicy::kAttendRemote, .why_not = "memory nodes are stores"},
      {.policy = KvPolicy::kLocal, .tokens_max = 2000},
      {.policy = KvPolicy::kFetchHeads},
      {.policy = KvPolicy::kFetchRecompute},
      {.policy = KvPolicy::kFetchHybrid},
      {.policy = KvPolicy::kFetchSparse, .why_not = "lossy"}};
  PolicyInputs inputs_;
};

TEST_F(FetchChoiceTest, RowsThatDoNotFitTakeTurns) {
  const PolicyChoice choice = Choose(all_);
  const double two = StepOf(KvPolicy::kLocal, inputs_, {.rows = 2, .context = 1000}).seconds;
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kLocal), 4 * two, 1e-12);
  EXPECT_EQ(choice.figures[1].rows, 2);
  EXPECT_EQ(choice.figures[1].waiting, 6);
  EXPECT_EQ(choice.figures[2].rows, 8);
  EXPECT_EQ(choice.figures[2].waiting, 0) << "any number of tokens has room";
  EXPECT_THAT(choice.why, Not(HasSubstr("at a time")));
  const PolicyChoice only = Choose({all_[1]});
  EXPECT_THAT(only.why, AllOf(HasSubstr("2 rows at a time"), HasSubstr("there is no other")));
}

TEST_F(FetchChoiceTest, OfPoliciesThatAreEquallyFastTheFirstIsTaken) {
  // Links that hide behind dense layers leave nothing to gain from activations.
  const PolicyChoice choice = Choose(all_);
  EXPECT_EQ(choice.policy, KvPolicy::kFetchHeads) << choice.why;
  EXPECT_EQ(choice.SecondsOf(KvPolicy::kFetchHybrid), choice.SecondsOf(KvPolicy::kFetchHeads));
}

TEST_F(FetchChoiceTest, SlowLinksAreWorthMakingKAndV) {
  inputs_.pools.link = 1e9;
  const PolicyChoice choice = Choose({all_[2], all_[3], all_[4]});
  EXPECT_THAT(choice.policy, ::testing::AnyOf(KvPolicy::kFetchRecompute, KvPolicy::kFetchHybrid));
  EXPECT_THAT(choice.why, AllOf(HasSubstr(", links "), HasSubstr("making K and V of ")));
}

// Both have the longer of link and device a layer: one keeps K and V and activations, the other one
// of them.
TEST_F(FetchChoiceTest, OfThoseAsFastTheFirstWithRoomForAllRowsIsTaken) {
  inputs_.pools.link = 1e8;
  inputs_.pools.room = 1e9;
  PolicyCandidate both = {.policy = KvPolicy::kFetchRecompute, .tokens_max = 8000};
  const PolicyCandidate either = {.policy = KvPolicy::kFetchHybrid, .tokens_max = 16000};
  const PolicyChoice choice = Choose({both, either});
  EXPECT_EQ(choice.policy, KvPolicy::kFetchRecompute) << choice.why;
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kFetchHybrid), choice.SecondsOf(KvPolicy::kFetchRecompute),
              1e-6);
  both.tokens_max = 7999;
  EXPECT_EQ(Choose({both, either}).policy, KvPolicy::kFetchHybrid);
  EXPECT_EQ(Choose({either, both}).policy, KvPolicy::kFetchHybrid);
}

TEST_F(FetchChoiceTest, LossyOnesAreNeverTaken) {
  const PolicyChoice choice = Choose({all_.back(), all_[1]});
  EXPECT_TRUE(choice.local());
  EXPECT_THAT(choice.why, HasSubstr("; lossy"));
}

TEST_F(FetchChoiceTest, WhereNothingCanBeHadTheFirstSaysWhy) {
  const PolicyChoice choice = Choose({all_[0], all_.back()});
  EXPECT_EQ(choice.policy, KvPolicy::kAttendRemote);
  EXPECT_EQ(choice.why, "no policy can be had: memory nodes are stores");
}

TEST(PolicyStepMeterTest, AStepIsTheTimeInWhichEachRowGetsAToken) {
  PolicyStepMeter meter;
  meter.Add(0.6, 8, 800, 48);
  EXPECT_FALSE(meter.measured());
  meter.Add(0.6, 8, 800, 48);
  ASSERT_TRUE(meter.measured());
  EXPECT_NEAR(meter.step_seconds(), 0.1, 1e-9);
  EXPECT_NEAR(meter.load().rows, 8, 1e-9);
  EXPECT_NEAR(meter.load().context, 100, 1e-9);
  for (int i = 0; i < 600; ++i) {
    meter.Add(1, 4, 800, 80);
  }
  EXPECT_NEAR(meter.step_seconds(), 0.05, 1e-3) << "it forgets";
  EXPECT_NEAR(meter.load().context, 200, 1);
}

TEST(PolicyLoadMeterTest, IsTheMeanOverTheTimeInWhichRowsRan) {
  PolicyLoadMeter meter;
  meter.Add(1, 4, 400);
  meter.Add(100, 0, 0);
  EXPECT_EQ(meter.seconds(), 1);
  EXPECT_EQ(meter.load().rows, 4);
  EXPECT_EQ(meter.load().context, 100);
  EXPECT_EQ(meter.lanes(), 1);
  meter.Add(1, 8, 1600, /*lanes=*/2);
  EXPECT_EQ(meter.seconds(), 2);
  EXPECT_NEAR(meter.lanes(), 1.5, 1e-9);
  EXPECT_NEAR(meter.load().rows, 6, 1e-9);
  EXPECT_NEAR(meter.load().context, 1000.0 / 6, 1e-9);
}

TEST(PolicyLoadMeterTest, Forgets) {
  PolicyLoadMeter meter;
  for (int i = 0; i < 10000; ++i) {
    meter.Add(0.1, 1, 100);
  }
  for (int i = 0; i < 2000; ++i) {
    meter.Add(0.1, 64, 64 * 512);
  }
  EXPECT_GT(meter.load().rows, 50);
  EXPECT_NEAR(meter.load().context, 512, 20);
}

}  // namespace
}  // namespace lamina::core
