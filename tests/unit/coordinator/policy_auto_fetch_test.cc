// SPDX-License-Identifier: Apache-2.0
//
// PolicyAuto where memory nodes send K and V: policies that fetch, and what their links take.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/hybrid_share.h"
#include "coordinator/policy_auto.h"
#include "cost/layer_windows.h"
#include "plan/slot_kinds.h"
#include "tests/unit/coordinator/policy_auto_inputs.h"

namespace lamina::coordinator {
namespace {

using cost::KvPolicy;
using ::testing::HasSubstr;
using ::testing::Not;

// A model of multi-head attention: 16 elements in an activation, 32 in K and V.
EngineOptions OptionsThatFetch() {
  EngineOptions options = Options(8);
  const FetchOptions heads = {.bytes = 1 << 20};
  const FetchOptions recompute = {.bytes = 1 << 20, .activation_width = 16};
  FetchOptions hybrid = recompute;
  hybrid.hybrid = HybridOptions{.automatic = true};
  options.policy_auto->policies = {
      {.policy = KvPolicy::kAttendRemote, .why_not = "memory nodes are stores"},
      {.policy = KvPolicy::kLocal, .why_not = "no capacity"},
      {.policy = KvPolicy::kFetchHeads, .fetch = heads},
      {.policy = KvPolicy::kFetchRecompute, .fetch = recompute},
      {.policy = KvPolicy::kFetchHybrid, .fetch = hybrid}};
  options.scheduler.sequence_tokens_max = 100;
  return options;
}

// Links are what takes time.
PolicyMeasures FetchingMeasures() {
  PolicyMeasures measures = Measures();
  for (plan::SliceTimes& size : measures.compute[0].times.pools) {
    size = {size.rows, 1e-9, 1e-9};
  }
  measures.compute[0].times.attention_pools = 1e12;
  measures.compute[0].times.make_seconds = 1e-9;
  measures.memory = 1 << 20;
  measures.largest_memory = measures.memory;
  measures.link = 1e6;
  return measures;
}

TEST(PolicyAutoFetchTest, AnEpochHasWhatItsPolicyAsksFor) {
  EngineOptions options = OptionsThatFetch();
  options.policy_auto->policies[3].why_not = "as fast as the one behind it";
  PolicyAuto policy(options);
  policy.Choose(std::nullopt, FetchingMeasures());
  EXPECT_EQ(policy.current(), KvPolicy::kFetchHybrid) << policy.choice()->why;
  const EpochPolicy epoch = policy.Epoch();
  EXPECT_EQ(epoch.fetch.activation_width, 16u);
  EXPECT_EQ(epoch.activation_share, plan::SlotKinds::kUnit) << "links are all that counts";
  EXPECT_THAT(epoch.words, HasSubstr("100% of tokens held as activations"));

  PolicyMeasures slow = FetchingMeasures();
  slow.compute[0].times.make_seconds = 1;
  policy.Choose(std::nullopt, slow);
  EXPECT_EQ(policy.current(), KvPolicy::kFetchHeads) << policy.choice()->why;
  EXPECT_EQ(policy.Epoch().fetch.activation_width, 0u);
  EXPECT_EQ(policy.Epoch().activation_share, std::nullopt);

  options.policy_auto->policies[3].why_not.clear();
  policy.Choose(std::nullopt, FetchingMeasures());
  EXPECT_EQ(policy.current(), KvPolicy::kFetchRecompute) << policy.choice()->why;
  EXPECT_EQ(policy.Epoch().fetch.activation_width, 16u);
  EXPECT_EQ(policy.Epoch().activation_share, std::nullopt);
}

// K and V of a token take 64 us on the link.
TEST(PolicyAutoFetchTest, TokensAreMadeFromTheirNumbersWhereThatPays) {
  EngineOptions options = OptionsThatFetch();
  options.policy_auto->policies = {
      {.policy = KvPolicy::kFetchHeads, .fetch = {.bytes = 1 << 20}},
      {.policy = KvPolicy::kFetchTokens, .fetch = {.bytes = 1 << 20, .made_tokens_max = 4096}}};
  PolicyAuto policy(options);
  policy.Choose(std::nullopt, FetchingMeasures());
  EXPECT_EQ(policy.current(), KvPolicy::kFetchTokens) << policy.choice()->why;
  EXPECT_EQ(policy.Epoch().fetch.made_tokens_max, 4096u);
  EXPECT_EQ(PathOnMemoryNodes(policy.Epoch().fetch), plan::AttentionPath::kRecompute);

  PolicyMeasures slow = FetchingMeasures();
  for (plan::SliceTimes& size : slow.compute[0].times.pools) {
    size = {size.rows, 1e-3 * size.rows, 1e-9};
  }
  slow.compute[0].times.make_seconds = 2e-4;
  policy.Choose(std::nullopt, slow);
  EXPECT_EQ(policy.current(), KvPolicy::kFetchHeads) << policy.choice()->why;
  const core::PolicyFigure& tokens = policy.choice()->figures.back();
  EXPECT_EQ(tokens.seconds, 0);
  EXPECT_THAT(tokens.candidate.why_not,
              HasSubstr("K and V of a token take 1e+03 us in a layer to make from its number, 5.0 "
                        "times as long as from its activation, and 64 us to come; with 16 tokens "
                        "of each row a step would take"));
  // It takes as long as fetch_heads then, for which no epoch ends.
  policy.Choose(KvPolicy::kFetchTokens, slow);
  EXPECT_FALSE(policy.WorthAnEpoch(KvPolicy::kFetchTokens, 0)) << policy.choice()->why;
}

// K and V of 8 rows of 100 tokens have 51,200 bytes in the one layer, and half of each of two
// windows is a quarter of all.
TEST(PolicyAutoFetchTest, WindowsOfOneLaneHaveRoomForTheNextLayerOrNot) {
  PolicyMeasures measures = FetchingMeasures();
  measures.compute[0].times.make_seconds = 64 / 1e6 / 4;
  const auto seconds = [&](uint64_t window) {
    EngineOptions options = OptionsThatFetch();
    options.policy_auto->policies[3].fetch.bytes = window;
    PolicyAuto policy(options);
    return policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kFetchRecompute);
  };
  EXPECT_NEAR(seconds(4 * 51'200), 0.5 * 51'200 / 1e6 + 40e-6, 1e-5);
  EXPECT_NEAR(seconds(4 * 51'200 - 4), 0.6 * 51'200 / 1e6 + 40e-6, 1e-5);
}

// Making K and V takes as long as a link of 1 MB/s for them.
PolicyMeasures MeasuresOfHybrid(double link) {
  PolicyMeasures measures = FetchingMeasures();
  measures.compute[0].times.make_seconds = 64 / 1e6;
  measures.link = link;
  return measures;
}

TEST(PolicyAutoFetchTest, AnotherShareIsWorthAnEpoch) {
  EngineOptions options = OptionsThatFetch();
  options.policy_auto->policies[3].why_not = "as fast as the one behind it";
  PolicyAuto policy(options);
  policy.Choose(std::nullopt, MeasuresOfHybrid(1e7));
  ASSERT_EQ(policy.current(), KvPolicy::kFetchHybrid) << policy.choice()->why;
  EXPECT_EQ(policy.Epoch().activation_share, 2 * 64u);  // 1 / (10 + 1 / 2)
  EXPECT_FALSE(policy.WorthAnEpoch(KvPolicy::kFetchHybrid, 2 * 64));
  EXPECT_TRUE(policy.WorthAnEpoch(KvPolicy::kFetchHeads, 0)) << "another policy";
  policy.Choose(KvPolicy::kFetchHybrid, MeasuresOfHybrid(1e6));
  ASSERT_EQ(policy.current(), KvPolicy::kFetchHybrid) << policy.choice()->why;
  EXPECT_TRUE(policy.WorthAnEpoch(KvPolicy::kFetchHybrid, 2 * 64));
  EXPECT_EQ(policy.Epoch().activation_share, 11 * 64u);  // 1 / (1 + 1 / 2)
  policy.Choose(KvPolicy::kFetchHybrid, MeasuresOfHybrid(0.8e6));
  EXPECT_FALSE(policy.WorthAnEpoch(KvPolicy::kFetchHybrid, 11 * 64)) << "one sixteenth";
  EXPECT_EQ(policy.Epoch().activation_share, 11 * 64u);
}

TEST(PolicyAutoFetchTest, StepsOfAnotherShareSayNothing) {
  EngineOptions options = OptionsThatFetch();
  options.policy_auto->policies[3].why_not = "as fast as the one behind it";
  PolicyAuto policy(options);
  const double predicted =
      policy.Choose(std::nullopt, MeasuresOfHybrid(1e7)).SecondsOf(KvPolicy::kFetchHybrid);
  Nanos now = Seconds(100);
  for (uint64_t tokens = 8; tokens < 8 * 1000; tokens += 8) {
    now += static_cast<Nanos>(1.2e9 * predicted);
    policy.SawSteps(now, {.policy = KvPolicy::kFetchHybrid,
                          .activation_share = 2 * 64,
                          .rows = 8,
                          .context_tokens = 800,
                          .tokens = tokens});
  }
  EXPECT_THAT(policy.Choose(KvPolicy::kFetchHybrid, MeasuresOfHybrid(1e7)).why,
              HasSubstr("steps with fetch_hybrid took 1.20 of what was predicted"));
  EXPECT_THAT(policy.Choose(KvPolicy::kFetchHybrid, MeasuresOfHybrid(1e6)).why,
              Not(HasSubstr("was predicted")));
}

// K and V of a token take 64 bytes, its activation half of them.
TEST(PolicyAutoFetchTest, RoomIsThatOfTheShare) {
  const EngineOptions options = OptionsThatFetch();
  PolicyAuto policy(options);
  for (const double link : {1e7, 1e6}) {
    policy.Choose(std::nullopt, MeasuresOfHybrid(link));
    const uint32_t share = link > 1e6 ? 2 * 64 : 11 * 64;
    for (const core::PolicyFigure& figure : policy.choice()->figures) {
      if (figure.candidate.policy == KvPolicy::kFetchHeads) {
        EXPECT_EQ(figure.candidate.tokens_max, 16384);
      } else if (figure.candidate.policy == KvPolicy::kFetchHybrid) {
        EXPECT_EQ(figure.candidate.tokens_max,
                  SlotsOfKinds({.kv = 64, .activation = 32}, plan::SlotKinds(share), 1 << 20));
        EXPECT_GT(figure.candidate.tokens_max, share == 11 * 64 ? 24000 : 17000);
      }
    }
  }
}

// A memory node with room for K and V of 850 tokens. With an activation in addition a token takes
// half as much again, and at a share of 11 sixteenths in place of K and V two thirds.
TEST(PolicyAutoFetchTest, RowsAtATimeFollowFromWhatEachPolicyKeeps) {
  EngineOptions options = OptionsThatFetch();
  options.policy_auto->policies[0].why_not.clear();
  options.policy_auto->load = {.rows = 12, .context = 100};
  PolicyMeasures measures = MeasuresOfHybrid(1e6);
  measures.memory = 850 * 64;
  measures.largest_memory = measures.memory;
  PolicyAuto policy(options);
  const core::PolicyChoice& choice = policy.Choose(KvPolicy::kFetchHeads, measures);
  const std::map<KvPolicy, double> rows = {{KvPolicy::kAttendRemote, 8},
                                           {KvPolicy::kFetchHeads, 8},
                                           {KvPolicy::kFetchRecompute, 5},
                                           {KvPolicy::kFetchHybrid, 12}};
  for (const core::PolicyFigure& figure : choice.figures) {
    if (const auto expected = rows.find(figure.candidate.policy); expected != rows.end()) {
      EXPECT_EQ(figure.candidate.why_not, "");
      EXPECT_EQ(figure.rows, expected->second) << cost::KvPolicyName(expected->first);
      EXPECT_EQ(figure.waiting, 12 - expected->second);
    }
  }
  // Where links are the longer side, rows in turns take as long as all at once would.
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kFetchHeads), 12 * 100 * 64 / 1e6, 1e-4);
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kFetchRecompute), choice.SecondsOf(KvPolicy::kFetchHybrid),
              1e-3);
}

TEST(PolicyAutoFetchTest, WhatNodesCannotDoIsNotTaken) {
  const EngineOptions options = OptionsThatFetch();
  PolicyAuto policy(options);
  const auto why_not = [&](const PolicyMeasures& measures, KvPolicy wanted) {
    for (const core::PolicyFigure& figure : policy.Choose(std::nullopt, measures).figures) {
      if (figure.candidate.policy == wanted) {
        return figure.candidate.why_not;
      }
    }
    return std::string("not weighed");
  };
  PolicyMeasures measures = FetchingMeasures();
  EXPECT_EQ(why_not(measures, KvPolicy::kFetchRecompute), "");
  measures.compute[0].times.make_seconds = 0;
  EXPECT_THAT(why_not(measures, KvPolicy::kFetchRecompute), HasSubstr("cannot make K and V"));
  EXPECT_EQ(why_not(measures, KvPolicy::kFetchHeads), "");
  measures = FetchingMeasures();
  measures.largest_memory = 100 * 80;  // K and V take 64 bytes, with an activation 96.
  measures.memory = 2 * measures.largest_memory;
  EXPECT_THAT(why_not(measures, KvPolicy::kFetchRecompute),
              HasSubstr("no memory node has room for one request of 100 tokens with activations"))
      << "two that have it together do not count";
  measures.largest_memory = 100 * 96;
  EXPECT_EQ(why_not(measures, KvPolicy::kFetchRecompute), "");
  measures.compute[0].times.attention_pools = 0;
  EXPECT_THAT(why_not(measures, KvPolicy::kFetchHeads), HasSubstr("has not measured"));
  measures.bandwidth.clear();
  EXPECT_EQ(why_not(measures, KvPolicy::kFetchHeads), "no memory node is there");
  EXPECT_EQ(why_not(measures, KvPolicy::kLocal), "no capacity");
}

// One layer sees all of 400 tokens and the other the last 100.
TEST(PolicyAutoFetchTest, TokensThatAWindowHidesAreHeldAndSentAndNotRead) {
  EngineOptions options = OptionsThatFetch();
  options.layers.push_back(options.layers[0]);
  options.layers[1].window = 100;
  options.scheduler.windows = cost::LayerWindows(options.layers);
  options.policy_auto->load = {.rows = 8, .context = 400};
  PolicyMeasures measures = FetchingMeasures();
  measures.compute[0].stage.layers = 2;
  measures.memory = 4 * 400 * 128;
  PolicyAuto policy(options);
  const cost::PolicyStep step = policy.Choose(std::nullopt, measures).figures[2].step;
  EXPECT_DOUBLE_EQ(step.transfer, 4 * 400 * 128 / 1e6) << "four rows at a time";
  EXPECT_DOUBLE_EQ(step.attention, 4 * (400 + 100) * 64 / 1e12);
}

TEST(PolicyAutoFetchTest, TokensThatAllWindowsHideCountNowhere) {
  EngineOptions options = OptionsThatFetch();
  options.layers[0].window = 100;
  options.scheduler.windows = cost::LayerWindows(options.layers);
  options.scheduler.release_tokens = 50;
  options.policy_auto->load = {.rows = 8, .context = 10'000};
  PolicyAuto policy(options);
  const cost::PolicyStep step = policy.Choose(std::nullopt, FetchingMeasures()).figures[2].step;
  EXPECT_DOUBLE_EQ(step.transfer, 8 * 150 * 64 / 1e6);
  EXPECT_DOUBLE_EQ(step.attention, 8 * 100 * 64 / 1e12);
}

TEST(PolicyAutoFetchTest, LinksThatWereAssumedAreChosenByAgainOnceMeasured) {
  EngineOptions options = OptionsThatFetch();
  PolicyAuto policy(options);
  PolicyMeasures measures = FetchingMeasures();
  measures.link = 0;
  policy.Choose(std::nullopt, measures);
  EXPECT_FALSE(policy.SawNothing(Seconds(1), measures)) << "no epoch has measured any";
  measures.link = 1e6;
  EXPECT_TRUE(policy.SawNothing(Seconds(1), measures)) << "without waiting";
  policy.Choose(policy.current(), measures);
  EXPECT_FALSE(policy.SawNothing(Seconds(1), measures));
  PolicyMeasures fast = measures;
  fast.link = 1e15;
  EXPECT_GT(policy.Choose(policy.current(), fast).SecondsOf(KvPolicy::kFetchHeads),
            8 * 100 * 64 / 5e9)
      << "a memory node that reads 10 GB/s copies 5";
  policy.Choose(policy.current(), measures);
  const double alone = policy.choice()->SecondsOf(KvPolicy::kFetchHeads);
  measures.link = 0;  // An epoch without memory nodes measures none.
  EXPECT_EQ(policy.Choose(policy.current(), measures).SecondsOf(KvPolicy::kFetchHeads), alone);
  options.bus_bytes_per_second = 5e5;
  PolicyAuto over_bus(options);
  measures.link = 1e6;
  EXPECT_NEAR(over_bus.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kFetchHeads), 2 * alone,
              1e-3 * alone);
}

// As the cluster file says, however busy the host was when the link was measured; but memory nodes
// copy no faster for it.
TEST(PolicyAutoFetchTest, ABusHasWhatTheClusterFileSays) {
  EngineOptions options = OptionsThatFetch();
  PolicyMeasures measures = FetchingMeasures();
  const auto seconds = [&](double bus, double link) {
    options.bus_bytes_per_second = bus;
    measures.link = link;
    PolicyAuto policy(options);
    return policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kFetchHeads);
  };
  const double as_measured = seconds(/*bus=*/0, /*link=*/1e6);
  for (const double link : {0.0, 1e4, 1e6, 1e9}) {
    EXPECT_DOUBLE_EQ(seconds(/*bus=*/1e6, link), as_measured) << link;
  }
  EXPECT_GT(seconds(/*bus=*/1e15, /*link=*/1e4), 8 * 100 * 64 / 5e9);
}

}  // namespace
}  // namespace lamina::coordinator
