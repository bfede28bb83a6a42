// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/row_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

constexpr LinkCosts kSlow{.seconds_per_row = 80e-6, .seconds_per_message = 10e-6, .measured = true};
constexpr LinkCosts kFast{.seconds_per_row = 1e-6, .seconds_per_message = 1e-6, .measured = true};
constexpr RowChunkWork kWork{
    .rows = 16, .rows_of_node = 16, .attention_seconds = 1.5e-3, .slice_seconds = 1e-3};

RowChunkWork WorkOf(uint32_t rows) {
  RowChunkWork work = kWork;
  work.rows = rows;
  work.rows_of_node = rows;
  return work;
}

TEST(RowChunksTest, TheirValuesGrowAndTheLastIsTheUnits) {
  for (uint32_t pieces = 1; pieces <= plan::kRowChunksMax; ++pieces) {
    uint64_t before = 0;
    for (uint64_t unit = 1; unit < 5; ++unit) {
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        const uint64_t value = plan::PieceValue(unit * plan::kRowChunksMax, piece, pieces);
        EXPECT_GT(value, before);
        EXPECT_EQ(plan::UnitOf(value), unit);
        EXPECT_EQ(plan::PiecesHere(value, pieces), piece + 1);
        before = value;
      }
      EXPECT_EQ(before, unit * plan::kRowChunksMax);
    }
  }
}

TEST(RowChunksTest, CoverAllRowsAndNoneIsEmpty) {
  for (uint32_t rows = 0; rows < 40; ++rows) {
    for (uint32_t planned = 0; planned < 40; ++planned) {
      for (const bool query_first : {false, true}) {
        const plan::RowPieces pieces =
            plan::PiecesOf({.chunks = planned, .query_first = query_first}, rows, /*kv_heads=*/3);
        EXPECT_EQ(pieces.query_first, query_first && rows > 0);
        EXPECT_LE(pieces.count(), plan::kRowChunksMax);
        EXPECT_LE(pieces.chunks, std::max(1u, rows));
        EXPECT_EQ(pieces.head_groups(), 1u);
        ASSERT_GE(pieces.chunks, 1u);
        uint32_t next = 0;
        for (uint32_t chunk = 0; chunk < pieces.chunks; ++chunk) {
          EXPECT_EQ(pieces.FirstRow(chunk), next);
          EXPECT_TRUE(rows == 0 || pieces.RowsEnd(chunk) > next);
          EXPECT_EQ(pieces.Heads(chunk), (HeadRange{.count = 3}));
          next = pieces.RowsEnd(chunk);
        }
        EXPECT_EQ(next, rows);
      }
    }
  }
}

TEST(RowChunksTest, OfHeadsHaveAllRowsAndEveryHeadOnce) {
  for (uint32_t kv_heads = 1; kv_heads < 40; ++kv_heads) {
    for (uint32_t planned = 0; planned < 40; ++planned) {
      for (const bool query_first : {false, true}) {
        const plan::Chunking cut = {
            .chunks = planned, .by_heads = true, .query_first = query_first};
        const plan::RowPieces pieces = plan::PiecesOf(cut, /*rows=*/2, kv_heads);
        EXPECT_LE(pieces.count(), plan::kRowChunksMax);
        EXPECT_EQ(pieces.head_groups(), pieces.chunks);
        uint32_t next = 0;
        for (uint32_t chunk = 0; chunk < pieces.chunks; ++chunk) {
          EXPECT_EQ(pieces.FirstRow(chunk), 0u);
          EXPECT_EQ(pieces.RowsEnd(chunk), 2u);
          EXPECT_EQ(pieces.Heads(chunk).first, next);
          EXPECT_GT(pieces.Heads(chunk).count, 0u);
          next += pieces.Heads(chunk).count;
        }
        EXPECT_EQ(next, kv_heads);
        // Prompts alone.
        EXPECT_EQ(plan::PiecesOf(cut, /*rows=*/0, kv_heads).head_groups(), 1u);
        EXPECT_EQ(plan::PiecesOf(cut, /*rows=*/0, kv_heads).Heads(0),
                  (HeadRange{.count = kv_heads}));
      }
    }
  }
}

TEST(RowChunksTest, TheConfiguredNumberIsTakenAsItIs) {
  EXPECT_EQ(ChooseRowChunks({.chunks = 5}, {}, {}).cut.chunks, 5u);
  EXPECT_EQ(ChooseRowChunks({.chunks = 5}, kFast, kWork).cut.chunks, 5u);
}

TEST(RowChunksTest, TheConfiguredNumberIsOfHeadsWhereTheseGiveMoreThanRows) {
  const auto choose = [](uint32_t rows, uint32_t kv_heads, uint32_t threads = 1) {
    return ChooseRowChunks({.chunks = 4}, {.kv_heads = kv_heads, .threads = threads}, WorkOf(rows));
  };
  EXPECT_TRUE(choose(1, 3).cut.by_heads);
  EXPECT_EQ(choose(1, 3).why, "3 of KV heads, 4 as configured");
  EXPECT_EQ(choose(1, 8, 4).cut.chunks, 2u);
  EXPECT_TRUE(choose(2, 3).cut.by_heads);
  EXPECT_FALSE(choose(3, 3).cut.by_heads);  // As many rows.
  EXPECT_TRUE(choose(3, 8).cut.by_heads);
  EXPECT_FALSE(choose(4, 8).cut.by_heads);  // Rows are enough.
  EXPECT_FALSE(choose(1, 1).cut.by_heads);
  EXPECT_FALSE(choose(0, 8).cut.by_heads);
  // Each chunk has work for all threads.
  EXPECT_TRUE(choose(1, 8, 4).cut.by_heads);
  EXPECT_FALSE(choose(1, 8, 5).cut.by_heads);
  EXPECT_FALSE(choose(3, 8, 8).cut.by_heads);
}

TEST(RowChunksTest, AutoIsOneBeforeAnythingIsMeasuredAndOnFastLinks) {
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, {}, kWork).cut.chunks, 1u);
  EXPECT_EQ(
      ChooseRowChunks({.automatic = true}, kSlow, {.rows = 16, .rows_of_node = 16}).cut.chunks, 1u);
  const RowChunkCount fast = ChooseRowChunks({.automatic = true}, kFast, kWork);
  EXPECT_EQ(fast.cut.chunks, 1u);
  EXPECT_THAT(fast.why, ::testing::HasSubstr("0.02 ms of link"));
}

TEST(RowChunksTest, AutoCutsWhereTheLinkTakesLongAndNeverFinerThanRows) {
  const RowChunkCount slow = ChooseRowChunks({.automatic = true}, kSlow, kWork);
  EXPECT_GE(slow.cut.chunks, 8u);
  EXPECT_THAT(slow.why, ::testing::HasSubstr("1.28 ms of link beside 1.50 ms of attention"));
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, WorkOf(1)).cut.chunks, 1u);
  RowChunkWork spread = kWork;
  spread.rows_of_node = 4;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, spread).cut.chunks, 4u);
}

TEST(RowChunksTest, AutoCutsHeadsWhereRowsAreFew) {
  LinkCosts link = kSlow;
  link.seconds_per_row = 1e-3;
  link.kv_heads = 3;
  const RowChunkCount one = ChooseRowChunks({.automatic = true}, link, WorkOf(1));
  EXPECT_EQ(one.cut, (plan::Chunking{.chunks = 3, .by_heads = true}));
  EXPECT_EQ(
      one.why,
      "3 chunks of KV heads: 1 row, 1.00 ms of link beside 1.50 ms of attention and 1.00 ms of "
      "slice a layer");
  EXPECT_TRUE(ChooseRowChunks({.automatic = true}, link, WorkOf(2)).cut.by_heads);
  EXPECT_FALSE(ChooseRowChunks({.automatic = true}, link, WorkOf(3)).cut.by_heads);
  link.threads = 2;  // One row has work for both in chunks of two heads, and of three there is one.
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, link, WorkOf(1)).cut.chunks, 1u);
  link.kv_heads = 8;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, link, WorkOf(1)).cut.chunks, 4u);
  // Few rows on a fast link go in one, whatever heads there are.
  LinkCosts fast = kFast;
  fast.kv_heads = 8;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, fast, WorkOf(1)).cut, plan::Chunking());
}

TEST(RowChunksTest, QueriesGoFirstWhereTheLinkIsSlowUnlessSaidOtherwise) {
  const auto first = [](QueryFirst query_first, const LinkCosts& link) {
    const RowChunkCount fixed =
        ChooseRowChunks({.chunks = 3, .query_first = query_first}, link, kWork);
    const RowChunkCount automatic =
        ChooseRowChunks({.automatic = true, .query_first = query_first}, link, kWork);
    EXPECT_EQ(fixed.cut.query_first, automatic.cut.query_first);
    EXPECT_EQ(fixed.why.ends_with("queries first"), fixed.cut.query_first) << fixed.why;
    return fixed.cut.query_first;
  };
  EXPECT_TRUE(first(QueryFirst::kAuto, kSlow));
  EXPECT_FALSE(first(QueryFirst::kAuto, kFast));
  EXPECT_FALSE(first(QueryFirst::kAuto, {}));
  EXPECT_TRUE(first(QueryFirst::kAlways, kFast));
  EXPECT_FALSE(first(QueryFirst::kNever, kSlow));
}

TEST(RowChunksTest, AutoCutsLessWhereMessagesCostMore) {
  LinkCosts costly = kSlow;
  costly.seconds_per_message = 40e-6;
  const uint32_t cheap = ChooseRowChunks({.automatic = true}, kSlow, kWork).cut.chunks;
  EXPECT_LT(ChooseRowChunks({.automatic = true}, costly, kWork).cut.chunks, cheap);
}

}  // namespace
}  // namespace lamina::core
