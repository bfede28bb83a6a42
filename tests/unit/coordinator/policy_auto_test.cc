// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

// Few rows are faster with memory nodes, many with KV on the compute node.
PolicyMeasures Measures() {
  PolicyMeasures measures;
  measures.times = {.attention_local = 1e12, .attention_shared = 1e12, .read_bandwidth = 1e12};
  for (const uint32_t rows : {1u, 64u}) {
    measures.times.local.push_back({rows, 1e-3 * (8 + rows), 1e-3 * (8 + rows)});
    measures.times.pools.push_back({rows, 2e-3 * rows, 2e-3 * rows});
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
    EXPECT_EQ(policy.current(), core::CurrentPolicy::kNone);
    EXPECT_FALSE(policy.choice().has_value());
    const core::PolicyChoice& choice = policy.Choose(policy.current(), Measures());
    EXPECT_EQ(choice.local, rows > 8);
    EXPECT_STREQ(PolicyNameOf(choice), rows > 8 ? "local" : "attend_remote");
    EXPECT_THAT(choice.why, HasSubstr("; the load of the cluster file"));
    EXPECT_EQ(policy.current(),
              rows > 8 ? core::CurrentPolicy::kLocal : core::CurrentPolicy::kPools);
  }
}

TEST(PolicyAutoTest, ChoosesByTheLoadOfLateAfterASecondOfIt) {
  const EngineOptions options = Options(32);
  PolicyAuto policy(options);
  Nanos now = Seconds(100);
  EXPECT_FALSE(policy.SawNothing(now));
  while (now < Seconds(100) + Millis(500)) {
    now += Millis(10);
    policy.SawLoad(now, 1, 100);
  }
  EXPECT_TRUE(policy.Choose(core::CurrentPolicy::kNone, Measures()).local);
  while (now < Seconds(102)) {
    now += Millis(10);
    policy.SawLoad(now, 1, 100);
  }
  const core::PolicyChoice& choice = policy.Choose(core::CurrentPolicy::kNone, Measures());
  EXPECT_FALSE(choice.local);
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
  EXPECT_FALSE(policy.SawNothing(Seconds(10)));
  EXPECT_FALSE(policy.SawNothing(Seconds(11)));
  policy.SawWork(Seconds(11));
  EXPECT_FALSE(policy.SawNothing(Seconds(12))) << "something ran in between";
  EXPECT_FALSE(policy.SawNothing(Seconds(13)));
  EXPECT_TRUE(policy.SawNothing(Seconds(14)));
  EXPECT_FALSE(policy.SawNothing(Seconds(15))) << "anew";
  EXPECT_TRUE(policy.SawNothing(Seconds(16)));
}

// Steps of one layer at one row: 2 ms of slices and the exchange on memory nodes, 9 ms with local.
TEST(PolicyAutoTest, StepsThatTakeLongerThanPredictedAreCounted) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  const double predicted = policy.Choose(core::CurrentPolicy::kNone, Measures()).pools_seconds;
  EXPECT_FALSE(policy.choice()->local);
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
  EXPECT_NEAR(policy.Choose(core::CurrentPolicy::kPools, Measures()).pools_seconds, predicted, 1e-9)
      << "steps with rows of prompts say nothing";
  serve(2000, 0);
  const core::PolicyChoice& choice = policy.Choose(core::CurrentPolicy::kPools, Measures());
  EXPECT_NEAR(choice.pools_seconds, 1.2 * predicted, 0.01 * predicted);
  EXPECT_THAT(choice.why, HasSubstr("steps on memory nodes took 1.20 of what was predicted"));
}

TEST(PolicyAutoTest, WithoutMemoryNodesKvStaysOnTheComputeNode) {
  const EngineOptions options = Options(1);
  PolicyAuto policy(options);
  PolicyMeasures measures = Measures();
  measures.bandwidth.clear();
  const core::PolicyChoice& choice = policy.Choose(core::CurrentPolicy::kNone, measures);
  EXPECT_TRUE(choice.local);
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
  const double one = policy.Choose(core::CurrentPolicy::kNone, measures).pools_seconds;
  measures.bandwidth = {{"m0", 1e10}, {"m1", 1e10}};
  EXPECT_DOUBLE_EQ(policy.Choose(core::CurrentPolicy::kNone, measures).pools_seconds, one);
  options.policy_auto->memory = {{.names = {"m0"}}, {.names = {"m1"}}};
  EXPECT_LT(policy.Choose(core::CurrentPolicy::kNone, measures).pools_seconds, 0.6 * one);
}

// Others are taken to reach as much of their bandwidth as the compute node does of its own.
TEST(PolicyAutoTest, AttentionThatAMemoryNodeHasMeasuredCounts) {
  EngineOptions options = Options(1);
  options.policy_auto->load = {.rows = 8, .context = 1e8};
  PolicyMeasures measures = Measures();
  PolicyAuto policy(options);
  const double by_bandwidth = policy.Choose(core::CurrentPolicy::kNone, measures).pools_seconds;
  measures.attention = {{"m0", 0.25e10}, {"gone", 1e12}};
  const double measured = policy.Choose(core::CurrentPolicy::kNone, measures).pools_seconds;
  EXPECT_NEAR(measured, 4 * by_bandwidth, 0.01 * measured);
}

TEST(PolicyAutoTest, ReplicasShareTheRowsOfALocalStep) {
  EngineOptions options = Options(16);
  PolicyMeasures measures = Measures();
  PolicyAuto policy(options);
  const double one = policy.Choose(core::CurrentPolicy::kNone, measures).local_seconds;
  measures.replicas = 2;
  const double two = policy.Choose(core::CurrentPolicy::kNone, measures).local_seconds;
  EXPECT_LT(two, one);
  EXPECT_GT(two, 0.5 * one) << "each reads the weights";
}

}  // namespace
}  // namespace lamina::coordinator
