// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/coordinator/policy_auto_inputs.h"

namespace lamina::coordinator {
namespace {

using cost::KvPolicy;
using ::testing::HasSubstr;
using ::testing::Not;

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

// Memory nodes on cores of the compute node attend as it has measured it for them. One row takes 9
// ms with local; on memory nodes 2 ms and attention, of 6,400 bytes.
TEST(PolicyAutoTest, WhereReadsDifferedTheChoiceIsThatWhichLosesLeastAtEitherEnd) {
  EngineOptions options = Options(1);
  options.policy_auto->memory[0].shared = true;
  PolicyAuto policy(options);
  PolicyMeasures measures = Measures();
  measures.compute[0].name = "c0";
  plan::PolicyTimes& times = measures.compute[0].times;
  times.reads_low = 37e9;
  times.reads_high = 63e9;
  EXPECT_FALSE(policy.Choose(std::nullopt, measures).local());
  EXPECT_THAT(policy.choice()->why,
              HasSubstr("; c0 read 37.0 to 63.0 GB/s while it was measured; the load of"));
  plan::PolicyTimes slow = times;
  slow.attention_shared = 6400 / 0.1;  // 11 times local's step; which is 4 times the other's.
  times.ends = {slow, times};
  const core::PolicyChoice& choice = policy.Choose(std::nullopt, measures);
  EXPECT_TRUE(choice.local()) << choice.why;
  EXPECT_THAT(choice.why, HasSubstr("from slow reads to fast ones"));
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

TEST(PolicyAutoTest, PromptsOfTheLoadOfLateAreThoseOfItsGeneratedTokens) {
  EngineOptions options = Options(1);
  options.policy_auto->load.prompts = 2;
  PolicyAuto policy(options);
  EXPECT_THAT(policy.Choose(std::nullopt, Measures()).why,
              HasSubstr("1 row at 100 tokens, 2.0 of a prompt to each: "));
  ServedLoad served = {.rows = 1, .context_tokens = 100, .prompt_tokens = 70};
  for (Nanos now = Seconds(1); now < Seconds(3); now += Millis(100)) {
    served.tokens += 10;
    served.prompt_tokens += 70;
    policy.SawLoad(now, 1, 100);
    policy.SawSteps(now, served);
  }
  EXPECT_THAT(policy.Choose(std::nullopt, Measures()).why,
              HasSubstr("1 row at 100 tokens, 7.3 of a prompt to each: "));
  // An hour in which nothing ran makes the next prompt no load of its own.
  policy.SawNothing(Seconds(3600), Measures());
  served.prompt_tokens += 200;
  policy.SawSteps(Seconds(3600) + Millis(100), served);
  EXPECT_THAT(policy.Choose(std::nullopt, Measures()).why,
              HasSubstr("1 row at 100 tokens, 8.4 of a prompt to each: "));
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
