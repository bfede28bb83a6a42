// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/row_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

constexpr cost::LinkCosts kSlow{
    .seconds_per_row = 80e-6, .seconds_per_message = 10e-6, .measured = true};
constexpr cost::LinkCosts kFast{
    .seconds_per_row = 1e-6, .seconds_per_message = 1e-6, .measured = true};
constexpr RowChunkWork kWork{
    .rows = 16, .rows_of_node = 16, .attention_seconds = 1.5e-3, .slice_seconds = 1e-3};

RowChunkWork WorkOf(uint32_t rows) {
  RowChunkWork work = kWork;
  work.rows = rows;
  work.rows_of_node = rows;
  return work;
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
  EXPECT_THAT(slow.why, ::testing::HasSubstr("1.28 ms of link against 1.50 ms of attention"));
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, WorkOf(1)).cut.chunks, 1u);
  RowChunkWork spread = kWork;
  spread.rows_of_node = 4;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, kSlow, spread).cut.chunks, 4u);
}

TEST(RowChunksTest, AutoCutsHeadsWhereRowsAreFew) {
  cost::LinkCosts link = kSlow;
  link.seconds_per_row = 1e-3;
  link.kv_heads = 3;
  const RowChunkCount one = ChooseRowChunks({.automatic = true}, link, WorkOf(1));
  EXPECT_EQ(one.cut, (plan::Chunking{.chunks = 3, .by_heads = true}));
  EXPECT_EQ(
      one.why,
      "3 chunks of KV heads: 1 row, 1.00 ms of link against 1.50 ms of attention and 1.00 ms of "
      "slice a layer");
  EXPECT_TRUE(ChooseRowChunks({.automatic = true}, link, WorkOf(2)).cut.by_heads);
  EXPECT_FALSE(ChooseRowChunks({.automatic = true}, link, WorkOf(3)).cut.by_heads);
  link.threads = 2;  // One row has work for both in chunks of two heads, and of three there is one.
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, link, WorkOf(1)).cut.chunks, 1u);
  link.kv_heads = 8;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, link, WorkOf(1)).cut.chunks, 4u);
  // Few rows on a fast link go in one, whatever heads there are.
  cost::LinkCosts fast = kFast;
  fast.kv_heads = 8;
  EXPECT_EQ(ChooseRowChunks({.automatic = true}, fast, WorkOf(1)).cut, plan::Chunking());
}

TEST(RowChunksTest, QueriesGoFirstWhereTheLinkIsSlowUnlessSaidOtherwise) {
  const auto first = [](QueryFirst query_first, const cost::LinkCosts& link) {
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
  cost::LinkCosts costly = kSlow;
  costly.seconds_per_message = 40e-6;
  const uint32_t cheap = ChooseRowChunks({.automatic = true}, kSlow, kWork).cut.chunks;
  EXPECT_LT(ChooseRowChunks({.automatic = true}, costly, kWork).cut.chunks, cheap);
}

}  // namespace
}  // namespace lamina::core
