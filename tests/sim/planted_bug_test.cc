// SPDX-License-Identifier: Apache-2.0
//
// The checkers of the simulation bite: each planted bug is found in worlds of a kind in which it
// can be met.

#include "tests/sim/planted_bug.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "tests/sim/kinds_of_worlds.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {
namespace {

constexpr uint64_t kSeedsToFindABug = 200;

// A kind of world in which the bug can be met.
SimOptions WorldWith(PlantedBug bug, uint64_t seed) {
  SimOptions world = {.seed = seed, .bug = bug};
  switch (bug) {
    case PlantedBug::kPrefixTooLong:
    case PlantedBug::kArenaWiped:
    case PlantedBug::kCachedMiscounted:
      world.prefix_cache = true;
      break;
    case PlantedBug::kSpanElsewhere:
      world.spans = true;
      break;
    case PlantedBug::kHoleLeft:
    case PlantedBug::kDrainIsLoss:
      world.prefix_cache = world.spans = true;
      break;
    case PlantedBug::kBareNotSaid:
      world.prefix_cache = world.paths = true;
      break;
    case PlantedBug::kReleaseTooEarly:
      world.windows = true;
      break;
    case PlantedBug::kBeamsSwapped:
      world.beams = true;
      break;
    case PlantedBug::kSpillNotAwaited:
    case PlantedBug::kRestoreNotAwaited:
    case PlantedBug::kDropLost:
    case PlantedBug::kTierTooSmall:
      world.spills = true;
      break;
    case PlantedBug::kCopyNotAwaited:
    case PlantedBug::kCopyReadNotAwaited:
    case PlantedBug::kCopyShifted:
    case PlantedBug::kCopySkipLost:
    case PlantedBug::kCopyDropLost:
      return WorldOfSpills(seed, /*kept=*/true, bug);
    case PlantedBug::kSpanNotAwaited:
      return WorldOfSpilledSpans(seed, /*kept=*/false, bug);
    case PlantedBug::kPathOfAnother:
    case PlantedBug::kPlacesShared:
      world.paths = true;
      break;
    case PlantedBug::kHomeOfAnother:
      world.pool = true;
      break;
    case PlantedBug::kFormOfAnother:
      world.forms = true;
      break;
    case PlantedBug::kSlotsOfOthers:
      world.hybrid = true;
      break;
    case PlantedBug::kTailShared:
    case PlantedBug::kTailsUncounted:
    case PlantedBug::kClosedTooEarly:
    case PlantedBug::kTailsWiped:
      return WorldOfInt8(seed, bug);
    case PlantedBug::kSaltIgnored:
      world.prefix_cache = world.salts = true;
      break;
    default:
      break;
  }
  return world;
}

// The first so many seeds of that kind, as many as run without the bug above where it is rare.
uint64_t SeedsToFind(PlantedBug bug) {
  switch (bug) {
    case PlantedBug::kCopyNotAwaited:
    case PlantedBug::kCopyReadNotAwaited:
    case PlantedBug::kCopyShifted:
    case PlantedBug::kCopySkipLost:
    case PlantedBug::kCopyDropLost:
      return kSeedsOfCopies;
    case PlantedBug::kTailsWiped:
    case PlantedBug::kSpanNotAwaited:
      return kSeeds;
    case PlantedBug::kDrainIsLoss:
      return kSeedsOfKeptSpans;
    default:
      return kSeedsToFindABug;
  }
}

class PlantedBugTest : public testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedBugTest, IsFound) {
  std::string failure;
  for (uint64_t seed = 1; seed <= SeedsToFind(GetParam()) && failure.empty(); ++seed) {
    failure = SimWorld(WorldWith(GetParam(), seed)).Run().failure;
    if (!failure.empty()) {
      std::cout << "seed " << seed << ": " << failure << "\n";
    }
  }
  EXPECT_NE(failure, "");
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBugTest,
    testing::Values(
        PlantedBug::kLeaveLost, PlantedBug::kLeaveLate, PlantedBug::kSlotGivenTwice,
        PlantedBug::kScratchShared, PlantedBug::kPositionOff, PlantedBug::kCommittedWrong,
        PlantedBug::kTokenStale, PlantedBug::kTokenMissing, PlantedBug::kPrefixTooLong,
        PlantedBug::kArenaWiped, PlantedBug::kReleaseTooEarly, PlantedBug::kBeamsSwapped,
        PlantedBug::kSpillNotAwaited, PlantedBug::kRestoreNotAwaited, PlantedBug::kSpanNotAwaited,
        PlantedBug::kDropLost, PlantedBug::kPathOfAnother, PlantedBug::kBareNotSaid,
        PlantedBug::kFormOfAnother, PlantedBug::kSlotsOfOthers, PlantedBug::kHomeOfAnother,
        PlantedBug::kHoleLeft, PlantedBug::kCancelLost, PlantedBug::kCachedMiscounted,
        PlantedBug::kSaltIgnored, PlantedBug::kTailShared, PlantedBug::kTailsUncounted,
        PlantedBug::kClosedTooEarly, PlantedBug::kTailsWiped, PlantedBug::kCopyNotAwaited,
        PlantedBug::kCopyReadNotAwaited, PlantedBug::kCopyShifted, PlantedBug::kCopySkipLost,
        PlantedBug::kCopyDropLost, PlantedBug::kDrainUnnoticed, PlantedBug::kDrainIsLoss,
        PlantedBug::kAddedTooLarge, PlantedBug::kPlacesShared, PlantedBug::kSpanElsewhere,
        PlantedBug::kTierTooSmall, PlantedBug::kScoreOff));

// A node that has lost its slots and says that it has kept them is found out where sequences are
// cut, too.
TEST(SchedulerSimTest, SlotsThatAreSaidToBeKeptAndAreNotAreReadByARow) {
  uint64_t read = 0;
  for (uint64_t seed = 1; seed <= kSeedsToFindABug && read <= 20u; ++seed) {
    const SimReport report =
        SimWorld(
            {.seed = seed, .bug = PlantedBug::kArenaWiped, .prefix_cache = true, .spans = true})
            .Run();
    read += absl::StrContains(report.failure, "reads K and V of other tokens");
  }
  EXPECT_GT(read, 20u);
}

// Who may share with everybody reads what others asked for, in slots of either form.
TEST(SchedulerSimTest, ASaltThatIsIgnoredIsFoundInWhatRowsRead) {
  for (const bool int8 : {false, true}) {
    uint64_t found = 0;
    for (uint64_t seed = 1; seed <= kSeedsToFindABug && found <= 5u; ++seed) {
      const SimReport report = SimWorld({.seed = seed,
                                         .bug = PlantedBug::kSaltIgnored,
                                         .prefix_cache = true,
                                         .int8 = int8,
                                         .salts = true})
                                   .Run();
      found += absl::StrContains(report.failure, "works for a request with another salt");
    }
    EXPECT_GT(found, 5u) << "int8 " << int8;
  }
}

// Whose client has gone is found in the plan, before a token of it comes; beam searches too.
TEST(SchedulerSimTest, WhoWasCancelledAndIsPlannedIsFoundInThePlan) {
  for (const bool beams : {false, true}) {
    uint64_t found = 0;
    for (uint64_t seed = 1; seed <= kSeedsToFindABug && found <= 5u; ++seed) {
      const SimReport report =
          SimWorld({.seed = seed, .bug = PlantedBug::kCancelLost, .beams = beams}).Run();
      found += absl::StrContains(report.failure, "was planned after it was cancelled");
    }
    EXPECT_GT(found, 5u) << "beams " << beams;
  }
}

}  // namespace
}  // namespace lamina::sim
