// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluation.h"

#include "gtest/gtest.h"
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
