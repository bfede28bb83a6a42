// SPDX-License-Identifier: Apache-2.0
//
// Kinds of worlds that are run with planted bugs and without, and how many seeds of each kind reach
// what its test counts on.

#pragma once

#include <cstdint>

#include "tests/sim/planted_bug.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

// Enough for what their tests count; worlds that seldom get there have more of them. Twice as many
// have every mixture of the options that are drawn by remainders of 2, 5, 7 and 11.
inline constexpr uint64_t kSeeds = 400;
inline constexpr uint64_t kSeedsOfCopies = 2000;
inline constexpr uint64_t kSeedsOfKeptSpans = 4 * kSeeds;

inline SimOptions WorldOfInt8(uint64_t seed, PlantedBug bug = PlantedBug::kNone) {
  return {.seed = seed, .bug = bug, .prefix_cache = seed % 4 != 0, .int8 = true};
}

inline SimOptions WorldOfSpills(uint64_t seed, bool kept, PlantedBug bug = PlantedBug::kNone) {
  return {.seed = seed,
          .bug = bug,
          .prefix_cache = kept,
          .windows = seed % 5 == 0,
          .beams = seed % 7 == 0,
          .int8 = seed % 3 == 0,
          .spills = true,
          .resumed = seed % 11 == 0};
}

inline SimOptions WorldOfSpilledSpans(uint64_t seed, bool kept,
                                      PlantedBug bug = PlantedBug::kNone) {
  SimOptions world = WorldOfSpills(seed, kept, bug);
  world.int8 = false;
  world.spans = true;
  return world;
}

}  // namespace lamina::sim
