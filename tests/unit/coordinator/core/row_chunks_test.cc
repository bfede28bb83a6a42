// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/row_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

constexpr LinkCosts kSlow{.seconds_per_row = 80e-6, .seconds_per_message = 10e-6, .measured = true};
constexpr LinkCosts kFast{.seconds_per_row = 1e-6, .seconds_per_message = 1e-6, .measured = true};
constexpr RowChunkWork kWork{.rows = 16, .attention_seconds = 1.5e-3, .slice_seconds = 1e-3};

TEST(RowChunksTest, TheirValuesGrowAndTheLastIsTheUnits) {
  for (uint32_t pieces = 1; pieces <= kRowChunksMax; ++pieces) {
    uint64_t before = 0;
    for (uint64_t unit = 1; unit < 5; ++unit) {
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        const uint64_t value = PieceValue(unit * kRowChunksMax, piece, pieces);
        EXPECT_GT(value, before);
        EXPECT_EQ(UnitOf(value), unit);
        EXPECT_EQ(PiecesHere(value, pieces), piece + 1);
        before = value;
      }
      EXPECT_EQ(before, unit * kRowChunksMax);
    }
  }
}

TEST(RowChunksTest, CoverAllRowsAndNoneIsEmpty) {
  for (uint32_t rows = 0; rows < 40; ++rows) {
    for (uint32_t planned = 0; planned < 40; ++planned) {
      for (const bool query_first : {false, true}) {
        const RowPieces pieces = PiecesOf(planned, query_first, rows);
        EXPECT_EQ(pieces.query_first, query_first && rows > 0);
        EXPECT_LE(pieces.count(), kRowChunksMax);
        EXPECT_LE(pieces.chunks, std::max(1u, rows));
      }
      const uint32_t chunks = PiecesOf(planned, false, rows).chunks;
      ASSERT_GE(chunks, 1u);
      EXPECT_EQ(FirstRowOf(0, chunks, rows), 0u);
      EXPECT_EQ(FirstRowOf(chunks, chunks, rows), rows);
      for (uint32_t chunk = 0; rows > 0 && chunk < chunks; ++chunk) {
        EXPECT_LT(FirstRowOf(chunk, chunks, rows), FirstRowOf(chunk + 1, chunks, rows));
      }
    }
  }
}

TEST(RowChunksTest, TheConfiguredNumberIsTakenAsItIs) {
  EXPECT_EQ(ChooseRowChunks({.chunks = 5}, {}, {}).chunks, 5u);
  EXPECT_EQ(ChooseRowChunks({.chunks = 5}, kFast, kWork).chunks, 5u);
}

TEST(RowChunksTest, AutoIsOneBeforeAnythingIsMeasuredAndOnFastLinks) {
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, {}, kWork).chunks, 1u);
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, {.rows = 16}).chunks, 1u);
  const RowChunkCount fast = ChooseRowChunks({.automatic = true}, kFast, kWork);
  EXPECT_EQ(fast.chunks, 1u);
  EXPECT_THAT(fast.why, ::testing::HasSubstr("0.02 ms of link"));
}

TEST(RowChunksTest, AutoCutsWhereTheLinkTakesLongAndNeverFinerThanRows) {
  const RowChunkCount slow = ChooseRowChunks({.automatic = true}, kSlow, kWork);
  EXPECT_GE(slow.chunks, 8u);
  EXPECT_THAT(slow.why, ::testing::HasSubstr("1.28 ms of link beside 1.50 ms of attention"));
  RowChunkWork few = kWork;
  few.rows = 1;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, few).chunks, 1u);
}

TEST(RowChunksTest, QueriesGoFirstWhereTheLinkIsSlowUnlessSaidOtherwise) {
  const auto first = [](QueryFirst query_first, const LinkCosts& link) {
    const RowChunkCount fixed =
        ChooseRowChunks({.chunks = 3, .query_first = query_first}, link, kWork);
    const RowChunkCount automatic =
        ChooseRowChunks({.automatic = true, .query_first = query_first}, link, kWork);
    EXPECT_EQ(fixed.query_first, automatic.query_first);
    EXPECT_EQ(fixed.why.ends_with("queries first"), fixed.query_first) << fixed.why;
    return fixed.query_first;
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
  const uint32_t cheap = ChooseRowChunks({.automatic = true}, kSlow, kWork).chunks;
  EXPECT_LT(ChooseRowChunks({.automatic = true}, costly, kWork).chunks, cheap);
}

}  // namespace
}  // namespace lamina::core
