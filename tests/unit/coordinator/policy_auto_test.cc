// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "coordinator/hybrid_share.h"
#include "cost/layer_windows.h"
#include "plan/slot_kinds.h"

namespace lamina::coordinator {
namespace {

using cost::KvPolicy;
using ::testing::HasSubstr;
using ::testing::Not;

// Few rows are faster with memory nodes, many with KV on the compute node.
PolicyMeasures Measures() {
  PolicyMeasures measures;
  measures.compute = {
      {.name = "c0",
       .stage = {.layers = 1},
       .times = {.attention_local = 1e12, .attention_shared = 1e12, .read_bandwidth = 1e12}}};
  plan::PolicyTimes& times = measures.compute[0].times;
  for (const uint32_t rows : {1u, 64u}) {
    times.local.push_back({rows, 1e-3 * (8 + rows), 1e-3 * (8 + rows)});
    times.pools.push_back({rows, 2e-3 * rows, 2e-3 * rows});
  }
  measures.bandwidth = {{"m0", 1e10}};
  return measures;
}

EngineOptions Options(double rows) {
  EngineOptions options;
  options.layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}};
  options.policy_auto = PolicyAutoOptions{
      .load = {.rows = rows, .context = 100}, .memory = {{.names = {"m0"}}}, .idle = Seconds(2)};
  return options;
}

TEST(PolicyAutoTest, ChoosesByTheClusterFileAtFirst) {
  for (const double rows : {1.0, 32.0}) {
    const EngineOptions options = Options(rows);
    PolicyAuto policy(options);
    EXPECT_EQ(policy.current(), std::nullopt);
    EXPECT_FALSE(policy.choice().has_value());
    const core::PolicyChoice& choice = policy.Choose(policy.current(), Measures());
    EXPECT_EQ(choice.local(), rows > 8);
    EXPECT_THAT(choice.why, HasSubstr("; the load of the cluster file"));
    EXPECT_EQ(policy.current(), rows > 8 ? KvPolicy::kLocal : KvPolicy::kAttendRemote);
  }
}

TEST(PolicyAutoTest, ChoosesByTheLoadOfLateAfterASecondOfIt) {
  const EngineOptions options = Options(32);
  PolicyAuto policy(options);
  Nanos now = Seconds(100);
  EXPECT_FALSE(policy.SawNothing(now, {}));
  while (now < Seconds(100) + Millis(500)) {
    now += Millis(10);
    policy.SawLoad(now, 1, 100);
  }
  EXPECT_TRUE(policy.Choose(std::nullopt, Measures()).local());
  while (now < Seconds(102)) {
    now += Millis(10);
    policy.SawLoad(now, 1, 100);
  }
  const core::PolicyChoice& choice = policy.Choose(std::nullopt, Measures());
  EXPECT_FALSE(choice.local());
  EXPECT_THAT(choice.why, HasSubstr("; the load of late"));
}

TEST(PolicyAutoTest, WantsTheLoadOnlyNowAndThen) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  EXPECT_TRUE(policy.SawWork(Seconds(1)));
  policy.SawLoad(Seconds(1), 1, 10);
  EXPECT_FALSE(policy.SawWork(Seconds(1) + Millis(1)));
  EXPECT_TRUE(policy.SawWork(Seconds(1) + Millis(5)));
}

TEST(PolicyAutoTest, AnotherEpochIsWorthATryWhenNothingHasRunForLong) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  EXPECT_FALSE(policy.SawNothing(Seconds(10), {}));
  EXPECT_FALSE(policy.SawNothing(Seconds(11), {}));
  policy.SawWork(Seconds(11));
  EXPECT_FALSE(policy.SawNothing(Seconds(12), {})) << "something ran in between";
  EXPECT_FALSE(policy.SawNothing(Seconds(13), {}));
  EXPECT_TRUE(policy.SawNothing(Seconds(14), {}));
  EXPECT_FALSE(policy.SawNothing(Seconds(15), {})) << "anew";
  EXPECT_TRUE(policy.SawNothing(Seconds(16), {}));
}

// Steps of one layer at one row: 2 ms of slices and the exchange on memory nodes, 9 ms with local.
TEST(PolicyAutoTest, StepsThatTakeLongerThanPredictedAreCounted) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  const double predicted =
      policy.Choose(std::nullopt, Measures()).SecondsOf(KvPolicy::kAttendRemote);
  EXPECT_FALSE(policy.choice()->local());
  Nanos now = Seconds(100);
  uint64_t tokens = 0;
  // A token each 1.2 of what is predicted.
  const auto step = static_cast<Nanos>(1.2e9 * predicted);
  const auto serve = [&](int steps, uint64_t prompts_each) {
    for (int i = 0; i < steps; ++i) {
      now += step;
      policy.SawSteps(now, {.rows = 1,
                            .context_tokens = 100,
                            .tokens = ++tokens,
                            .prompts = prompts_each * static_cast<uint64_t>(i)});
    }
  };
  serve(2000, 1);
  EXPECT_NEAR(policy.Choose(KvPolicy::kAttendRemote, Measures()).SecondsOf(KvPolicy::kAttendRemote),
              predicted, 1e-9)
      << "steps with rows of prompts say nothing";
  serve(2000, 0);
  const core::PolicyChoice& choice = policy.Choose(KvPolicy::kAttendRemote, Measures());
  EXPECT_NEAR(choice.SecondsOf(KvPolicy::kAttendRemote), 1.2 * predicted, 0.01 * predicted);
  EXPECT_THAT(choice.why, HasSubstr("steps on memory nodes took 1.20 of what was predicted"));
}

// From `now` on one row of 100 tokens gets 2,000 with attend_remote, one each so many seconds.
void ServeOneRow(PolicyAuto& policy, double step_seconds, Nanos& now, uint64_t& tokens) {
  for (int i = 0; i < 2000; ++i) {
    now += static_cast<Nanos>(1e9 * step_seconds);
    policy.SawSteps(now, {.rows = 1, .context_tokens = 100, .tokens = ++tokens});
  }
}

TEST(PolicyAutoTest, StepsWithOtherMembersSayNothing) {
  EngineOptions options = Options(1);
  options.policy_auto->memory = {{.names = {"m0"}}, {.names = {"m1"}}};
  PolicyMeasures two = Measures();
  two.bandwidth["m1"] = 1e10;
  PolicyAuto policy(options);
  const double predicted = policy.Choose(std::nullopt, two).SecondsOf(KvPolicy::kAttendRemote);
  Nanos now = Seconds(100);
  uint64_t tokens = 0;
  ServeOneRow(policy, 1.2 * predicted, now, tokens);
  EXPECT_THAT(policy.Choose(KvPolicy::kAttendRemote, two).why,
              HasSubstr("steps on memory nodes took 1.20 of what was predicted"));
  EXPECT_THAT(policy.Choose(KvPolicy::kAttendRemote, Measures()).why,
              Not(HasSubstr("was predicted")));
  EXPECT_THAT(policy.Choose(KvPolicy::kAttendRemote, two).why, Not(HasSubstr("was predicted")))
      << "the node is back, and all begins anew";
}

TEST(PolicyAutoTest, TimeInWhichSomethingStoodStillIsNoStep) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  const double predicted =
      policy.Choose(std::nullopt, Measures()).SecondsOf(KvPolicy::kAttendRemote);
  Nanos now = Seconds(100);
  uint64_t tokens = 0;
  const auto seconds = [&] {
    return policy.Choose(KvPolicy::kAttendRemote, Measures()).SecondsOf(KvPolicy::kAttendRemote);
  };
  ServeOneRow(policy, predicted, now, tokens);
  now += Seconds(30);  // The coordinator, or all of its host.
  ServeOneRow(policy, predicted, now, tokens);
  EXPECT_NEAR(seconds(), predicted, 0.01 * predicted);

  ServeOneRow(policy, predicted, now, tokens);
  for (const Nanos end = now + Seconds(10); now < end; now += Millis(5)) {  // A memory node.
    policy.SawSteps(now, {.rows = 1, .context_tokens = 100, .tokens = tokens});
  }
  ServeOneRow(policy, predicted, now, tokens);
  EXPECT_NEAR(seconds(), predicted, 0.01 * predicted);
}

TEST(PolicyAutoTest, StepsOfManyLooksCountAsAWhole) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  const double predicted =
      policy.Choose(std::nullopt, Measures()).SecondsOf(KvPolicy::kAttendRemote);
  Nanos now = Seconds(100);
  uint64_t tokens = 0;
  for (int look = 0; look < 12'000; ++look) {
    now += static_cast<Nanos>(0.2e9 * predicted);
    tokens += look % 6 == 0 ? 1 : 0;
    policy.SawSteps(now, {.rows = 1, .context_tokens = 100, .tokens = tokens});
  }
  EXPECT_THAT(policy.Choose(KvPolicy::kAttendRemote, Measures()).why,
              HasSubstr("steps on memory nodes took 1.20 of what was predicted"));
}

TEST(PolicyAutoTest, WithoutMemoryNodesKvStaysOnTheComputeNode) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  PolicyMeasures measures = Measures();
  measures.bandwidth.clear();
  const core::PolicyChoice& choice = policy.Choose(std::nullopt, measures);
  EXPECT_TRUE(choice.local());
  EXPECT_THAT(choice.why, HasSubstr("no memory node is there"));
}

// Among those that share cores only the fastest counts, and what the compute node measured next to
// it.
TEST(PolicyAutoTest, MemoryNodesOnTheSameCoresCountOnce) {
  EngineOptions options = Options(1);
  options.policy_auto->memory = {{.names = {"m0", "m1"}}};
  PolicyMeasures measures = Measures();
  // A load of long contexts, whose time is attention's.
  options.policy_auto->load = {.rows = 8, .context = 1e8};
  measures.bandwidth = {{"m0", 1e10}};
  PolicyAuto policy(options);
  const double one = policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kAttendRemote);
  measures.bandwidth = {{"m0", 1e10}, {"m1", 1e10}};
  EXPECT_DOUBLE_EQ(policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kAttendRemote), one);
  options.policy_auto->memory = {{.names = {"m0"}}, {.names = {"m1"}}};
  EXPECT_LT(policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kAttendRemote), 0.6 * one);
}

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

TEST(PolicyAutoTest, AnEpochHasWhatItsPolicyAsksFor) {
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
TEST(PolicyAutoTest, TokensAreMadeFromTheirNumbersWhereThatPays) {
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
TEST(PolicyAutoTest, WindowsOfOneLaneHaveRoomForTheNextLayerOrNot) {
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

TEST(PolicyAutoTest, AnotherShareIsWorthAnEpoch) {
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

TEST(PolicyAutoTest, StepsOfAnotherShareSayNothing) {
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
TEST(PolicyAutoTest, RoomIsThatOfTheShare) {
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

TEST(PolicyAutoTest, WhatNodesCannotDoIsNotTaken) {
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
TEST(PolicyAutoTest, TokensThatAWindowHidesAreHeldAndSentAndNotRead) {
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

TEST(PolicyAutoTest, TokensThatAllWindowsHideCountNowhere) {
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

TEST(PolicyAutoTest, LinksThatWereAssumedAreChosenByAgainOnceMeasured) {
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

// Others are taken to reach as much of their bandwidth as the compute node does of its own.
TEST(PolicyAutoTest, AttentionThatAMemoryNodeHasMeasuredCounts) {
  EngineOptions options = Options(1);
  options.policy_auto->load = {.rows = 8, .context = 1e8};
  PolicyMeasures measures = Measures();
  PolicyAuto policy(options);
  const double by_bandwidth =
      policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kAttendRemote);
  measures.attention = {{"m0", 0.25e10}, {"gone", 1e12}};
  const double measured = policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kAttendRemote);
  EXPECT_NEAR(measured, 4 * by_bandwidth, 0.01 * measured);
}

// Two nodes that share the heads of one layer, each with half of what Measures() has.
EngineOptions OptionsOfShards(double rows) {
  EngineOptions options = Options(rows);
  options.layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 16}};
  options.part_row_bytes = 1e6;
  return options;
}

PolicyMeasures MeasuresOfShards() {
  PolicyMeasures measures = Measures();
  measures.compute.push_back(measures.compute[0]);
  for (uint32_t shard : {0u, 1u}) {
    MeasuredNode& node = measures.compute[shard];
    node.name = shard == 0 ? "c0" : "c1";
    node.stage.shard = {.index = shard, .count = 2, .first_head = shard, .heads = 1};
    for (const auto sizes : {&plan::PolicyTimes::local, &plan::PolicyTimes::pools}) {
      for (plan::SliceTimes& size : node.times.*sizes) {
        size.tail_seconds /= 2;
      }
    }
  }
  return measures;
}

// The tail alone counts of one layer, with two sums: 0.5 ms of rows each at 2 GB/s, which is what
// copies are where nodes read twice that.
TEST(PolicyAutoTest, ShardsExchangeTheirPartsOverLinksThatAreAssumedUntilMeasured) {
  const EngineOptions options = OptionsOfShards(1);
  PolicyAuto policy(options);
  PolicyMeasures measures = MeasuresOfShards();
  for (MeasuredNode& node : measures.compute) {
    node.times.read_bandwidth = 4e9;
  }
  const double kv = 100 * 64 / 1e12;
  EXPECT_NEAR(policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kLocal),
              4.5e-3 + 2 * (20e-6 + 0.5e-3) + kv, 1e-12);
  EXPECT_FALSE(policy.SawNothing(Seconds(1), measures)) << "no epoch has measured any";
  measures.parts = {.latency_seconds = 1e-3, .bytes_per_second = 1e8};
  EXPECT_TRUE(policy.SawNothing(Seconds(1), measures)) << "without waiting";
  const double slow = policy.Choose(policy.current(), measures).SecondsOf(KvPolicy::kLocal);
  EXPECT_NEAR(slow, 4.5e-3 + 2 * (1e-3 + 10e-3) + kv, 1e-12);
  EXPECT_FALSE(policy.SawNothing(Seconds(1), measures));
  measures.parts = {};  // A node was lost, and the next epoch has yet to measure.
  EXPECT_EQ(policy.Choose(policy.current(), measures).SecondsOf(KvPolicy::kLocal), slow);
  for (MeasuredNode& node : measures.compute) {
    node.times.read_bandwidth = 0;
  }
  PolicyAuto other(options);
  EXPECT_NEAR(other.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kLocal),
              4.5e-3 + 2 * (20e-6 + 1e-3) + kv, 1e-12)
      << "nothing is known of what nodes read";
}

TEST(PolicyAutoTest, APartWithoutRoomForOneRequestRulesLocalOut) {
  EngineOptions options = OptionsOfShards(64);
  options.scheduler.sequence_tokens_max = 100;
  PolicyAuto policy(options);
  PolicyMeasures measures = MeasuresOfShards();
  measures.compute[0].capacity = 64 * 1000;
  measures.compute[1].capacity = 64 * 150;
  EXPECT_EQ(policy.Choose(std::nullopt, measures).figures[1].candidate.why_not, "");
  EXPECT_EQ(policy.choice()->figures[1].candidate.tokens_max, 150);
  measures.compute[1].capacity = 64 * 99;
  EXPECT_EQ(policy.Choose(std::nullopt, measures).figures[1].candidate.why_not,
            "compute node c1 has room for 99 tokens of its layers, and one request may have 100 "
            "(limits.sequence_tokens_max)");
  EXPECT_EQ(policy.current(), KvPolicy::kAttendRemote);
}

TEST(PolicyAutoTest, ANodeWithoutRoomForOneRequestRulesLocalOut) {
  EngineOptions options = Options(32);
  options.policy_auto->policies = {{.policy = KvPolicy::kAttendRemote},
                                   {.policy = KvPolicy::kLocal}};
  options.scheduler.sequence_tokens_max = 100;
  PolicyAuto policy(options);
  PolicyMeasures measures = Measures();
  measures.compute[0].capacity = 64 * 3200;
  EXPECT_TRUE(policy.Choose(std::nullopt, measures).local());
  measures.compute[0].capacity = 64 * 100;
  EXPECT_EQ(policy.Choose(std::nullopt, measures).figures[1].candidate.why_not, "");
  measures.compute[0].capacity = 64 * 99;
  const core::PolicyChoice& choice = policy.Choose(std::nullopt, measures);
  EXPECT_EQ(choice.policy, KvPolicy::kAttendRemote);
  EXPECT_EQ(choice.figures[1].candidate.why_not,
            "compute node c0 has room for 99 tokens of its layers, and one request may have 100 "
            "(limits.sequence_tokens_max)");
}

TEST(PolicyAutoTest, ReplicasShareTheRowsOfALocalStep) {
  EngineOptions options = Options(16);
  PolicyMeasures measures = Measures();
  PolicyAuto policy(options);
  const double one = policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kLocal);
  measures.compute.push_back(measures.compute[0]);
  measures.compute[1].stage.replica = 1;
  const double two = policy.Choose(std::nullopt, measures).SecondsOf(KvPolicy::kLocal);
  EXPECT_LT(two, one);
  EXPECT_GT(two, 0.5 * one) << "each reads the weights";
}

}  // namespace
}  // namespace lamina::coordinator
