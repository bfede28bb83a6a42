// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "model/splitter.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct BruteForceCut {
  uint64_t weight = UINT64_MAX;
  uint32_t before = 0;  // Bit i: node i; the union of all minimum cuts.
};

struct Masks {
  std::vector<uint32_t> producers;
  std::vector<uint32_t> consumers;
  uint32_t source = 0;
  uint32_t sink = 0;
};

Masks MasksOf(const CutProblem& problem) {
  Masks masks = {std::vector<uint32_t>(problem.nodes), std::vector<uint32_t>(problem.nodes)};
  for (const auto& [producer, consumer] : problem.edges) {
    masks.producers[consumer] |= 1u << producer;
    masks.consumers[producer] |= 1u << consumer;
  }
  for (const uint32_t node : problem.source) {
    masks.source |= 1u << node;
  }
  for (const uint32_t node : problem.sink) {
    masks.sink |= 1u << node;
  }
  return masks;
}

// nullopt when `before` is not closed under predecessors or breaks a constraint.
std::optional<uint64_t> WeightOf(const CutProblem& problem, const Masks& masks, uint32_t before) {
  if ((masks.source & ~before) != 0 || (masks.sink & before) != 0) {
    return std::nullopt;
  }
  uint64_t weight = 0;
  for (uint32_t node = 0; node < problem.nodes; ++node) {
    if ((before >> node & 1) == 0) {
      continue;
    }
    if ((masks.producers[node] & ~before) != 0) {
      return std::nullopt;
    }
    weight += (masks.consumers[node] & ~before) != 0 ? problem.weight[node] : 0;
  }
  return weight;
}

BruteForceCut BruteForce(const CutProblem& problem) {
  const Masks masks = MasksOf(problem);
  BruteForceCut best;
  for (uint32_t before = 0; before < 1u << problem.nodes; ++before) {
    const std::optional<uint64_t> weight = WeightOf(problem, masks, before);
    if (weight.has_value() && *weight <= best.weight) {
      best.before = *weight < best.weight ? before : best.before | before;
      best.weight = *weight;
    }
  }
  return best;
}

uint32_t ToMask(const std::vector<bool>& before) {
  uint32_t mask = 0;
  for (size_t node = 0; node < before.size(); ++node) {
    mask |= before[node] ? 1u << node : 0;
  }
  return mask;
}

// Small weights, so that ties are common.
CutProblem RandomProblem(Prng& prng) {
  CutProblem problem;
  problem.nodes = 2 + static_cast<uint32_t>(prng.Below(10));
  const double density = 0.1 + 0.5 * prng.Uniform();
  for (uint32_t node = 0; node < problem.nodes; ++node) {
    problem.weight.push_back(prng.Below(5));
    for (uint32_t producer = 0; producer < node; ++producer) {
      if (prng.Chance(density)) {
        problem.edges.emplace_back(producer, node);
      }
    }
    if (prng.Chance(0.2)) {
      problem.source.push_back(node);
    }
    if (prng.Chance(0.2)) {
      problem.sink.push_back(node);
    }
  }
  return problem;
}

TEST(MinimumCutTest, AgreesWithEveryClosedCutOfFourThousandRandomGraphs) {
  uint32_t feasible = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const CutProblem problem = RandomProblem(prng);

    const absl::StatusOr<Cut> cut = MinimumCut(problem);
    const BruteForceCut expected = BruteForce(problem);

    if (expected.weight == UINT64_MAX) {
      EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++feasible;
    ASSERT_TRUE(cut.ok()) << cut.status();
    ASSERT_EQ(cut->weight, expected.weight);
    ASSERT_EQ(WeightOf(problem, MasksOf(problem), ToMask(cut->before)), expected.weight);
    ASSERT_EQ(ToMask(cut->before), expected.before) << "not the largest of the minimum cuts";
  }
  EXPECT_GE(feasible, 2000u);
}

TEST(MinimumCutTest, AgreesWithEveryClosedCutOfAllGraphsOfFourNodes) {
  const std::vector<std::pair<uint32_t, uint32_t>> pairs = {{0, 1}, {0, 2}, {0, 3},
                                                            {1, 2}, {1, 3}, {2, 3}};
  for (uint32_t edges = 0; edges < 64; ++edges) {
    for (uint32_t weights = 0; weights < 81; ++weights) {
      CutProblem problem = {.nodes = 4,
                            .weight = {weights % 3, weights / 3 % 3, weights / 9 % 3, weights / 27},
                            .source = {1},
                            .sink = {3}};
      for (size_t i = 0; i < pairs.size(); ++i) {
        if ((edges >> i & 1) != 0) {
          problem.edges.push_back(pairs[i]);
        }
      }

      const absl::StatusOr<Cut> cut = MinimumCut(problem);

      const BruteForceCut expected = BruteForce(problem);
      ASSERT_TRUE(cut.ok()) << cut.status();
      ASSERT_EQ(cut->weight, expected.weight) << edges << " " << weights;
      ASSERT_EQ(ToMask(cut->before), expected.before) << edges << " " << weights;
    }
  }
}

// residual 0 -> q 1, and 0 -> add 2; only q must be before. With forward edges alone the cut is 0.
TEST(MinimumCutTest, CarriesWhatLeavesAnAncestorOfTheSource) {
  const absl::StatusOr<Cut> cut = MinimumCut(
      {.nodes = 3, .weight = {7, 5, 5}, .edges = {{0, 1}, {0, 2}}, .source = {1}, .sink = {2}});

  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->weight, 7u);
  EXPECT_THAT(cut->before, ElementsAre(true, true, false));
}

TEST(MinimumCutTest, CountsAValueOnceHoweverManyConsumersItHas) {
  // Three consumers of node 0 (10), against one carried copy of node 1 (12).
  const absl::StatusOr<Cut> cut =
      MinimumCut({.nodes = 6,
                  .weight = {10, 12, 20, 20, 20, 1},
                  .edges = {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {2, 5}, {3, 5}, {4, 5}, {1, 5}},
                  .source = {0},
                  .sink = {5}});

  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->weight, 10u);
  EXPECT_THAT(cut->before, ElementsAre(true, false, false, false, false, false));
}

TEST(MinimumCutTest, TakesTheCutNearestTheSinkAmongEqualOnes) {
  const absl::StatusOr<Cut> cut = MinimumCut({.nodes = 4,
                                              .weight = {3, 3, 3, 3},
                                              .edges = {{0, 1}, {1, 2}, {2, 3}},
                                              .source = {0},
                                              .sink = {3}});

  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->weight, 3u);
  EXPECT_THAT(cut->before, ElementsAre(true, true, true, false));
}

TEST(MinimumCutTest, WithoutASinkEverythingIsBefore) {
  const absl::StatusOr<Cut> cut =
      MinimumCut({.nodes = 2, .weight = {1, 1}, .edges = {{0, 1}}, .source = {0}});

  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->weight, 0u);
  EXPECT_THAT(cut->before, ElementsAre(true, true));
}

TEST(MinimumCutTest, RefusesASourceThatNeedsASink) {
  const absl::StatusOr<Cut> cut = MinimumCut(
      {.nodes = 3, .weight = {1, 1, 1}, .edges = {{0, 1}, {1, 2}}, .source = {2}, .sink = {0}});

  EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cut.status().message()), HasSubstr("no cut"));
}

TEST(MinimumCutTest, RefusesAProblemThatIsNotWellFormed) {
  const std::vector<std::pair<CutProblem, std::string>> cases = {
      {{.nodes = 2, .weight = {1}}, "1 weights for 2 nodes"},
      {{.nodes = 2, .weight = {1, 1}, .edges = {{1, 0}}}, "edge 1 to 0"},
      {{.nodes = 2, .weight = {1, 1}, .edges = {{0, 2}}}, "edge 0 to 2"},
      {{.nodes = 2, .weight = {1, 1}, .source = {2}}, "node 2 is not one of 2"},
      {{.nodes = 2, .weight = {1, 1}, .sink = {9}}, "node 9 is not one of 2"},
      {{.nodes = 2, .weight = {UINT64_MAX, UINT64_MAX}}, "exceed 2^61"}};
  for (const auto& [problem, message] : cases) {
    const absl::StatusOr<Cut> cut = MinimumCut(problem);
    EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(cut.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace lamina::model
