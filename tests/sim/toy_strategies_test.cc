// SPDX-License-Identifier: Apache-2.0
//
// Whole worlds under strategies that no product has: every client still sees its tokens, every slot
// has one owner, everything ends, and no line of the product knows of it.

#include "tests/sim/toy_strategies.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "tests/sim/call_script.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {
namespace {

constexpr uint64_t kSeeds = 250;

struct Toy {
  std::string name;
  core::SchedulerStrategies strategies;
};

std::vector<Toy> Toys() {
  return {{"LargestGivesUp", {.out_of_slots = MakeLargestGivesUp}},
          {"NeedyGivesUp", {.out_of_slots = MakeNeedyGivesUp}},
          {"PromptsGetHalf", {.step_packing = MakePromptsGetHalf}},
          {"InTurn", {.placement = MakeInTurn}},
          {"FirstRowsChange", {.lane_packing = MakeFirstRowsChange}},
          {"Together",
           {.placement = MakeInTurn,
            .out_of_slots = MakeLargestGivesUp,
            .step_packing = MakePromptsGetHalf,
            .lane_packing = MakeFirstRowsChange}}};
}

class ToyStrategiesTest : public testing::TestWithParam<Toy> {};

TEST_P(ToyStrategiesTest, EveryClientSeesItsTokensAndEverythingEnds) {
  uint64_t preemptions = 0;
  uint64_t others = 0;  // Worlds that go another way than under the shipped strategies.
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed, .strategies = GetParam().strategies}).Run();
    ASSERT_EQ(report.failure, "") << "seed " << seed;
    preemptions += report.reach.preemptions;
    others += report.plan_hash != SimWorld({.seed = seed}).Run().plan_hash ? 1 : 0;
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(others, 20);
}

TEST_P(ToyStrategiesTest, SpansAndChangingBandwidthsAreNoTrouble) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const CallScriptReport report =
        CallScript({.seed = seed, .base = {.strategies = GetParam().strategies}}).Run();
    ASSERT_EQ(report.failure, "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ToyStrategiesTest, testing::ValuesIn(Toys()),
                         [](const auto& toy) { return toy.param.name; });

// Nobody's activations come to lie where those of another lane do.
TEST(ToyPathsTest, PlacesGoWithTheRowsThatChangeLanes) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    const SimReport report =
        SimWorld({.seed = seed, .strategies = {.lane_packing = MakeFirstRowsChange}, .paths = true})
            .Run();
    ASSERT_EQ(report.failure, "") << "seed " << seed;
    reach.Add(report.reach);
  }
  std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";
  EXPECT_GT(reach.fetch_placed, 50);
  EXPECT_GT(reach.placed_moved, 20);
}

}  // namespace
}  // namespace lamina::sim
