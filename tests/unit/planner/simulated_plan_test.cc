// SPDX-License-Identifier: Apache-2.0
#include "planner/simulated_plan.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster_file.h"
#include "planner/sensitivity.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

Problem SmallProblem() {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "fast", 80, 2000, 300, 1, 2);
  AddKind(problem.catalogue, "wide", 500, 400, 10, 1, 0.5);
  problem.model = SmallModel();
  problem.load = {.rate = 0, .input = 500, .output = 100};
  problem.slo = {.ttft_seconds = 2, .tpot_seconds = 0.03};
  problem.machines_max = 3;
  return problem;
}

WhyNot WhyNotOf(const Problem& problem) {
  return [&problem](const Configuration& configuration, const Evaluation& evaluation) {
    return WhyNotRunnable(problem, configuration, evaluation);
  };
}

PlanSimulationOptions Few() {
  PlanSimulationOptions options;
  options.plans = 2;
  options.requests = 300;
  return options;
}

TEST(SimulatedPlanTest, GoodputIsWithinTheFormulasBoundAndKeepsTheSlo) {
  Problem problem = SmallProblem();
  const auto plans = OptimiseAndSimulate(problem, 3, WhyNotOf(problem), Few());
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_FALSE(plans->runnable.empty());
  const Plan& best = plans->runnable.front();
  ASSERT_TRUE(best.simulated.has_value());
  EXPECT_GT(best.simulated->goodput, 0);
  EXPECT_LE(best.simulated->goodput, best.evaluation.goodput.value);
  EXPECT_LE(best.simulated->ttft_at, 2);
  EXPECT_LE(best.simulated->tpot_at, 0.03);
  EXPECT_GT(best.simulated->output_price, 0);
}

// No number of lanes of two pools that is looked at answers more than the one that is proposed.
TEST(SimulatedPlanTest, TwoPoolsHaveTheLanesThatAnswerMostInTheSimulation) {
  Problem problem = SmallProblem();
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "card", 6, 500, 100, 1, 0.3);
  problem.load.lengths = Lengths::kShareGpt;
  problem.slo.tpot_seconds = 0.02;
  problem.machines_max = 4;
  const WhyNot why_not = [runs = WhyNotOf(problem)](const Configuration& configuration,
                                                    const Evaluation& evaluation) -> std::string {
    return configuration.policy == cost::KvPolicy::kLocal ? "the test is of two pools"
                                                          : runs(configuration, evaluation);
  };
  const auto plans = OptimiseAndSimulate(problem, 6, why_not, Few());
  ASSERT_TRUE(plans.ok()) << plans.status();
  int compared = 0;
  for (const Plan& plan : plans->runnable) {
    if (plan.simulated.has_value() && plan.configuration.policy == cost::KvPolicy::kAttendRemote) {
      const uint32_t nodes = plan.configuration.replicas * plan.configuration.stages;
      for (const uint32_t lanes : {nodes, nodes + 1}) {
        Plan other = plan;
        other.configuration.lanes = lanes;
        other.evaluation = Evaluate(problem, Rates(problem), other.configuration);
        const auto figures = SimulatePlan(problem, other, Few());
        ASSERT_TRUE(figures.ok());
        EXPECT_LE(figures->goodput, plan.simulated->goodput) << lanes << " lanes";
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

TEST(SimulatedPlanTest, ARateThatTheBoundCarriesAndQueuesDoNotGetsALargerPlan) {
  Problem problem = SmallProblem();
  const WhyNot why_not = WhyNotOf(problem);
  const auto free = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(free.ok());
  problem.machines_max = 8;
  problem.slo.ttft_seconds = 0.2;
  problem.load.rate = 0.97 * free->runnable.front().evaluation.goodput.value;

  const auto plans = OptimiseAndSimulate(problem, 3, why_not, Few());

  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_TRUE(plans->runnable.front().simulated.has_value());
  EXPECT_TRUE(plans->runnable.front().simulated->carries);
  EXPECT_GE(plans->runnable.front().simulated->goodput, problem.load.rate);
}

// The baseline is the best of one pool by simulation, whatever the formulas put first: none of the
// others that may be tried has a better price of a request.
TEST(SimulatedPlanTest, TheBaselineIsTheBestOfOnePoolInTheSimulation) {
  Problem problem = SmallProblem();
  problem.load.lengths = Lengths::kShareGpt;
  problem.machines_max = 4;
  const WhyNot why_not = WhyNotOf(problem);
  for (const double ttft : {0.05, 0.2, 5.0}) {
    problem.slo = {.ttft_seconds = ttft, .tpot_seconds = 0.02};
    PlanSimulationOptions options = Few();
    options.plans = 5;

    const auto plans = OptimiseAndSimulate(problem, 2, why_not, options);

    ASSERT_TRUE(plans.ok()) << plans.status();
    ASSERT_EQ(plans->one_pool.size(), 1u);
    const Plan& baseline = plans->one_pool.front();
    const auto price = [](const Plan& plan, const SimulatedFigures& figures) {
      return plan.evaluation.price_per_hour.value / figures.goodput;
    };
    const auto all = Optimise(problem, 1, why_not, Search::kBounded, options.plans);
    ASSERT_TRUE(all.ok());
    ASSERT_EQ(all->one_pool.size(), options.plans);
    for (const Plan& plan : all->one_pool) {
      const auto figures = SimulatePlan(problem, plan, options);
      ASSERT_TRUE(figures.ok());
      if (figures->goodput > 0) {
        EXPECT_LE(price(baseline, *baseline.simulated), price(plan, *figures))
            << HardwareName(plan.configuration.hardware);
      }
    }
  }
}

// A rate that plans of two pools carry only with a greater bound leaves the baseline the cheapest
// of one pool that carries it.
TEST(SimulatedPlanTest, TheBaselineIsNotDearerForWhatOthersNeed) {
  Problem problem = SmallProblem();
  problem.machines_max = 8;
  problem.slo.ttft_seconds = 0.2;
  PlanSimulationOptions options = Few();
  options.plans = 4;
  const WhyNot why_not = [runs = WhyNotOf(problem)](const Configuration& configuration,
                                                    const Evaluation& evaluation) -> std::string {
    return configuration.policy == cost::KvPolicy::kLocal ? "the test's plans are of two pools"
                                                          : runs(configuration, evaluation);
  };
  const auto free = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(free.ok());
  problem.load.rate = 0.97 * free->runnable.front().evaluation.goodput.value;
  const auto all = Optimise(problem, 1, why_not, Search::kBounded, options.plans);
  ASSERT_TRUE(all.ok());

  const auto plans = OptimiseAndSimulate(problem, 2, why_not, options);

  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->one_pool.size(), 1u);
  for (const Plan& plan : all->one_pool) {
    const auto figures = SimulatePlan(problem, plan, options);
    ASSERT_TRUE(figures.ok());
    if (figures->carries) {
      EXPECT_TRUE(plans->one_pool.front().simulated->carries);
      EXPECT_LE(plans->one_pool.front().evaluation.price_per_hour.value,
                plan.evaluation.price_per_hour.value)
          << HardwareName(plan.configuration.hardware);
    }
  }
}

// By the formulas one machine carries the rate. Requests that come in bursts take two, or more: the
// plans that run have four, and carry them at once.
TEST(SimulatedPlanTest, TheBaselineIsLookedForWhenOthersAreFound) {
  Problem problem = SmallProblem();
  problem.catalogue.machines.pop_back();
  problem.slo.ttft_seconds = 0.3;
  PlanSimulationOptions options = Few();
  options.plans = 1;
  for (int burst = 0; burst < 5; ++burst) {
    options.trace.insert(options.trace.end(), 40,
                         TraceRequest{.at = burst * Seconds(10), .input = 500, .output = 1});
  }
  options.trace.push_back({.at = Seconds(50), .input = 500, .output = 1});
  const WhyNot why_not = [](const Configuration& configuration, const Evaluation&) -> std::string {
    return configuration.policy == cost::KvPolicy::kLocal &&
                   configuration.hardware.compute_machines == 4
               ? ""
               : "the test's plans have four machines in one pool";
  };
  problem.machines_max = 1;
  const auto one = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->one_pool.size(), 1u);
  const auto figures = SimulatePlan(problem, one->one_pool.front(), options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_FALSE(figures->carries);
  problem.load.rate = 0.9 * one->one_pool.front().evaluation.goodput.value;
  problem.machines_max = 4;

  const auto plans = OptimiseAndSimulate(problem, 1, why_not, options);

  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->runnable.size(), 1u);
  ASSERT_TRUE(plans->runnable.front().simulated.has_value());
  EXPECT_TRUE(plans->runnable.front().simulated->carries);
  EXPECT_EQ(problem.margin, 1) << "the one of the runnable plans";
  ASSERT_EQ(plans->one_pool.size(), 1u);
  EXPECT_TRUE(plans->one_pool.front().simulated->carries);
  EXPECT_LE(plans->one_pool.front().evaluation.price_per_hour.value,
            plans->runnable.front().evaluation.price_per_hour.value);
}

TEST(SimulatedPlanTest, OnePoolIsACellForEachReplica) {
  Problem problem = SmallProblem();
  const Configuration configuration = {
      .hardware = {.compute = &problem.catalogue.machines[0], .compute_machines = 3},
      .replicas = 3,
      .lanes = 3};
  const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  ASSERT_TRUE(evaluation.feasible);

  const SimFleet fleet = FleetOf(problem, configuration, evaluation, {});

  EXPECT_EQ(fleet.cells, 3);
  EXPECT_EQ(fleet.cell.compute_nodes(), 1);
  EXPECT_DOUBLE_EQ(fleet.cell.compute_price, 2);
  EXPECT_NEAR(fleet.other_price, 0, 1e-9);
  EXPECT_NEAR(cost::Real(fleet.cell.scheduler.running_max), evaluation.rows / 3, 1);
}

TEST(SimulatedPlanTest, ATraceOfOneInstantHasNoRate) {
  const Problem problem = SmallProblem();
  const Configuration configuration = {
      .hardware = {.compute = &problem.catalogue.machines[0], .compute_machines = 1}};
  const Plan plan = {configuration, Evaluate(problem, Rates(problem), configuration), ""};
  ASSERT_TRUE(plan.evaluation.feasible);
  PlanSimulationOptions options = Few();
  for (const Nanos at : {Nanos{0}, Seconds(5)}) {
    options.trace.assign(20, TraceRequest{.at = at, .input = 20, .output = 5});
    const auto figures = SimulatePlan(problem, plan, options);
    EXPECT_EQ(figures.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(figures.status().message()), testing::HasSubstr("at one instant"));
  }
  for (size_t i = 0; i < options.trace.size(); ++i) {
    options.trace[i].at += static_cast<Nanos>(i) * Seconds(1);
  }
  const auto figures = SimulatePlan(problem, plan, options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_GT(figures->rate, 0);
}

TEST(SimulatedPlanTest, TheHitRateOfTheLoadIsWhatTheSchedulerFinds) {
  Problem problem = SmallProblem();
  problem.load.prefix = 256;  // Sixteen whole blocks of the 500 tokens.
  const Configuration configuration = {.hardware = {.compute = &problem.catalogue.machines[0],
                                                    .memory = &problem.catalogue.machines[1],
                                                    .compute_machines = 1,
                                                    .memory_machines = 1},
                                       .lanes = 2,
                                       .policy = cost::KvPolicy::kAttendRemote};
  const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  ASSERT_TRUE(evaluation.feasible);
  problem.load.rate = 0.3 * evaluation.goodput.value;

  const auto figures = SimulatePlan(problem, {configuration, evaluation, ""}, Few());

  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_NEAR(figures->hit, problem.load.hit(), 0.01);
  EXPECT_GT(figures->cached_price, 0);
}

TEST(SimulatedPlanTest, PoliciesThatFetchAreNotSimulated) {
  Problem problem = SmallProblem();
  Plan plan;
  plan.configuration.hardware = {.compute = &problem.catalogue.machines[0],
                                 .memory = &problem.catalogue.machines[1],
                                 .compute_machines = 1,
                                 .memory_machines = 1};
  plan.configuration.policy = cost::KvPolicy::kFetchHeads;
  const auto figures = SimulatePlan(problem, plan, Few());
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kUnimplemented);
}

WhyNot Only(cost::KvPolicy policy) {
  return [policy](const Configuration& configuration, const Evaluation&) -> std::string {
    return configuration.policy == policy ? "" : "the test is of another policy";
  };
}

TEST(SimulatedPlanTest, PlansThatAreNotSimulatedSayWhy) {
  Problem problem = SmallProblem();
  problem.load.rate = 0.01;
  const auto fetched = OptimiseAndSimulate(problem, 3, Only(cost::KvPolicy::kFetchHeads), Few());
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  ASSERT_FALSE(fetched->runnable.empty());
  for (const Plan& plan : fetched->runnable) {
    EXPECT_FALSE(plan.simulated.has_value());
    EXPECT_NE(plan.why_not_simulated, "");
  }
  EXPECT_THAT(fetched->runnable.front().why_not_simulated,
              testing::HasSubstr("policy fetch_heads sends K and V to compute nodes"));

  const auto more = OptimiseAndSimulate(problem, 3, WhyNotOf(problem), Few());

  ASSERT_TRUE(more.ok()) << more.status();
  ASSERT_EQ(more->runnable.size(), 3u);
  EXPECT_EQ(more->runnable[0].why_not_simulated, "");
  EXPECT_FALSE(more->runnable[2].simulated.has_value());
  EXPECT_THAT(more->runnable[2].why_not_simulated,
              testing::HasSubstr("not among the best 2 of its list"));
}

// By formula a request waits for one step alone. Simulated, a long prompt takes longer than the SLO
// allows, on one machine more than on the other, which is the dearer one.
TEST(SimulatedPlanTest, WhatNoPlanKeepsInTheSimulationNamesTheNearestAndItsLimit) {
  for (const double rate : {0.0, 1.0}) {
    SCOPED_TRACE(rate);
    Problem problem = SmallProblem();
    problem.load.lengths = Lengths::kShareGpt;
    problem.load.rate = rate;
    problem.slo = {.ttft_seconds = 0.013};
    problem.machines_max = 1;

    const auto plans = OptimiseAndSimulate(problem, 3, Only(cost::KvPolicy::kLocal), Few());

    ASSERT_TRUE(plans.ok()) << plans.status();
    const Plan& first = plans->runnable.front();
    EXPECT_EQ(HardwareName(first.configuration.hardware), "1 x fast");
    ASSERT_TRUE(first.simulated.has_value());
    EXPECT_FALSE(first.simulated->carries);
    EXPECT_GT(first.simulated->ttft_at, 0.013);
    const auto shortfall = ShortfallOf(problem, plans->runnable);
    ASSERT_TRUE(shortfall.has_value());
    EXPECT_EQ(shortfall->limit, "TTFT");
    EXPECT_EQ(shortfall->goodput, 0);
    EXPECT_THAT(shortfall->text, testing::HasSubstr("requests/s TTFT limits it: p95 is"));
  }
}

TEST(SimulatedPlanTest, ARateThatIsCarriedHasNoShortfall) {
  Problem problem = SmallProblem();
  problem.load.rate = 1;
  const auto plans = OptimiseAndSimulate(problem, 3, WhyNotOf(problem), Few());
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_FALSE(ShortfallOf(problem, plans->runnable).has_value());
  EXPECT_FALSE(ShortfallOf(problem, {}).has_value());
  problem.load.rate = 1e6;
  const auto formulas = Optimise(problem, 1, WhyNotOf(problem), Search::kBounded);
  ASSERT_TRUE(formulas.ok());
  const auto shortfall = ShortfallOf(problem, formulas->runnable);
  ASSERT_TRUE(shortfall.has_value());
  EXPECT_THAT(shortfall->text, testing::HasSubstr("by the formulas it answers at most"));
}

TEST(SensitivityTest, PriceOfTheOnlyMachineIsThePriceOfARequest) {
  Problem problem = SmallProblem();
  problem.catalogue.machines.pop_back();
  const WhyNot why_not = WhyNotOf(problem);
  const auto plans = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(plans.ok());

  const auto results = SensitivityOf(problem, *plans, why_not);

  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->quantities.front().what, "price of fast");
  EXPECT_NEAR(results->quantities.front().lower.cost, 0.75, 1e-9);
  EXPECT_NEAR(results->quantities.front().upper.cost, 1.25, 1e-9);
  EXPECT_FALSE(results->quantities.front().winner_changes_at.has_value());
  EXPECT_EQ(results->quantities.front().by, "measured");
  EXPECT_EQ(results->quantities.back().by, "load");
  EXPECT_EQ(results->quantities.front().basis, cost::Provenance::kAssumed)
      << "the reserve of memory is";
  EXPECT_EQ(results->quantities.front().lower.basis, cost::Provenance::kAssumed);
}

TEST(SensitivityTest, TheHitRateIsChangedByItself) {
  Problem problem = SmallProblem();
  problem.load.output = 5;  // Prompts are what it costs.
  problem.load.prefix = 400;
  const WhyNot why_not = WhyNotOf(problem);
  const auto plans = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(plans.ok());

  const auto results = SensitivityOf(problem, *plans, why_not);

  ASSERT_TRUE(results.ok());
  EXPECT_EQ(results->quantities.back().what, "prefix hit rate");
  EXPECT_DOUBLE_EQ(results->quantities.back().value, 0.8);
  EXPECT_GT(results->quantities.back().lower.cost, 1.1);
  EXPECT_LT(results->quantities.back().upper.cost, 0.9);  // Everything is found but the last token.
}

// Two machines that differ in price alone: the dearer one wins once the other costs as much.
TEST(SensitivityTest, FindsTheValueAtWhichAnotherMachineWins) {
  Problem problem = SmallProblem();
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "a", 80, 2000, 300, 1, 2);
  AddKind(problem.catalogue, "b", 80, 2000, 300, 1, 2.2);
  problem.machines_max = 1;
  const WhyNot why_not = WhyNotOf(problem);
  const auto plans = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(plans.ok());

  const auto results = SensitivityOf(problem, *plans, why_not);

  ASSERT_TRUE(results.ok());
  ASSERT_TRUE(results->quantities.front().winner_changes_at.has_value());
  EXPECT_NEAR(*results->quantities.front().winner_changes_at, 2.2, 0.03);
  EXPECT_EQ(results->quantities.front().new_winner, "1 x b");
}

// Simulations put a plan of other machines first: prices and quantities are those of one plan,
// which is named.
TEST(SensitivityTest, IsOfTheFormulasBestPlanWhicheverStandsFirst) {
  const Problem problem = SmallProblem();
  const WhyNot why_not = WhyNotOf(problem);
  auto plans = Optimise(problem, 20, why_not, Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const Hardware best = plans->runnable.front().configuration.hardware;
  const auto other =
      std::find_if(plans->runnable.begin(), plans->runnable.end(), [&](const Plan& plan) {
        const Hardware& hardware = plan.configuration.hardware;
        return hardware.compute != best.compute || hardware.memory != best.memory;
      });
  ASSERT_NE(other, plans->runnable.end());
  const auto as_found = SensitivityOf(problem, *plans, why_not);
  std::iter_swap(plans->runnable.begin(), other);

  const auto results = SensitivityOf(problem, *plans, why_not);

  ASSERT_TRUE(as_found.ok() && results.ok());
  EXPECT_TRUE(as_found->is_first);
  EXPECT_FALSE(results->is_first);
  EXPECT_EQ(results->machines, HardwareName(best));
  ASSERT_EQ(results->quantities.size(), as_found->quantities.size());
  for (size_t i = 0; i < results->quantities.size(); ++i) {
    EXPECT_EQ(results->quantities[i].what, as_found->quantities[i].what);
    EXPECT_EQ(results->quantities[i].lower.cost, as_found->quantities[i].lower.cost);
  }
}

TEST(SensitivityTest, MeasuredTimesDoNotFollowTheBandwidth) {
  Problem problem = SmallProblem();
  problem.catalogue.machines.pop_back();
  problem.calibrations["fast"].slices.push_back(
      {.weights = problem.model.LayerWeights(),
       .weights_read = problem.model.LayerWeightsRead(1),
       .row_flops = problem.model.LayerFlopsPerRow(),
       .rows = {.fixed = 1e-4, .slope = 1e-6, .r2 = 1, .points = 2},
       .times = cost::TimeCurve({{1, 1.01e-4}, {100, 2e-4}})});
  const WhyNot why_not = WhyNotOf(problem);
  const auto plans = Optimise(problem, 1, why_not, Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();

  const auto results = SensitivityOf(problem, *plans, why_not);

  ASSERT_TRUE(results.ok()) << results.status();
  for (const Sensitivity& result : results->quantities) {
    EXPECT_NE(result.what, "memory bandwidth of fast");
  }
}

TEST(ParetoTest, CostsAreThoseOfTheMeanLoad) {
  Problem problem = SmallProblem();
  const Pareto pareto = ParetoOf(problem, WhyNotOf(problem));
  problem.slo.tpot_seconds = 0.5;  // The longest that is looked at.
  const auto plans = Optimise(problem, 1, WhyNotOf(problem), Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();

  const Evaluation& best = plans->runnable.front().evaluation;

  const double cost =
      1e-6 *
      (problem.load.input * best.input_price + problem.load.output * best.output_price).value;
  EXPECT_NEAR(pareto.runnable.back().cost / cost, 1, 1e-6);
  EXPECT_EQ(pareto.runnable.back().basis, WorstOf(best.basis));
}

TEST(ParetoTest, PointsGetCheaperAsTheyGetSlower) {
  const Problem problem = SmallProblem();
  const Pareto pareto = ParetoOf(problem, WhyNotOf(problem));
  ASSERT_GE(pareto.runnable.size(), 2);
  for (size_t i = 1; i < pareto.runnable.size(); ++i) {
    EXPECT_GT(pareto.runnable[i].tpot_seconds, pareto.runnable[i - 1].tpot_seconds);
    EXPECT_LT(pareto.runnable[i].cost, pareto.runnable[i - 1].cost);
  }
}

}  // namespace
}  // namespace lamina::planner
