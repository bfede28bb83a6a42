// SPDX-License-Identifier: Apache-2.0
//
// Replays one seed of the scheduler's simulation: `scheduler_sim_replay SEED [COUNT]` runs COUNT
// seeds from SEED on and stops at the first that fails, with its last events. The hash of all plans
// at the end says whether two versions of the scheduler plan alike. Words behind them choose the
// kind of world, any of them together that its fields allow, each by its field of SimOptions
// (sim_world.h): `kept` is prefix_cache; `windows`, `beams`, `int8`, `spills`, `paths`, `pool`,
// `forms`, `hybrid`, `spans`, `salts` and `resumed` are those of their names.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tests/sim/sim_world.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0]
              << " SEED [COUNT [kept] [windows] [beams] [int8] [spills] [paths] [pool] [forms] "
                 "[hybrid] [spans] [salts] [resumed]]\n";
    return 2;
  }
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto asks = [&](std::string_view word) {
    return std::any_of(argv + std::min(argc, 3), argv + argc,
                       [word](const char* argument) { return argument == word; });
  };
  const bool kept = asks("kept");
  const bool windows = asks("windows");
  const bool beams = asks("beams");
  const bool int8 = asks("int8");
  const bool spills = asks("spills");
  const bool paths = asks("paths");
  const bool pool = asks("pool");
  const bool forms = asks("forms");
  const bool hybrid = asks("hybrid");
  const bool spans = asks("spans");
  const bool salts = asks("salts");
  const bool resumed = asks("resumed");
  lamina::sim::SimReach reach;
  lamina::sim::PlanHash hash;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const lamina::sim::SimReport report = lamina::sim::SimWorld({.seed = seed,
                                                                 .prefix_cache = kept,
                                                                 .windows = windows,
                                                                 .beams = beams,
                                                                 .int8 = int8,
                                                                 .spills = spills,
                                                                 .paths = paths,
                                                                 .pool = pool,
                                                                 .forms = forms,
                                                                 .hybrid = hybrid,
                                                                 .spans = spans,
                                                                 .salts = salts,
                                                                 .resumed = resumed})
                                              .Run();
    reach.Add(report.reach);
    hash.Add(report.plan_hash);
    if (!report.failure.empty() || count == 1) {
      for (const std::string& line : report.trace) {
        std::cout << line << "\n";
      }
      std::cout << "seed " << seed << " trace hash " << report.trace_hash << " events "
                << report.events << ": " << (report.failure.empty() ? "passed" : report.failure)
                << "\n";
    }
    if (!report.failure.empty()) {
      return 1;
    }
  }
  std::cout << count << " seeds passed: " << reach.ToString() << "\nplan hash " << hash.value()
            << "\n";
  return 0;
}
