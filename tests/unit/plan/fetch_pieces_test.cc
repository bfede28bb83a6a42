// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "plan/activation_part.h"
#include "plan/slot_kinds.h"

namespace lamina::plan {
namespace {

constexpr AttentionDescriptor kLayer = {.query_heads = 9, .kv_heads = 3, .head_dim = 64};
constexpr uint64_t kSlotBytes = 2 * 64 * 2;  // K and V of one head.
constexpr uint32_t kWidth = 200;             // An activation has so many elements.

std::vector<FetchPiece> Pieces(const std::vector<FetchRun>& runs, uint64_t slots_of_window) {
  std::vector<FetchPiece> pieces;
  PiecesOf(kLayer, runs, {.window_bytes = slots_of_window * kSlotBytes, .activation_width = kWidth},
           pieces);
  return pieces;
}

std::vector<FetchPiece> PiecesOfHeads(uint32_t heads, const std::vector<FetchRun>& runs,
                                      uint64_t slots_of_window) {
  std::vector<FetchPiece> pieces;
  PiecesOf(kLayer, runs, {.window_bytes = slots_of_window * kSlotBytes, .heads = heads}, pieces);
  return pieces;
}

TEST(FetchPiecesTest, RunsBeginWithATile) {
  EXPECT_EQ((FetchRun{.before = 0, .tokens = 1}).slots(), 16u);
  EXPECT_EQ((FetchRun{.before = 15, .tokens = 1}).slots(), 16u);
  EXPECT_EQ((FetchRun{.before = 16, .tokens = 1}).slots(), 32u);
}

TEST(FetchPiecesTest, AsManyHeadsAsFit) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1}, {.before = 10, .tokens = 6}};
  EXPECT_THAT(Pieces(runs, 3 * 64),
              testing::ElementsAre(FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 64}));
  EXPECT_THAT(Pieces(runs, 3 * 64 - 1),
              testing::ElementsAre(FetchPiece{.heads = {0, 2}, .runs_end = 2, .slots = 64},
                                   FetchPiece{.heads = {2, 1}, .runs_end = 2, .slots = 64}));
}

TEST(FetchPiecesTest, OneHeadOfSomeRunsWhereAllDoNotFit) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1}, {.before = 10, .tokens = 6}};
  const std::vector<FetchPiece> pieces = Pieces(runs, 63);
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[2], (FetchPiece{.heads = {1, 1}, .runs_end = 1, .slots = 48}));
  EXPECT_EQ(pieces[3], (FetchPiece{.heads = {1, 1}, .first_run = 1, .runs_end = 2, .slots = 16}));
}

TEST(FetchPiecesTest, HeadsThatAreFixedComeTogether) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1}, {.before = 10, .tokens = 6}};
  EXPECT_THAT(PiecesOfHeads(2, runs, 1000),
              testing::ElementsAre(FetchPiece{.heads = {0, 2}, .runs_end = 2, .slots = 64},
                                   FetchPiece{.heads = {2, 1}, .runs_end = 2, .slots = 64}));
  EXPECT_THAT(PiecesOfHeads(100, runs, 3 * 64),
              testing::ElementsAre(FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 64}));
  // Runs that do not fit together come one after the other.
  EXPECT_THAT(PiecesOfHeads(100, runs, 3 * 64 - 1),
              testing::ElementsAre(
                  FetchPiece{.heads = {0, 3}, .runs_end = 1, .slots = 48},
                  FetchPiece{.heads = {0, 3}, .first_run = 1, .runs_end = 2, .slots = 16}));
  EXPECT_EQ(PiecesOfHeads(1, runs, 1000).size(), 3u);
}

TEST(FetchPiecesTest, NothingToFetchIsNoPiece) { EXPECT_TRUE(Pieces({}, 1000).empty()); }

// Every (head, run) is in one piece, in order, and every piece fits.
TEST(FetchPiecesTest, AnyRunsAreCoveredOnce) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Prng random(seed);
    const auto heads = static_cast<uint32_t>(random() % 5);
    std::vector<FetchRun> runs(1 + random() % 12);
    uint64_t longest = 0;
    for (FetchRun& run : runs) {
      run = {.before = static_cast<uint32_t>(random() % 700),
             .tokens = static_cast<uint32_t>(1 + random() % 20)};
      longest = std::max<uint64_t>(longest, run.slots());
    }
    const uint64_t window = longest * std::clamp(heads, 1u, kLayer.kv_heads) + random() % 8000;
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (const FetchPiece& piece : PiecesOfHeads(heads, runs, window)) {
      uint64_t slots = 0;
      for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
        slots += runs[run].slots();
        for (uint32_t head = 0; head < piece.heads.count; ++head) {
          EXPECT_TRUE(seen.emplace(piece.heads.first + head, run).second) << "seed " << seed;
        }
      }
      EXPECT_EQ(piece.slots, slots);
      EXPECT_LE(slots * piece.heads.count, window) << "seed " << seed;
      if (heads > 0) {
        const uint32_t rest = kLayer.kv_heads - piece.heads.first;
        EXPECT_EQ(piece.heads.count, std::min(heads, rest)) << "seed " << seed;
      }
    }
    EXPECT_EQ(seen.size(), runs.size() * kLayer.kv_heads) << "seed " << seed;
  }
}

// 64 tokens of a head: 2 * 64 bytes of INT8 and 8 of scales each.
constexpr uint64_t kInt8Bytes = 2 * 64 + 8;

std::vector<FetchPiece> Int8Pieces(const std::vector<FetchRun>& runs, uint64_t window_bytes) {
  std::vector<FetchPiece> pieces;
  PiecesOf(kLayer, runs, {.window_bytes = window_bytes, .int8 = true}, pieces);
  return pieces;
}

TEST(FetchPiecesTest, Int8RunsHaveClosedBlocksAndAnOpenOne) {
  const FetchRun row{.before = 63, .tokens = 1};
  EXPECT_EQ(row.int8_fetched(), 0u);
  EXPECT_EQ(row.int8_slots(), 0u);
  EXPECT_EQ(row.tail_fetched(), 63u);
  EXPECT_EQ(row.tail_slots(), 64u);
  const FetchRun behind{.before = 64, .tokens = 1};
  EXPECT_EQ(behind.int8_fetched(), 64u);
  EXPECT_EQ(behind.int8_slots(), 64u);
  EXPECT_EQ(behind.tail_fetched(), 0u);
  EXPECT_EQ(behind.tail_slots(), 16u);
  // Rows that fill a block and go on: the block is INT8 for those behind it.
  const FetchRun over{.before = 100, .tokens = 30};
  EXPECT_EQ(over.int8_fetched(), 64u);
  EXPECT_EQ(over.int8_slots(), 128u);
  EXPECT_EQ(over.tail_fetched(), 36u);
  EXPECT_EQ(over.tail_slots(), 64u);
}

TEST(FetchPiecesTest, Int8PiecesFitByTheirBytes) {
  const std::vector<FetchRun> runs = {{.before = 200, .tokens = 1}, {.before = 70, .tokens = 1}};
  const uint64_t head = (192 + 64) * kInt8Bytes + (16 + 16) * kSlotBytes;
  EXPECT_THAT(
      Int8Pieces(runs, 3 * head),
      testing::ElementsAre(FetchPiece{
          .heads = {0, 3}, .runs_end = 2, .slots = 32, .int8_slots = 256, .scale_slots = 256}));
  const std::vector<FetchPiece> pieces = Int8Pieces(runs, head - 1);
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(
      pieces[2],
      (FetchPiece{
          .heads = {1, 1}, .runs_end = 1, .slots = 16, .int8_slots = 192, .scale_slots = 192}));
  const FetchPlanes planes = PlanesOf(pieces[2], 64);
  EXPECT_EQ(planes.int8_v, 192u * 64);
  EXPECT_EQ(planes.k_scales, 2u * 192 * 64);
  EXPECT_EQ(planes.v_scales, 192u * (2 * 64 + 4));
  EXPECT_EQ(planes.k, 192 * kInt8Bytes);
  EXPECT_EQ(planes.end, 192 * kInt8Bytes + 16 * kSlotBytes);
}

// Whole blocks that the compute node makes have the first slots of each head.
TEST(FetchPiecesTest, Int8BlocksThatAreMadeDoNotCome) {
  const FetchRun half{.before = 200, .tokens = 1, .kept = 128};
  EXPECT_EQ(half.int8_fetched(), 64u);
  EXPECT_EQ(half.scales_fetched(), 64u);
  EXPECT_EQ(half.int8_slots(), 192u);
  EXPECT_EQ(half.tail_fetched(), 8u);
  EXPECT_EQ(half.tail_slots(), 16u);
  const FetchRun all{.before = 70, .tokens = 1, .kept = 64};
  EXPECT_EQ(all.int8_fetched(), 0u);
  EXPECT_EQ(all.tail_fetched(), 6u);
  // Windows are as large as without.
  const uint64_t head = (192 + 64) * kInt8Bytes + (16 + 16) * kSlotBytes;
  EXPECT_THAT(Int8Pieces({half, all}, 3 * head),
              testing::ElementsAre(FetchPiece{.heads = {0, 3},
                                              .runs_end = 2,
                                              .slots = 32,
                                              .filled = 192,
                                              .int8_slots = 256,
                                              .scale_slots = 256,
                                              .filled_scales = 192}));
  EXPECT_EQ(Int8Pieces({half, all}, 3 * head - 1).size(), 2u);
}

// Chosen tokens that the compute node keeps have slots of their own, behind which the others come,
// and the open block is its own then.
TEST(FetchPiecesTest, Int8TokensThatAreKeptDoNotCome) {
  const FetchRun some{.before = 60,
                      .tokens = 1,
                      .kept = 30,
                      .chosen = true,
                      .chosen_closed = 30,
                      .chosen_blocks = 2,
                      .kept_blocks = 1,
                      .kept_open = 10};
  EXPECT_EQ(some.fetched(), 30u);
  EXPECT_EQ(some.tail_fetched(), 0u);
  EXPECT_EQ(some.filled_slots(), 32u);  // 20 tokens.
  EXPECT_EQ(some.int8_slots(), 64u);
  EXPECT_EQ(some.scales_fetched(), 128u);
  EXPECT_EQ(some.filled_scales(), 64u);
  EXPECT_EQ(some.scale_slots(), 192u);
  EXPECT_EQ(some.tail_slots(), 16u);
  EXPECT_EQ(some.filled_open(), 16u);
  const FetchRun open{.before = 16, .tokens = 1, .kept = 16, .chosen = true, .kept_open = 16};
  EXPECT_EQ(open.int8_slots() + open.scale_slots(), 0u);
  EXPECT_EQ(open.filled_open(), 32u);
  const FetchRun none{
      .before = 20, .tokens = 1, .chosen = true, .chosen_closed = 4, .chosen_blocks = 1};
  EXPECT_EQ(none.filled_slots() + none.filled_scales() + none.filled_open(), 0u);
  const uint64_t head = (64 + 16) * (2 * 64 + 4) + (192 + 64) * 4 + (16 + 32 + 32) * kSlotBytes;
  const FetchPiece piece{.heads = {0, 3},
                         .runs_end = 3,
                         .slots = 80,
                         .filled = 32,
                         .int8_slots = 80,
                         .scale_slots = 256,
                         .filled_scales = 64,
                         .filled_open = 48};
  EXPECT_THAT(Int8Pieces({some, open, none}, 3 * head), testing::ElementsAre(piece));
  EXPECT_EQ(FilledBytes(piece, 64, KvForm::kInt8),
            3u * (32 * (2 * 64 + 4) + 64 * 4 + 48 * kSlotBytes));
  EXPECT_EQ(FilledBytes({.heads = {0, 3}, .slots = 80, .filled = 32}, 64, KvForm::kBF16),
            3u * 32 * kSlotBytes);
}

// A window for the longest sequence has room for its tokens however many of them are kept.
TEST(FetchPiecesTest, Int8TokensThatAreKeptTakeNoLargerWindow) {
  constexpr uint32_t kTokens = 700;
  const FetchRun longest{.before = kTokens, .tokens = kInt8BlockTokens};
  for (uint32_t before = 1; before < kTokens; ++before) {
    const uint32_t closed = Int8TokensOf(before);
    for (uint32_t kept_blocks = 0; kept_blocks <= closed / kInt8BlockTokens; ++kept_blocks) {
      // They have all tokens but one of each block.
      const uint32_t kept = kept_blocks * (kInt8BlockTokens - 1);
      const uint32_t come = closed - kept_blocks * kInt8BlockTokens;
      const FetchRun run{.before = before - kept_blocks,
                         .tokens = 1,
                         .kept = kept + before - closed,
                         .chosen = true,
                         .chosen_closed = come,
                         .chosen_blocks = come / kInt8BlockTokens,
                         .kept_blocks = kept_blocks,
                         .kept_open = before - closed};
      ASSERT_LE(run.int8_slots(), longest.int8_slots()) << before;
      ASSERT_LE(run.scale_slots(), longest.scale_slots()) << before;
      ASSERT_LE(run.tail_slots(), longest.tail_slots()) << before;
    }
  }
}

// Chosen tokens lie one behind the other, and each block that has some brings its scales.
TEST(FetchPiecesTest, Int8PiecesOfChosenTokensHaveSlotsForTheseAndScalesForTheirBlocks) {
  const std::vector<FetchRun> runs = {
      {.before = 50, .tokens = 1, .chosen = true, .chosen_closed = 20, .chosen_blocks = 3},
      {.before = 7, .tokens = 1, .chosen = true},
      {.before = 130, .tokens = 4}};
  EXPECT_EQ(runs[0].int8_slots(), 32u);
  EXPECT_EQ(runs[0].scale_slots(), 192u);
  EXPECT_EQ(runs[0].tail_fetched(), 30u);
  EXPECT_EQ(runs[0].tail_slots(), 32u);
  EXPECT_EQ(runs[1].int8_slots() + runs[1].scale_slots(), 0u);
  const uint64_t head = (32 + 128) * (2 * 64 + 4) + (192 + 128) * 4 + (32 + 16 + 16) * kSlotBytes;
  const FetchPiece piece{
      .heads = {0, 3}, .runs_end = 3, .slots = 64, .int8_slots = 160, .scale_slots = 320};
  EXPECT_THAT(Int8Pieces(runs, 3 * head), testing::ElementsAre(piece));
  EXPECT_EQ(Int8Pieces(runs, 3 * head - 1).size(), 2u);
  const FetchPlanes planes = PlanesOf(piece, 64);
  EXPECT_EQ(planes.v_scales - planes.k_scales, 3u * 320 * 4);
  EXPECT_EQ(planes.k - planes.v_scales, 3u * 160 * 4);
  EXPECT_EQ(planes.end, 3 * head);
}

TEST(FetchPiecesTest, ActivationsGoAheadOfAllHeadsOfTheirRuns) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1, .recomputed = 32},
                                      {.before = 10, .tokens = 6}};
  EXPECT_THAT(
      Pieces(runs, 3 * 64),
      testing::ElementsAre(FetchPiece{.runs_end = 2, .recomputed = 32},
                           FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 64, .filled = 32}));
  // Runs without activations have none ahead of them.
  EXPECT_THAT(Pieces(runs, 3 * 63),
              testing::ElementsAre(
                  FetchPiece{.runs_end = 1, .recomputed = 32},
                  FetchPiece{.heads = {0, 3}, .runs_end = 1, .slots = 48, .filled = 32},
                  FetchPiece{.heads = {0, 3}, .first_run = 1, .runs_end = 2, .slots = 16}));
}

// Activations that are on the compute node do not come, and their tokens have slots all the same.
TEST(FetchPiecesTest, TokensThatAreMadeAgainFromWhatIsHereLeaveSlotsInAllHeads) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1, .remade = 32},
                                      {.before = 10, .tokens = 6}};
  EXPECT_THAT(
      Pieces(runs, 3 * 64),
      testing::ElementsAre(FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 64, .filled = 32}));
  const std::vector<FetchRun> both = {{.before = 40, .tokens = 1, .recomputed = 16, .remade = 16},
                                      {.before = 20, .tokens = 1, .remade = 20}};
  EXPECT_THAT(
      Pieces(both, 3 * 80),
      testing::ElementsAre(FetchPiece{.runs_end = 2, .recomputed = 16},
                           FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 80, .filled = 64}));
}

TEST(FetchPiecesTest, RunsThatAreRecomputedWholeHaveNoSlotsOfTheirOwn) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1, .recomputed = 40},
                                      {.before = 47, .tokens = 2, .recomputed = 47}};
  EXPECT_THAT(Pieces(runs, 3 * 112),
              testing::ElementsAre(
                  FetchPiece{.runs_end = 2, .recomputed = 87},
                  FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 112, .filled = 112}));
  // Runs of both kinds share a piece.
  const std::vector<FetchRun> mixed = {runs[0], {.before = 10, .tokens = 6}};
  EXPECT_THAT(
      Pieces(mixed, 3 * 64),
      testing::ElementsAre(FetchPiece{.runs_end = 2, .recomputed = 40},
                           FetchPiece{.heads = {0, 3}, .runs_end = 2, .slots = 64, .filled = 48}));
}

// Nothing goes ahead of tokens that the compute node keeps, and heads come as they fit.
TEST(FetchPiecesTest, TokensThatAreKeptLeaveSlotsInFrontOfThoseThatCome) {
  const std::vector<FetchRun> runs = {{.before = 40, .tokens = 1, .kept = 20},
                                      {.before = 10, .tokens = 6}};
  EXPECT_EQ(runs[0].fetched(), 20u);
  EXPECT_THAT(
      Pieces(runs, 2 * 80),
      testing::ElementsAre(FetchPiece{.heads = {0, 2}, .runs_end = 2, .slots = 80, .filled = 32},
                           FetchPiece{.heads = {2, 1}, .runs_end = 2, .slots = 80, .filled = 32}));
  EXPECT_THAT(Pieces(runs, 79), testing::Contains(FetchPiece{
                                    .heads = {2, 1}, .runs_end = 1, .slots = 64, .filled = 32}));
}

// Every run is in one piece with all heads, behind one with its activations; both fit.
TEST(FetchPiecesTest, AnyRunsThatRecomputeAreCoveredOnce) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Prng random(seed);
    const auto share = static_cast<uint32_t>(random() % (kRecomputeUnit + 1));
    const auto width = static_cast<uint32_t>(16 + random() % 1000);
    std::vector<FetchRun> runs(1 + random() % 12);
    uint64_t longest = 0;
    for (FetchRun& run : runs) {
      run = {.before = static_cast<uint32_t>(16 + random() % 700),
             .tokens = static_cast<uint32_t>(1 + random() % 20)};
      run.recomputed = run.before * share / kRecomputeUnit;
      longest = std::max<uint64_t>(longest, run.filled_slots() + run.slots());
    }
    const uint64_t window =
        longest * std::max<uint64_t>(kLayer.kv_heads * kSlotBytes, 2 * width) + random() % 90000;
    std::vector<FetchPiece> pieces;
    PiecesOf(kLayer, runs, {.window_bytes = window, .activation_width = width}, pieces);
    uint64_t recomputed = 0;
    for (const FetchRun& run : runs) {
      recomputed += run.recomputed;
    }
    if (recomputed == 0) {
      continue;
    }
    uint32_t next = 0;
    uint32_t ahead = 0;  // Activations that have come.
    for (const FetchPiece& piece : pieces) {
      EXPECT_EQ(piece.first_run, next);
      if (piece.activations()) {
        EXPECT_EQ(ahead, 0u);
        ahead = piece.recomputed;
        EXPECT_LE(uint64_t{ahead} * width * 2, window) << "seed " << seed;
        continue;
      }
      uint32_t slots = 0;
      uint32_t tokens = 0;
      for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
        slots += runs[run].filled_slots();
        tokens += runs[run].recomputed;
      }
      EXPECT_EQ(piece.filled, slots) << "seed " << seed;
      EXPECT_EQ(ahead, tokens) << "seed " << seed;
      EXPECT_EQ(piece.heads, (HeadRange{.count = 3}));
      EXPECT_LE(piece.slots * kLayer.kv_heads * kSlotBytes, window) << "seed " << seed;
      next = piece.runs_end;
      ahead = 0;
    }
    EXPECT_EQ(next, runs.size()) << "seed " << seed;
  }
}

EpochConfig Fetching() {
  return {.lanes = 2,
          .sequence_tokens_max = 1000,
          .layers = {kLayer},
          .compute_nodes = {"c0"},
          .attention_paths = {AttentionPath::kFetch},
          .fetch_bytes = 8 * 1008 * kSlotBytes,
          .memory_nodes = {"m0", "m1"}};
}

TEST(CheckFetchTest, OneHeadOfTheLongestSequenceFitsIntoAWindow) {
  EpochConfig config = Fetching();
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  EXPECT_EQ(FetchWindowBytes(config), 1008 * kSlotBytes);
  config.fetch_bytes -= 8;
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::AllOf(testing::HasSubstr("8 windows"),
                             testing::HasSubstr("one KV head of 1000 tokens takes 252.0 KiB"),
                             testing::HasSubstr("at least 2.0 MiB")));
}

TEST(CheckFetchTest, OneHeadOfASpanFitsIntoAWindowWhereSequencesAreCut) {
  EpochConfig config = Fetching();
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  config.fetch_bytes = 8 * 256 * kSlotBytes;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.fetch_bytes -= 8;
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::HasSubstr("one KV head of 256 tokens takes 64.0 KiB"));
}

// All heads of a span, and its activations.
TEST(CheckFetchTest, WithActivationsAllHeadsOfASpanFit) {
  EpochConfig config = Fetching();
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  config.activation_width = kWidth;
  config.attention_paths = {AttentionPath::kRecompute, AttentionPath::kFetch};
  config.fetch_bytes = 3 * 8 * 256 * kSlotBytes;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.fetch_bytes -= 8;
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::HasSubstr("K and V, or the activations, of 256 tokens in a layer take"));
  config.attention_paths = {AttentionPath::kHybrid};
  config.activation_share = SlotKinds::kUnit / 2;
  config.fetch_bytes = 3 * 8 * (256 + kFetchTile) * kSlotBytes;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.fetch_bytes -= 8;
  EXPECT_FALSE(CheckFetch(config).ok());
}

TEST(CheckFetchTest, HeadsThatAreFixedFitIntoAWindow) {
  EpochConfig config = Fetching();
  config.fetch_heads = 2;
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::AllOf(testing::HasSubstr("fetch.heads 2 of 1000 tokens take 504.0 KiB"),
                             testing::HasSubstr("at least 3.9 MiB"),
                             testing::HasSubstr("lower limits.sequence_tokens_max, fetch.heads")));
  config.fetch_bytes *= 2;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.fetch_heads = 100;  // All three.
  EXPECT_FALSE(CheckFetch(config).ok());
  config.fetch_bytes = config.fetch_bytes / 2 * 3;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
}

TEST(CheckFetchTest, WithActivationsAllHeadsFitAndTheActivations) {
  EpochConfig config = Fetching();
  config.activation_width = kWidth;
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::HasSubstr("K and V, or the activations, of 1000 tokens in a layer take"));
  config.fetch_bytes *= 3;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.activation_width = 3 * 128 + 1;
  EXPECT_FALSE(CheckFetch(config).ok());
}

TEST(CheckFetchTest, KindsOfSlotsAreAShareOfActivations) {
  EpochConfig config = Fetching();
  config.activation_width = kWidth;
  config.fetch_bytes = 3 * 8 * (1008 + kFetchTile) * kSlotBytes;
  config.activation_share = SlotKinds::kUnit;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.resident_tokens = 100;  // Windows are as large.
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.activation_share = 0;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("nor slots that hold activations"));
  config.activation_share = SlotKinds::kUnit;
  config.fetch_bytes -= 8;
  EXPECT_FALSE(CheckFetch(config).ok());
  config.fetch_bytes += 8;
  ++config.activation_share;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("in 1025 of 1024 slots"));
  config.activation_share = 1;
  config.activation_width = 0;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("activations of 0 elements"));
}

TEST(CheckFetchTest, KAndVFromTokenNumbersAreOfPathRecompute) {
  EpochConfig config = Fetching();
  config.made_tokens_max = 64;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("serves with path recompute"));
  config.attention_paths = {AttentionPath::kFetch, AttentionPath::kRecompute};
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.made_tokens_max = 65;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("not a multiple of 16"));
  config.made_tokens_max = 64;
  config.fetch_bytes *= 3;
  config.activation_width = kWidth;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("without activations"));
  config.activation_width = 0;
  config.int8_tails = 1;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.int8_tails = 0;
  config.attention_paths = {AttentionPath::kSparse};
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("serves with path recompute"));
}

TEST(CheckFetchTest, WhatIsNotServedIsRefused) {
  EpochConfig config = Fetching();
  config.compute_nodes.push_back("c1");
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("to 2 compute nodes"));
  config = Fetching();
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.attention_paths = {AttentionPath::kFetch, AttentionPath::kStreaming};
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("has spans of sequences"));
  config.attention_paths = {AttentionPath::kSparse, AttentionPath::kRemote};
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.attention_paths = {AttentionPath::kFetch, AttentionPath::kRemote};
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.attention_paths.Add(AttentionPath::kRecompute);
  config.made_tokens_max = 64;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config = Fetching();
  config.fetch_bytes *= 3;
  config.activation_width = kWidth;
  config.partition = Partition::kHead;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.activation_width = 2;  // There are three heads.
  EXPECT_THAT(CheckFetch(config).ToString(),
              testing::HasSubstr("spreads activations of 2 elements over memory nodes"));
  config.attention_paths = {AttentionPath::kRemote};
  EXPECT_TRUE(CheckFetch(config).ok());
  EXPECT_EQ(FetchWindowBytes(config), 0u);
  config = Fetching();
  config.fetch_bytes *= 3;
  config.attention_paths = {AttentionPath::kRemote, AttentionPath::kRecompute};
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("has path recompute, and slots"));
  config.activation_width = kWidth;
  EXPECT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  config.activation_share = 1;
  EXPECT_THAT(CheckFetch(config).ToString(), testing::HasSubstr("has path recompute, and slots"));
}

TEST(ActivationPartTest, PartsFollowTheHeadsAndAreAllOfIt) {
  for (const uint32_t width : {3u, 40u, 200u, 576u, 4096u}) {
    for (const std::vector<uint32_t>& counts :
         std::vector<std::vector<uint32_t>>{{3}, {1, 2}, {2, 1}, {1, 1, 1}}) {
      uint32_t next = 0;
      for (const HeadRange& heads : ConsecutiveRanges(counts)) {
        const ActivationPart part = ActivationPartOf(width, heads, 3);
        EXPECT_EQ(part.first, next);
        EXPECT_GE(part.count, width / 3 * heads.count);
        EXPECT_LE(part.count, (width + 2) / 3 * heads.count);
        next += part.count;
      }
      EXPECT_EQ(next, width);
    }
  }
}

// K and V that are made again go to pieces of both nodes, which have one head and two of three.
TEST(FetchPiecesTest, WhereHeadsAreSpreadPiecesAreOfTheSameRuns) {
  EpochConfig config = Fetching();
  config.fetch_bytes *= 3;
  config.activation_width = kWidth;
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  ASSERT_TRUE(CheckFetch(config).ok()) << CheckFetch(config);
  const FetchLimits limits = FetchLimitsOf(config);
  EXPECT_EQ(limits.heads_most, 2u);
  EXPECT_EQ(limits.activation_width, 134u);
  size_t pieces_most = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng random(seed);
    std::vector<FetchRun> runs(1 + random.Below(8));
    for (FetchRun& run : runs) {
      run = {.before = static_cast<uint32_t>(random.Below(1000)), .tokens = 1};
      run.recomputed = static_cast<uint32_t>(random.Below(run.before + 1));
    }
    std::vector<FetchPiece> pieces[2];
    for (uint32_t node = 0; node < 2; ++node) {
      PiecesOf(PartOf(kLayer, config.heads[node]), runs, limits, pieces[node]);
    }
    const bool makes = std::any_of(runs.begin(), runs.end(),
                                   [](const FetchRun& run) { return run.recomputed > 0; });
    if (!makes) {
      continue;  // Then each has as many pieces as it needs.
    }
    ASSERT_EQ(pieces[0].size(), pieces[1].size()) << "seed " << seed;
    pieces_most = std::max(pieces_most, pieces[0].size());
    for (size_t i = 0; i < pieces[0].size(); ++i) {
      FetchPiece of_one_head = pieces[1][i];
      of_one_head.heads.count = std::min(of_one_head.heads.count, 1u);
      EXPECT_EQ(pieces[0][i], of_one_head) << "seed " << seed << " piece " << i;
      for (uint32_t node = 0; node < 2; ++node) {
        const ActivationPart part = ActivationPartOf(config, node);
        EXPECT_LE(PieceBytes(pieces[node][i], kLayer.head_dim, part.count), limits.window_bytes);
      }
    }
  }
  EXPECT_GT(pieces_most, 2u);
}

}  // namespace
}  // namespace lamina::plan
