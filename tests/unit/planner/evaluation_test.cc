// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluation.h"

#include "gtest/gtest.h"
#include "planner/cluster_file.h"
#include "planner/scheduler_options.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

Problem SmallProblem() {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "fast", 80, 2000, 300, 1, 2);
  AddKind(problem.catalogue, "wide", 500, 400, 10, 1, 0.5);
  problem.model = SmallModel();
  problem.load = {.rate = 0, .input = 1000, .output = 200};
  return problem;
}

Configuration TwoPools(const Problem& problem) {
  return {.hardware = {.compute = &problem.catalogue.machines[0],
                       .memory = &problem.catalogue.machines[1],
                       .compute_machines = 1,
                       .memory_machines = 2},
          .lanes = 2,
          .policy = cost::KvPolicy::kAttendRemote};
}

TEST(EvaluationTest, RowsFillTheMemoryOrTheLatency) {
  Problem problem = SmallProblem();
  problem.load = {.rate = 0, .input = 100, .output = 1000};
  const Rates rates(problem);
  const Configuration configuration = TwoPools(problem);
  const Evaluation free = Evaluate(problem, rates, configuration);
  ASSERT_TRUE(free.feasible);
  EXPECT_EQ(free.limit, Limit::kRunningMax);
  EXPECT_EQ(free.rows, 4096);
  problem.slo.tpot_seconds = free.times.step.value / 4;
  const Evaluation quick = Evaluate(problem, rates, configuration);
  ASSERT_TRUE(quick.feasible);
  EXPECT_EQ(quick.limit, Limit::kTpot);
  EXPECT_LT(quick.rows, free.rows);
  EXPECT_LE(quick.times.step.value, problem.slo.tpot_seconds);
  problem.slo = {};
  problem.load.output = 20000;
  const Evaluation full = Evaluate(problem, rates, configuration);
  EXPECT_EQ(full.limit, Limit::kKvCapacity);
  EXPECT_EQ(full.rows, std::floor(2 * 450e9 / problem.model.KvBytesPerToken() / 10100));
  problem.model.window = 4096;
  problem.model.window_layers = problem.model.layers;
  const Evaluation windowed = Evaluate(problem, Rates(problem), configuration);
  EXPECT_EQ(windowed.rows, std::floor(2 * 450e9 / problem.model.KvBytesPerToken() / (4096 + 256)));
}

TEST(EvaluationTest, PricesOfInputAndOutputAddUpToTheBill) {
  Problem problem = SmallProblem();
  const Rates rates(problem);
  Configuration configuration = TwoPools(problem);
  configuration.hardware.compute_machines = 3;
  for (const uint32_t prompts : {0u, 1u}) {
    configuration.prompt_replicas = prompts;
    configuration.replicas = 3 - prompts;
    for (const double rate : {0.0, 5.0}) {
      problem.load.rate = rate;
      const Evaluation e = Evaluate(problem, rates, configuration);
      ASSERT_TRUE(e.feasible);
      // Half of what it can do, as the catalogue's load says, or half of the rate.
      const double served = 0.5 * (rate > 0 ? rate : e.goodput.value) * 3600;
      const double bill =
          served *
          (problem.load.input * e.input_price.value + problem.load.output * e.output_price.value) /
          1e6;
      EXPECT_NEAR(bill, e.price_per_hour.value, 1e-9);
      EXPECT_NEAR(e.price_per_hour.value, 3 * 2 + 2 * 0.5, 1e-12);
      EXPECT_GT(e.input_price.value, 0);
    }
  }
}

TEST(EvaluationTest, PricesOfInputFoundAndOutputTokensAddUpToTheBill) {
  Problem problem = SmallProblem();
  problem.load.prefix = 400;
  const Rates rates(problem);
  Configuration one_pool = {
      .hardware = {.compute = &problem.catalogue.machines[0], .compute_machines = 1}};
  for (const Configuration& configuration : {TwoPools(problem), one_pool}) {
    const Evaluation e = Evaluate(problem, rates, configuration);
    ASSERT_TRUE(e.feasible);
    EXPECT_DOUBLE_EQ(e.hit, 0.4);
    const double served = 0.5 * e.goodput.value * 3600;
    const double bill = served *
                        (600 * e.input_price.value + 400 * e.cached_price.value +
                         problem.load.output * e.output_price.value) /
                        1e6;
    EXPECT_NEAR(bill, e.price_per_hour.value, 1e-9);
    EXPECT_GT(e.cached_price.value, 0);
    EXPECT_LT(e.cached_price.value, e.input_price.value);
  }
}

// Slots that rows do not need keep prefixes: their share counts as work next to what the nodes do.
TEST(EvaluationTest, FoundTokensPayForTheSlotsThatAreKept) {
  Problem problem = SmallProblem();
  problem.load.prefix = 400;
  const Rates rates(problem);
  const auto cached_per_hour = [&](const Evaluation& e) {
    return 400 * e.cached_price.value / 1e6 * 0.5 * e.goodput.value * 3600;
  };
  const auto kept = [&](const Configuration& configuration, const Evaluation& e) {
    const double slots = cost::KvTokensMax(problem.model, rates.ClusterOf(configuration)).value;
    return 1 - e.rows * 1100 / slots;
  };
  const Configuration two_pools = TwoPools(problem);
  const Evaluation away = Evaluate(problem, rates, two_pools);
  ASSERT_TRUE(away.feasible);
  const double share = kept(two_pools, away);
  EXPECT_GT(share, 0.2);
  // In a row's steps three times as many prompt rows attend to 700 tokens, 400 of them found.
  const double found = 3 * 400 / (3 * 700 + 1100.0);
  const double memory = 2 * 0.5;
  EXPECT_NEAR(cached_per_hour(away), memory * (found + share) / (1 + share), 1e-9);

  const Configuration one_pool = {
      .hardware = {.compute = &problem.catalogue.machines[0], .compute_machines = 1}};
  const Evaluation full = Evaluate(problem, rates, one_pool);
  ASSERT_TRUE(full.feasible);
  problem.slo.tpot_seconds = full.times.step.value / 4;
  const Evaluation quick = Evaluate(problem, rates, one_pool);
  ASSERT_TRUE(quick.feasible);
  EXPECT_NEAR(kept(one_pool, full), 0, 0.01);
  const double left = kept(one_pool, quick);
  EXPECT_GT(left, 0.2);
  EXPECT_GT(cached_per_hour(quick), 2 * left / (1 + left));
  EXPECT_LT(cached_per_hour(full), 2 * left / (1 + left));
}

// Where arithmetic bounds the plan, what is found need not be done. Behind a long prefix memory
// nodes bound it, since each row reads K and V by itself.
TEST(EvaluationTest, FoundTokensAreNotComputed) {
  Problem problem = SmallProblem();
  problem.catalogue.links[0].bandwidth.value = 1e12;
  const Rates rates(problem);
  const Configuration configuration = TwoPools(problem);
  const auto with_hit = [&](double input, double hit) {
    problem.load = {.rate = 0, .input = input, .output = 10, .prefix = hit * input};
    return Evaluate(problem, rates, configuration);
  };
  const Evaluation none = with_hit(100, 0);
  const Evaluation half = with_hit(100, 0.5);
  ASSERT_TRUE(none.feasible && half.feasible);
  EXPECT_EQ(none.cached_price.value, 0);
  EXPECT_GT(half.goodput.value, 1.3 * none.goodput.value);
  EXPECT_LT(half.goodput.value, 2.1 * none.goodput.value);
  EXPECT_EQ(with_hit(4000, 0.5).times.bottleneck, cost::Bottleneck::kMemory);
  EXPECT_GT(with_hit(4000, 0.99).goodput.value, with_hit(4000, 0.5).goodput.value);
}

class KeptPrefixesTest : public ::testing::TestWithParam<double> {};

TEST_P(KeptPrefixesTest, AreThoseThatTheSchedulerKeeps) {
  Problem problem = SmallProblem();
  problem.catalogue.devices[0].kind = cost::DeviceKind::kGpu;
  problem.load.prefix = GetParam() * problem.load.input;
  problem.machines_max = 3;
  const Rates rates(problem);
  int keep = 0;
  int all = 0;
  for (const Hardware& hardware : AllHardware(problem)) {
    for (const Configuration& configuration : AllConfigurations(problem, hardware)) {
      const Evaluation e = Evaluate(problem, rates, configuration);
      const core::SchedulerOptions options =
          SchedulerOptionsOf(ClusterFileOf(problem, configuration, e, "model"), problem.model);
      // Those who find less than half share nothing; half of 1,000 tokens is not whole blocks.
      const bool cut = options.span_tokens > 0;
      const bool kept = options.prefix_cache && (!cut || GetParam() > 0.5) &&
                        configuration.prompt_replicas == 0;  // Formulas leave out what passes by.
      EXPECT_EQ(KeepsPrefixes(problem, configuration), kept) << ArrangementName(configuration);
      EXPECT_EQ(e.hit > 0, kept);
      keep += kept ? 1 : 0;
      ++all;
    }
  }
  EXPECT_GT(keep, 0);
  EXPECT_LT(keep, all);
}

INSTANTIATE_TEST_SUITE_P(Hits, KeptPrefixesTest, ::testing::Values(0.4, 0.5, 0.75));

// The cluster is the one with memory machines, but for the links: a bus that each card has for
// itself on one machine, the network on several.
TEST(EvaluationTest, HostsAreMemoryNodesBehindABusOrANetwork) {
  Problem problem = SmallProblem();
  problem.catalogue.links.push_back({"bus", Measured(40e9), Measured(1e-6)});
  cost::Machine& machine = problem.catalogue.machines[0];
  machine.devices = 4;
  machine.host = "wide";
  machine.host_devices = 2;
  machine.host_link = "bus";
  Configuration configuration = {
      .hardware = {.compute = &machine, .compute_machines = 1, .on_hosts = true},
      .replicas = 4,
      .lanes = 5,
      .policy = cost::KvPolicy::kAttendRemote};
  const cost::Cluster one = Rates(problem).ClusterOf(configuration);
  EXPECT_EQ(one.memory_nodes, 2u);
  EXPECT_DOUBLE_EQ(one.memory.capacity.value, 0.9 * 500e9);
  EXPECT_DOUBLE_EQ(one.compute_link.seconds_per_byte.value, 1 / 40e9);
  EXPECT_DOUBLE_EQ(one.memory_link.seconds_per_byte.value, 1 / 80e9);
  EXPECT_EQ(PricePerHour(problem, configuration.hardware).value, 2);
  configuration.hardware.compute_machines = 3;
  const cost::Cluster three = Rates(problem).ClusterOf(configuration);
  EXPECT_EQ(three.memory_nodes, 6u);
  EXPECT_DOUBLE_EQ(three.compute_link.seconds_per_byte.value, 4 / 10e9);
  EXPECT_DOUBLE_EQ(three.memory_link.seconds_per_byte.value, 2 / 10e9);
  EXPECT_EQ(PricePerHour(problem, configuration.hardware).value, 6);
}

TEST(EvaluationTest, APromptReplicaIsABound) {
  Problem problem = SmallProblem();
  problem.load.output = 10;  // Almost all is prompts.
  const Rates rates(problem);
  Configuration configuration = TwoPools(problem);
  configuration.hardware.compute_machines = 2;
  configuration.prompt_replicas = 1;
  const Evaluation e = Evaluate(problem, rates, configuration);
  ASSERT_TRUE(e.feasible);
  EXPECT_EQ(e.limit, Limit::kPrompts);
  const double prompt =
      cost::PromptSeconds(problem.model, rates.ClusterOf(configuration), 1000).value;
  EXPECT_NEAR(e.goodput.value, 0.9 / prompt, 1e-9);
}

TEST(EvaluationTest, WhatDoesNotFitSaysByHowMuch) {
  Problem problem = SmallProblem();
  problem.model.hidden *= 100;
  const Evaluation e = Evaluate(problem, Rates(problem), TwoPools(problem));
  EXPECT_FALSE(e.feasible);
  EXPECT_EQ(e.limit, Limit::kWeights);
  EXPECT_NEAR(e.shortfall, problem.model.WeightBytes() / 72e9, 1e-9);
}

}  // namespace
}  // namespace lamina::planner
