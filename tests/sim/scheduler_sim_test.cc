// SPDX-License-Identifier: Apache-2.0
//
// Some 17,300 worlds of a dozen kinds, hundreds of seeds of each: every client sees exactly its
// tokens, every slot has one owner, everything ends. On a failure the message names the seed to
// replay; the test's options say which words go with it. night.py runs many more of them.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/kinds_of_worlds.h"
#include "tests/sim/sim_world.h"
#include "tests/support/source_path.h"

namespace lamina::sim {
namespace {

constexpr uint64_t kSeedsOfBeams = 334;

std::string HowToReplay(uint64_t seed, const SimReport& report) {
  std::string text = absl::StrCat("seed ", seed, ": ", report.failure,
                                  "\nreplay: bin/scheduler_sim_replay ", seed, "\n");
  for (const std::string& line : report.trace) {
    absl::StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

TEST(SchedulerSimTest, EveryClientSeesItsTokensAndEverythingEnds) {
  constexpr uint64_t kPlainSeeds = 600;
  SimReach reach;
  uint64_t events = 0;
  for (uint64_t seed = 1; seed <= kPlainSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed}).Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
    events += report.events;
  }
  std::cout << kPlainSeeds << " seeds, " << events << " events: " << reach.ToString() << "\n";

  EXPECT_GT(reach.tokens, 10'000);
  EXPECT_GT(reach.scores, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.left_without_row, 100);
  EXPECT_GT(reach.reservations_revoked, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.forks_unshared, 100);
  EXPECT_GT(reach.rows_discarded, 100);
  EXPECT_GT(reach.rows_sat_out, 100);
  EXPECT_GT(reach.leave_only_plans, 100);
  EXPECT_GT(reach.chunks_with_rows, 100);
  EXPECT_GT(reach.several_prompts_in_a_step, 100);
  EXPECT_GT(reach.rows_in_chunks, 100);
  EXPECT_GT(reach.heads_in_chunks, 100);
  EXPECT_GT(reach.epochs, 100);
  EXPECT_GT(reach.requeued, 100);
  EXPECT_GT(reach.nodes_drained, 20);
  EXPECT_GT(reach.nodes_added, 20);
  EXPECT_GT(reach.ended_too_long, 0);
  EXPECT_GT(reach.ended_by_losses, 20);
  EXPECT_GT(reach.queue_full, 100);
  EXPECT_GT(reach.refused, 100);
  EXPECT_GT(reach.cancels, 100);
  EXPECT_GT(reach.lane_moves, 100);
  EXPECT_GT(reach.chunks_dedicated, 1000);
  EXPECT_GT(reach.chunks_with_lanes, 1000);
  EXPECT_GT(reach.prefill_nodes_side_by_side, 100);
  EXPECT_GT(reach.chunks_on_several_nodes, 100);
  EXPECT_GT(reach.prefill_lanes_side_by_side, 100);
  EXPECT_GT(reach.preempted_in_prefill, 100);
  EXPECT_GT(reach.tokens_waited, 1000);
}

// K and V outlive their sequences: none is ever read that was made of other tokens.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereKvIsKept) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed, .prefix_cache = true}).Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.tokens_kept, 10'000);
  EXPECT_GT(reach.open_blocks_kept, 20);
  EXPECT_GT(reach.blocks_dropped, 1000);
  EXPECT_GT(reach.blocks_outlived, 100);
  EXPECT_GT(reach.prompts_in_rows, 1000);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.epochs, 100);
}

// K and V are INT8: there are never more sequences on nodes than tails, and nobody shares a block
// that is not full.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereKvIsInt8) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimReport report = SimWorld(WorldOfInt8(seed)).Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.tokens_kept, 1000);
  EXPECT_GT(reach.open_blocks_kept, 20) << "tails that outlive epochs";
  EXPECT_GT(reach.blocks_outlived, 20);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.epochs, 100);
  EXPECT_EQ(reach.forks_shared, 0);
}

// K and V go to spill tiers that are small and fail at times, and come back.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereKvIsSpilled) {
  for (const bool kept : {false, true}) {
    const uint64_t seeds = kept ? kSeedsOfCopies : 1000;
    SimReach reach;
    SimReach of_int8;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      const SimOptions world = WorldOfSpills(seed, kept);
      const SimReport report = SimWorld(world).Run();
      ASSERT_EQ(report.failure, "") << "kept " << kept << " " << HowToReplay(seed, report);
      reach.Add(report.reach);
      if (world.int8) {
        of_int8.Add(report.reach);
      }
    }
    std::cout << seeds << " seeds: " << reach.ToString() << "\nof INT8: " << of_int8.ToString()
              << "\n";

    EXPECT_GT(reach.spilled, 1000);
    EXPECT_GT(reach.restored, 500);
    EXPECT_GT(reach.read_ahead, 10);
    EXPECT_GT(of_int8.spilled, 0);
    EXPECT_GT(of_int8.restored, 0);
    if (kept) {
      EXPECT_GT(reach.copied, 2000);
      EXPECT_GT(reach.copies_read, 200);
      EXPECT_GT(reach.copies_read_in_part, 0);
      EXPECT_GT(of_int8.copied, 0);
      EXPECT_GT(of_int8.copies_read, 0);
    }
    EXPECT_GT(reach.spills_failed, 100);
    EXPECT_GT(reach.resumed, 100);
    EXPECT_GT(reach.preemptions, reach.spilled + 100) << "some are recomputed";
    EXPECT_GT(reach.epochs, 100);
    EXPECT_GT(reach.cancels, 100);
  }
}

// Sequences that are cut go to the tiers of all nodes that have spans of them, or to none, and come
// back to the same nodes.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereSpansAreSpilled) {
  for (const bool kept : {false, true}) {
    SimReach reach;
    for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
      const SimReport report = SimWorld(WorldOfSpilledSpans(seed, kept)).Run();
      ASSERT_EQ(report.failure, "") << "kept " << kept << " " << HowToReplay(seed, report);
      reach.Add(report.reach);
    }
    std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";

    EXPECT_GT(reach.spilled, 100);
    EXPECT_GT(reach.spilled_apart, 20);
    EXPECT_GT(reach.restored, 50);
    EXPECT_GT(reach.spills_failed, 20);
    EXPECT_EQ(reach.copied, 0) << "blocks of spans are not copied";
    EXPECT_GT(reach.preemptions, reach.spilled + 100) << "some are recomputed";
    EXPECT_GT(reach.epochs, 1000);
    EXPECT_GT(reach.cancels, 100);
  }
}

// Slots behind windows come free while their sequences run, and sequences grow beyond all slots.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereEveryLayerHasAWindow) {
  for (const bool kept : {false, true}) {
    SimReach reach;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const SimReport report =
          SimWorld({.seed = seed, .prefix_cache = kept, .windows = true}).Run();
      ASSERT_EQ(report.failure, "") << "kept " << kept << " " << HowToReplay(seed, report);
      reach.Add(report.reach);
    }
    std::cout << kSeeds << " seeds: " << reach.ToString() << "\n";

    EXPECT_GT(reach.releases, 10'000);
    EXPECT_GT(reach.releases_beyond_nodes, 100);
    EXPECT_GT(reach.preemptions, 100);
    EXPECT_GT(reach.forks_shared, 100);
    EXPECT_GT(reach.epochs, 100);
    EXPECT_GT(reach.prompts_in_rows, 100);
    EXPECT_EQ(reach.tokens_kept > 1000, kept);
  }
}

// Each answer of a beam search is that of the same search without a scheduler.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereBeamsAreSearched) {
  for (const bool kept : {false, true}) {
    for (const bool windows : {false, true}) {
      SimReach reach;
      for (uint64_t seed = 1; seed <= kSeedsOfBeams; ++seed) {
        const SimReport report =
            SimWorld({.seed = seed, .prefix_cache = kept, .windows = windows, .beams = true}).Run();
        ASSERT_EQ(report.failure, "")
            << "kept " << kept << " windows " << windows << " " << HowToReplay(seed, report);
        reach.Add(report.reach);
      }
      std::cout << kSeedsOfBeams << " seeds: " << reach.ToString() << "\n";

      EXPECT_GT(reach.beam_answers, 1000);
      EXPECT_GT(reach.beams_shared, 10'000);
      EXPECT_GT(reach.beams_queued, 100);
      EXPECT_GT(reach.beams_behind_prefill, 1000);
      EXPECT_GT(reach.preemptions, 100);
      EXPECT_GT(reach.epochs, 100);
      EXPECT_GT(reach.cancels, 100);
    }
  }
}

// With INT8 beams share closed blocks, and compute the open one again.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereBeamsAreSearchedInInt8) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= kSeedsOfBeams; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 4 > 1,
                                       .windows = seed % 2 != 0,
                                       .beams = true,
                                       .int8 = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << kSeedsOfBeams << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.beam_answers, 1000);
  EXPECT_GT(reach.beams_shared, 10'000);
  EXPECT_GT(reach.beams_queued, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.epochs, 100);
}

// Epochs prepare four paths: no step ever has sequences of two, no request waits for ever for a
// lane of its path, and whose activations are asked for has them.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereRequestsChooseTheirPath) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 5 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 2 == 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .int8 = seed % 11 == 0,
                                       .paths = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 5 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.path_changes, 1000);
  EXPECT_GT(reach.paths_side_by_side, 1000);
  EXPECT_GT(reach.fetch_placed, 100);
  EXPECT_GT(reach.placed_moved, 50);
  EXPECT_GT(reach.lossy_joins, 1000);
  EXPECT_GT(reach.bare_joins, 500);
  EXPECT_GT(reach.tokens_kept, 1000);
  EXPECT_GT(reach.lane_moves, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.beams_shared, 1000);
  EXPECT_GT(reach.epochs, 100);
}

// Memory nodes have slots of path hybrid alone: all sequences of the path, and no others, are
// there, and no request waits for ever for a lane of its path or for slots.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereHybridHasSlotsOfItsOwn) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 2 == 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .hybrid = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.path_changes, 1000);
  EXPECT_GT(reach.paths_side_by_side, 500);
  EXPECT_GT(reach.tokens_kept, 500);
  EXPECT_GT(reach.lane_moves, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.beams_shared, 500);
  EXPECT_GT(reach.epochs, 100);
}

// Memory nodes have slots of two forms: all slots of a sequence are of its form, those of INT8 have
// tails and share closed blocks alone, and no request waits for ever for a lane or slots of its
// form.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereRequestsChooseTheFormOfKv) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 2 == 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .forms = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.path_changes, 1000);
  EXPECT_GT(reach.paths_side_by_side, 1000);
  EXPECT_GT(reach.tokens_kept, 1000);
  EXPECT_GT(reach.blocks_outlived, 100);
  EXPECT_GT(reach.lane_moves, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.beams_shared, 1000);
  EXPECT_GT(reach.epochs, 100);
  EXPECT_GT(reach.nodes_added, 20);
}

// One pool: replicas keep K and V of their own lanes, come and go. No sequence ever runs where its
// K and V are not, and none waits for ever for a lane there.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereReplicasKeepKv) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 3 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 2 == 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .int8 = seed % 11 == 0,
                                       .spills = seed % 9 == 0,
                                       .pool = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 3 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.homes_changed, 1000);
  EXPECT_GT(reach.replicas_side_by_side, 10'000);
  EXPECT_GT(reach.lane_moves, 100);
  EXPECT_GT(reach.tokens_kept, 1000);
  EXPECT_GT(reach.blocks_outlived, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.requeued, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.beams_shared, 1000);
  EXPECT_GT(reach.restored, 10);
  EXPECT_GT(reach.epochs, 100);
  EXPECT_GT(reach.nodes_added, 20);
}

// Sequences are cut over memory nodes, where others find the blocks of their spans. Of one that
// loses some the others keep what they have, also behind tokens that are missing: no row ever reads
// a slot that was lost, or that was made of other tokens.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereSequencesAreCut) {
  for (const bool kept : {false, true}) {
    SimReach reach;
    const uint64_t seeds = kept ? kSeedsOfKeptSpans : kSeeds;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      const SimReport report = SimWorld({.seed = seed,
                                         .prefix_cache = kept,
                                         .windows = seed % 5 == 0,
                                         .beams = seed % 7 == 0,
                                         .spans = true})
                                   .Run();
      ASSERT_EQ(report.failure, "") << "kept " << kept << " " << HowToReplay(seed, report);
      reach.Add(report.reach);
    }
    std::cout << seeds << " seeds: " << reach.ToString() << "\n";

    EXPECT_EQ(reach.tokens_kept > 20'000, kept);
    EXPECT_EQ(reach.kept_behind_holes > 2000, kept);
    EXPECT_EQ(reach.blocks_dropped > 1000, kept);
    EXPECT_EQ(reach.blocks_outlived > 100, kept);
    EXPECT_GT(reach.preemptions, 100);
    EXPECT_GT(reach.requeued, 1000);
    EXPECT_GT(reach.forks_shared, 100);
    EXPECT_GT(reach.epochs, 1000);
    EXPECT_GT(reach.cancels, 100);
  }
}

// Cut sequences in INT8 have a tail on each node: closed blocks are kept, and found, and no row
// reads one that was not whole.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereCutSequencesAreInt8) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 4 != 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .int8 = true,
                                       .spans = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.tokens_kept, 500);
  EXPECT_GT(reach.kept_behind_holes, 50);
  EXPECT_GT(reach.blocks_outlived, 20);
  EXPECT_GT(reach.beams_shared, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.requeued, 100);
  EXPECT_GT(reach.epochs, 500);
  EXPECT_EQ(reach.forks_shared, 0);
}

// Cut sequences have paths: activations that are asked for are there, also of parts that were kept
// behind tokens that are missing, and those that stay are of tokens that the sequence computes.
TEST(SchedulerSimTest, EveryClientSeesItsTokensWhereCutSequencesHavePaths) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = seed % 4 != 0,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .paths = true,
                                       .spans = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << 2 * kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.path_changes, 500);
  EXPECT_GT(reach.fetch_placed, 20);
  EXPECT_GT(reach.bare_joins, 20);
  EXPECT_GT(reach.kept_behind_holes, 100);
  EXPECT_GT(reach.tokens_kept, 500);
  EXPECT_GT(reach.epochs, 500);
}

// Requests have salts: no row reads what was stored for a request with another one, be it in slots,
// read back from a tier, kept over an epoch's end or on another replica.
TEST(SchedulerSimTest, EveryClientSeesItsTokensAndFindsWhatItsSaltHasKept) {
  SimReach reach;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimReport report = SimWorld({.seed = seed,
                                       .prefix_cache = true,
                                       .windows = seed % 5 == 0,
                                       .beams = seed % 7 == 0,
                                       .int8 = seed % 3 == 0,
                                       .spills = seed % 4 < 2,
                                       .pool = seed % 11 == 0,
                                       .salts = true})
                                 .Run();
    ASSERT_EQ(report.failure, "") << HowToReplay(seed, report);
    reach.Add(report.reach);
  }
  std::cout << kSeeds << " seeds: " << reach.ToString() << "\n";

  EXPECT_GT(reach.tokens_kept, 1000);
  EXPECT_GT(reach.reads_of_others, 1000);
  EXPECT_GT(reach.blocks_outlived, 100);
  EXPECT_GT(reach.preemptions, 100);
  EXPECT_GT(reach.forks_shared, 100);
  EXPECT_GT(reach.beams_shared, 100);
  EXPECT_GT(reach.copied, 20);
  EXPECT_GT(reach.copies_read, 0);
  EXPECT_GT(reach.epochs, 100);
}

TEST(SchedulerSimTest, SeedsThatOnceFailedPass) {
  std::ifstream file(test_support::SourcePath("tests/sim/regression_seeds.txt"));
  ASSERT_TRUE(file.is_open());
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    SimOptions options;
    if (line.empty() || line[0] == '#' || !(words >> options.seed)) {
      continue;
    }
    const std::map<std::string, bool*> known = {
        {"kept", &options.prefix_cache}, {"windows", &options.windows},
        {"beams", &options.beams},       {"int8", &options.int8},
        {"paths", &options.paths},       {"pool", &options.pool},
        {"forms", &options.forms},       {"spans", &options.spans},
        {"spills", &options.spills},     {"salts", &options.salts},
        {"resumed", &options.resumed},   {"hybrid", &options.hybrid}};
    for (std::string word; words >> word && known.contains(word);) {
      *known.at(word) = true;
    }
    const SimReport report = SimWorld(options).Run();
    EXPECT_EQ(report.failure, "") << line << " " << HowToReplay(options.seed, report);
  }
}

TEST(SchedulerSimTest, SameSeedGivesSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(SimWorld({.seed = seed}).Run().trace_hash, SimWorld({.seed = seed}).Run().trace_hash);
  }
  EXPECT_NE(SimWorld({.seed = 1}).Run().trace_hash, SimWorld({.seed = 2}).Run().trace_hash);
}

}  // namespace
}  // namespace lamina::sim
