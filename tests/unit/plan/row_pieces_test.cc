// SPDX-License-Identifier: Apache-2.0
#include "plan/row_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lamina::plan {
namespace {

TEST(RowPiecesTest, TheirValuesGrowAndTheLastIsTheUnits) {
  for (uint32_t pieces = 1; pieces <= kSubBatchesMax; ++pieces) {
    uint64_t before = 0;
    for (uint64_t unit = 1; unit < 5; ++unit) {
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        const uint64_t value = PieceValue(unit * kSubBatchesMax, piece, pieces);
        EXPECT_GT(value, before);
        EXPECT_EQ(UnitOf(value), unit);
        EXPECT_EQ(PiecesHere(value, pieces), piece + 1);
        before = value;
      }
      EXPECT_EQ(before, unit * kSubBatchesMax);
    }
  }
}

TEST(RowPiecesTest, CoverAllRowsAndNoneIsEmpty) {
  for (uint32_t rows = 0; rows < 40; ++rows) {
    for (uint32_t planned = 0; planned < 40; ++planned) {
      for (const bool query_first : {false, true}) {
        const RowPieces pieces =
            PiecesOf({.chunks = planned, .query_first = query_first}, rows, /*kv_heads=*/3);
        EXPECT_EQ(pieces.query_first, query_first && rows > 0);
        EXPECT_LE(pieces.count(), kSubBatchesMax);
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

TEST(RowPiecesTest, OfHeadsHaveAllRowsAndEveryHeadOnce) {
  for (uint32_t kv_heads = 1; kv_heads < 40; ++kv_heads) {
    for (uint32_t planned = 0; planned < 40; ++planned) {
      for (const bool query_first : {false, true}) {
        const Chunking cut = {.chunks = planned, .by_heads = true, .query_first = query_first};
        const RowPieces pieces = PiecesOf(cut, /*rows=*/2, kv_heads);
        EXPECT_LE(pieces.count(), kSubBatchesMax);
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
        // The step has prompts alone.
        EXPECT_EQ(PiecesOf(cut, /*rows=*/0, kv_heads).head_groups(), 1u);
        EXPECT_EQ(PiecesOf(cut, /*rows=*/0, kv_heads).Heads(0), (HeadRange{.count = kv_heads}));
      }
    }
  }
}

}  // namespace
}  // namespace lamina::plan
