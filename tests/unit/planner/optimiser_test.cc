// SPDX-License-Identifier: Apache-2.0
#include "planner/optimiser.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster_file.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

using testing::HasSubstr;

absl::StatusOr<Plans> PlansOf(const Problem& problem, Search search, size_t count = 3) {
  const WhyNot why_not = [&](const Configuration& configuration, const Evaluation& evaluation) {
    return WhyNotRunnable(problem, configuration, evaluation);
  };
  return Optimise(problem, count, why_not, search);
}

std::string Names(const std::vector<Plan>& plans) {
  return absl::StrJoin(plans, "\n", [](std::string* out, const Plan& plan) {
    absl::StrAppend(out, HardwareName(plan.configuration.hardware), ": ",
                    ArrangementName(plan.configuration), " ", plan.evaluation.goodput.value);
  });
}

// Three kinds of machines, eight of them at most.
Problem RandomProblem(uint64_t seed) {
  Numbers numbers(seed);
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  for (const char* name : {"a", "b", "c"}) {
    AddKind(problem.catalogue, name, numbers.Between(8, 600), numbers.Between(100, 4000),
            numbers.Between(2, 1000), numbers.Next() < 0.7 ? 1 : 2, numbers.Between(0.2, 5));
    problem.catalogue.devices.back().runs.yes = numbers.Next() < 0.8;
  }
  problem.model = SmallModel();
  problem.load = {.rate = numbers.Next() < 0.5 ? 0 : numbers.Between(0.5, 100),
                  .input = std::floor(numbers.Between(10, 4000)),
                  .output = std::floor(numbers.Between(10, 1000))};
  if (numbers.Next() < 0.7) {
    problem.slo.tpot_seconds = numbers.Between(0.005, 0.2);
  }
  problem.machines_max = 8;
  problem.budget = numbers.Between(2, 30);
  if (numbers.Next() < 0.5) {
    problem.catalogue.machines[0].host = "c";
    problem.catalogue.machines[0].host_link = "wire";
  }
  return problem;
}

// The best rank of all configurations that run, or that do not, one after the other.
std::optional<Rank> BestByHand(const Problem& problem, bool runs) {
  const Rates rates(problem);
  std::optional<Rank> best;
  for (const Hardware& hardware : AllHardware(problem)) {
    for (const Configuration& configuration : AllConfigurations(problem, hardware)) {
      const Evaluation evaluation = Evaluate(problem, rates, configuration);
      const Rank rank = RankOf(problem, evaluation);
      const bool better = evaluation.feasible && (!best.has_value() || Compare(rank, *best) < 0);
      if (better && WhyNotRunnable(problem, configuration, evaluation).empty() == runs) {
        best = rank;
      }
    }
  }
  return best;
}

void ExpectBest(const Problem& problem, const std::vector<Plan>& plans, bool runs, uint64_t seed) {
  const std::optional<Rank> best = BestByHand(problem, runs);
  ASSERT_EQ(best.has_value(), !plans.empty()) << "seed " << seed;
  if (best.has_value()) {
    EXPECT_EQ(Compare(RankOf(problem, plans[0].evaluation), *best), 0) << "seed " << seed;
  }
}

TEST(OptimiserTest, TheFirstPlanIsTheBestOfAllThatThereAre) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Problem problem = RandomProblem(seed);
    const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded);
    if (plans.ok()) {
      ExpectBest(problem, plans->runnable, true, seed);
      ExpectBest(problem, plans->others, false, seed);
    }
  }
}

TEST(OptimiserTest, IsEqualToBruteForce) {
  uint64_t hardware = 0;
  uint64_t looked_at = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Problem problem = RandomProblem(seed);
    const absl::StatusOr<Plans> bounded = PlansOf(problem, Search::kBounded);
    const absl::StatusOr<Plans> exhaustive = PlansOf(problem, Search::kExhaustive);
    ASSERT_EQ(bounded.ok(), exhaustive.ok()) << "seed " << seed << " " << bounded.status();
    if (!bounded.ok()) {
      continue;
    }
    EXPECT_EQ(Names(bounded->runnable), Names(exhaustive->runnable)) << "seed " << seed;
    EXPECT_EQ(Names(bounded->others), Names(exhaustive->others)) << "seed " << seed;
    EXPECT_EQ(Names(bounded->one_pool), Names(exhaustive->one_pool)) << "seed " << seed;
    hardware += bounded->hardware;
    looked_at += bounded->looked_at;
  }
  EXPECT_LT(looked_at, hardware / 2) << "bounds rule out most machines";
}

// What prunes an arrangement is as good as what its evaluation says, or better, and says something.
TEST(OptimiserTest, NoArrangementRanksBeforeItsBound) {
  uint64_t near = 0;
  uint64_t feasible = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Problem problem = RandomProblem(seed);
    const Rates rates(problem);
    for (const Hardware& hardware : AllHardware(problem)) {
      for (const Configuration& configuration : AllConfigurations(problem, hardware)) {
        const Evaluation evaluation = Evaluate(problem, rates, configuration);
        if (!evaluation.feasible) {
          continue;
        }
        const Rank bound = BestPossibleRank(problem, rates, configuration);
        const Rank rank = RankOf(problem, evaluation);
        ASSERT_LE(Compare(bound, rank), 0) << "seed " << seed << " " << HardwareName(hardware)
                                           << ": " << ArrangementName(configuration);
        near += bound.carries == rank.carries && bound.cost >= (rank.cost < 0 ? 2 : 0.5) * rank.cost
                    ? 1
                    : 0;
        ++feasible;
      }
    }
  }
  EXPECT_GT(feasible, 1000u);
  EXPECT_GT(near, feasible / 2);
}

TEST(OptimiserTest, TwentyKindsAreSearchedAsByBruteForce) {
  Numbers numbers(7);
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  for (int i = 0; i < 20; ++i) {
    AddKind(problem.catalogue, absl::StrCat("kind", i), numbers.Between(8, 600),
            numbers.Between(100, 4000), numbers.Between(2, 1000), numbers.Next() < 0.7 ? 1 : 2,
            numbers.Between(0.2, 5));
    problem.catalogue.devices.back().runs.yes = i % 5 != 4;
  }
  problem.model = SmallModel();
  problem.load = {.rate = 20, .input = 500, .output = 100};
  problem.slo.tpot_seconds = 0.05;
  problem.machines_max = 3;
  const absl::StatusOr<Plans> exhaustive = PlansOf(problem, Search::kExhaustive);
  ASSERT_TRUE(exhaustive.ok()) << exhaustive.status();

  const absl::StatusOr<Plans> bounded = PlansOf(problem, Search::kBounded);

  ASSERT_TRUE(bounded.ok()) << bounded.status();
  EXPECT_EQ(Names(bounded->runnable), Names(exhaustive->runnable));
  EXPECT_EQ(Names(bounded->others), Names(exhaustive->others));
  EXPECT_EQ(bounded->hardware, 20u * 3 + 20u * 20 * 3);
  EXPECT_LT(bounded->looked_at, bounded->hardware / 2);
}

// Whether a plan runs is asked where its rank is as good as the best of a list, or a list is empty.
TEST(OptimiserTest, WhetherItRunsIsAskedOnlyOfWhatMayEnterAList) {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "fast", 80, 2000, 300, 1, 2);
  AddKind(problem.catalogue, "wide", 500, 400, 10, 1, 0.5);
  problem.model = SmallModel();
  problem.load = {.rate = 0, .input = 1000, .output = 200};
  problem.machines_max = 4;
  struct List {
    std::optional<Rank> best;
    bool Admits(const Rank& rank) const { return !best.has_value() || Compare(rank, *best) <= 0; }
    void Add(const Rank& rank) { best = Admits(rank) ? rank : *best; }
  };
  List runs;
  List others;
  List one_pool;
  const WhyNot why_not = [&](const Configuration& configuration,
                             const Evaluation& evaluation) -> std::string {
    const Rank rank = RankOf(problem, evaluation);
    const bool pool = !configuration.hardware.two_pools();
    EXPECT_TRUE(runs.Admits(rank) || others.Admits(rank) || (pool && one_pool.Admits(rank)))
        << HardwareName(configuration.hardware) << ": " << ArrangementName(configuration);
    if (pool) {
      one_pool.Add(rank);
    }
    const bool it_runs = configuration.policy == cost::KvPolicy::kAttendRemote;
    (it_runs ? runs : others).Add(rank);
    return it_runs ? "" : "the test says so";
  };

  const absl::StatusOr<Plans> plans = Optimise(problem, 1, why_not, Search::kExhaustive);

  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_EQ(plans->looked_at, plans->hardware);
  ASSERT_EQ(plans->runnable.size(), 1u);
  EXPECT_EQ(Compare(RankOf(problem, plans->runnable[0].evaluation), *runs.best), 0);
}

Problem SmallProblem() {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "fast", 80, 2000, 300, 1, 2);
  AddKind(problem.catalogue, "wide", 500, 400, 10, 1, 0.5);
  problem.model = SmallModel();
  problem.load = {.rate = 2, .input = 1000, .output = 200};
  return problem;
}

// Times with a bend: beyond it a row takes a twentieth of what a line through all points says.
cost::Calibration WithABend(const cost::ModelShape& model) {
  const std::vector<cost::Point> points = {{1, 1e-4}, {8, 4e-4}, {16, 4.1e-4}};
  cost::Calibration calibration;
  calibration.slices.push_back({.model = model.name,
                                .weights = model.LayerWeights(),
                                .weights_read = model.LayerWeightsRead(1),
                                .row_flops = model.LayerFlopsPerRow(),
                                .rows = cost::FitLine(points),
                                .times = cost::TimeCurve(points)});
  calibration.prompt_attentions.push_back({.token_flops = 4.0 * model.query_heads * model.head_dim,
                                           .flops = {.slope = 1e-16, .points = 2}});
  return calibration;
}

// Windows have room for the next layer of three rows of 1,100 tokens, and not of all that fit. The
// device makes K and V in about half of the time that they take on the link, so that a layer ahead
// saves an eighth.
TEST(OptimiserTest, BoundsHoldWhereOnlyFewRowsAreRecomputedALayerAhead) {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "fast", 80, 2000, 82, 1, 2);
  AddKind(problem.catalogue, "wide", 500, 400, 10, 1, 0.5);
  problem.model = SmallModel();
  problem.model.kv_heads = problem.model.query_heads;
  problem.load = {.rate = 0, .input = 1000, .output = 200};
  problem.slo.tpot_seconds = 0.02;
  const Configuration configuration = {.hardware = {.compute = &problem.catalogue.machines[0],
                                                    .memory = &problem.catalogue.machines[1],
                                                    .compute_machines = 1,
                                                    .memory_machines = 1},
                                       .policy = cost::KvPolicy::kFetchRecompute};
  const Rates rates(problem);
  const Evaluation evaluation = Evaluate(problem, rates, configuration);
  ASSERT_TRUE(evaluation.feasible);
  EXPECT_EQ(evaluation.rows, 1);
  EXPECT_LE(Compare(BestPossibleRank(problem, rates, configuration), RankOf(problem, evaluation)),
            0);
}

TEST(OptimiserTest, BoundsHoldWhereTheModelWasMeasured) {
  Problem problem = SmallProblem();
  problem.load.rate = 0;
  problem.machines_max = 3;
  problem.calibrations["fast"] = WithABend(problem.model);
  const Rates rates(problem);
  for (const Hardware& hardware : AllHardware(problem)) {
    const Rank bound = BestPossibleRank(problem, rates, hardware);
    for (const Configuration& configuration : AllConfigurations(problem, hardware)) {
      const Evaluation evaluation = Evaluate(problem, rates, configuration);
      if (evaluation.feasible) {
        EXPECT_LE(Compare(bound, RankOf(problem, evaluation)), 0)
            << HardwareName(hardware) << ": " << ArrangementName(configuration);
      }
    }
  }
  const absl::StatusOr<Plans> bounded = PlansOf(problem, Search::kBounded);
  const absl::StatusOr<Plans> exhaustive = PlansOf(problem, Search::kExhaustive);
  ASSERT_TRUE(bounded.ok()) << bounded.status();
  ASSERT_TRUE(exhaustive.ok()) << exhaustive.status();
  EXPECT_EQ(Names(bounded->runnable), Names(exhaustive->runnable));
}

TEST(OptimiserTest, SparesOfAKindCountOnce) {
  Problem problem = SmallProblem();
  problem.catalogue.economics.spares = 1;
  problem.budget = 6;  // Two machines of the kind for 2, and a spare one.
  bool two_pools = false;
  for (const Hardware& hardware : AllHardware(problem)) {
    EXPECT_LE(PricePerHour(problem, hardware).value, problem.budget) << HardwareName(hardware);
    two_pools = two_pools || HardwareName(hardware) == "1 x fast + 1 x fast";
  }
  EXPECT_TRUE(two_pools);
}

TEST(OptimiserTest, TheCheapestThatCarriesTheRateComesFirst) {
  Problem problem = SmallProblem();
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded, 10);
  ASSERT_TRUE(plans.ok()) << plans.status();
  double last = 0;
  for (const Plan& plan : plans->runnable) {
    EXPECT_TRUE(plan.evaluation.carries);
    EXPECT_GE(plan.evaluation.price_per_hour.value, last);
    last = plan.evaluation.price_per_hour.value;
  }
  ASSERT_EQ(plans->one_pool.size(), 1u);
  EXPECT_EQ(plans->one_pool[0].configuration.hardware.memory, nullptr);
}

// A card too small for K and V, whose machine has much memory besides its own that costs nothing
// more.
TEST(OptimiserTest, MemoryNodesMayBeTheMachinesOwnProcessors) {
  Problem problem = SmallProblem();
  problem.catalogue.devices[0].capacity.value = 1.1 * problem.model.WeightBytes() / 0.9;
  problem.catalogue.machines[0].host = "wide";
  problem.catalogue.machines[0].host_link = "wire";
  problem.machines_max = 1;
  problem.load.rate = 0;
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded, 10);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const Evaluation* alone = nullptr;
  const Evaluation* with_host = nullptr;
  for (const Plan& plan : plans->runnable) {
    const std::string name = HardwareName(plan.configuration.hardware);
    (name == "1 x fast + its host" ? with_host : alone) =
        name == "1 x wide" ? alone : &plan.evaluation;
  }
  ASSERT_NE(alone, nullptr);
  ASSERT_NE(with_host, nullptr);
  EXPECT_EQ(with_host->price_per_hour.value, alone->price_per_hour.value);
  EXPECT_GT(with_host->goodput.value, 2 * alone->goodput.value);
}

TEST(OptimiserTest, ARateThatNothingCarriesGivesTheMostGoodput) {
  Problem problem = SmallProblem();
  problem.load.rate = 1e6;
  problem.machines_max = 4;
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded, 10);
  ASSERT_TRUE(plans.ok());
  EXPECT_FALSE(plans->runnable[0].evaluation.carries);
  EXPECT_GE(plans->runnable[0].evaluation.goodput.value,
            plans->runnable[1].evaluation.goodput.value);
}

// The model has no room on the first kind, and the last one answers more than the second.
TEST(OptimiserTest, OfMachinesThatCostNothingTheBestAnswerMost) {
  Problem problem = SmallProblem();
  problem.load.rate = 0;
  problem.machines_max = 2;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "tiny", 1, 100, 1, 1, 0);
  AddKind(problem.catalogue, "slow", 80, 200, 30, 1, 0);
  AddKind(problem.catalogue, "fast", 80, 2000, 300, 1, 0);
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_FALSE(plans->runnable.empty());
  const Plan& best = plans->runnable.front();
  EXPECT_EQ(best.configuration.hardware.compute->name, "fast");
  const Rates rates(problem);
  for (const Hardware& hardware : AllHardware(problem)) {
    for (const Configuration& configuration : AllConfigurations(problem, hardware)) {
      const Evaluation evaluation = Evaluate(problem, rates, configuration);
      if (evaluation.feasible && WhyNotRunnable(problem, configuration, evaluation).empty()) {
        EXPECT_LE(evaluation.goodput.value, best.evaluation.goodput.value)
            << HardwareName(hardware) << ": " << ArrangementName(configuration);
      }
    }
  }
}

TEST(OptimiserTest, AnSloThatNothingMeetsNamesTheNearest) {
  Problem problem = SmallProblem();
  problem.slo.tpot_seconds = 1e-5;
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded);
  EXPECT_EQ(plans.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(plans.status().message()),
              testing::AllOf(HasSubstr("no configuration meets the SLO; the nearest is"),
                             HasSubstr("fast"), HasSubstr("TPOT limits it")));
}

TEST(OptimiserTest, AModelThatIsTooLargeIsNamed) {
  Problem problem = SmallProblem();
  problem.model.hidden *= 10000;
  EXPECT_THAT(std::string(PlansOf(problem, Search::kBounded).status().message()),
              HasSubstr("small is too large for every configuration: its weights take"));
  problem.budget = 0.1;
  EXPECT_THAT(std::string(PlansOf(problem, Search::kBounded).status().message()),
              HasSubstr("no machine of the catalogue is within"));
}

TEST(OptimiserTest, WhatDoesNotRunIsApart) {
  Problem problem = SmallProblem();
  problem.catalogue.devices[0].runs = {false, "no backend for it"};
  const absl::StatusOr<Plans> plans = PlansOf(problem, Search::kBounded, 100);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (const Plan& plan : plans->runnable) {
    EXPECT_EQ(plan.configuration.hardware.compute->name, "wide");
  }
  bool named = false;
  for (const Plan& plan : plans->others) {
    EXPECT_FALSE(plan.why_not.empty());
    named = named || plan.why_not == "fast: no backend for it";
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace lamina::planner
