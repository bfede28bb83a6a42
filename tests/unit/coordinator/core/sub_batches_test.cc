// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/sub_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

constexpr cost::LinkCosts kSlow{
    .seconds_per_row = 80e-6, .seconds_per_message = 10e-6, .measured = true};
constexpr cost::LinkCosts kFast{
    .seconds_per_row = 1e-6, .seconds_per_message = 1e-6, .measured = true};
constexpr SubBatchWork kWork{
    .rows = 16, .rows_of_node = 16, .attention_seconds = 1.5e-3, .slice_seconds = 1e-3};

SubBatchWork WorkOf(uint32_t rows) {
  SubBatchWork work = kWork;
  work.rows = rows;
  work.rows_of_node = rows;
  return work;
}

TEST(SubBatchesTest, TheConfiguredNumberIsTakenAsItIs) {
  EXPECT_EQ(ChooseSubBatches({.chunks = 5}, {}, {}).cut.chunks, 5u);
  EXPECT_EQ(ChooseSubBatches({.chunks = 5}, kFast, kWork).cut.chunks, 5u);
}

TEST(SubBatchesTest, TheConfiguredNumberIsOfHeadsWhereTheseGiveMoreThanRows) {
  const auto choose = [](uint32_t rows, uint32_t kv_heads, uint32_t threads = 1) {
    return ChooseSubBatches({.chunks = 4}, {.kv_heads = kv_heads, .threads = threads},
                            WorkOf(rows));
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

TEST(SubBatchesTest, AutoIsOneBeforeAnythingIsMeasuredAndOnFastLinks) {
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, {}, kWork).cut.chunks, 1u);
  EXPECT_EQ(
      ChooseSubBatches({.automatic = true}, kSlow, {.rows = 16, .rows_of_node = 16}).cut.chunks,
      1u);
  const SubBatchCount fast = ChooseSubBatches({.automatic = true}, kFast, kWork);
  EXPECT_EQ(fast.cut.chunks, 1u);
  EXPECT_THAT(fast.why, ::testing::HasSubstr("0.02 ms of link"));
}

TEST(SubBatchesTest, AutoCutsWhereTheLinkTakesLongAndNeverFinerThanRows) {
  const SubBatchCount slow = ChooseSubBatches({.automatic = true}, kSlow, kWork);
  EXPECT_GE(slow.cut.chunks, 8u);
  EXPECT_THAT(slow.why, ::testing::HasSubstr("1.28 ms of link against 1.50 ms of attention"));
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, kSlow, WorkOf(1)).cut.chunks, 1u);
  SubBatchWork spread = kWork;
  spread.rows_of_node = 4;
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, kSlow, spread).cut.chunks, 4u);
}

TEST(SubBatchesTest, AutoCutsHeadsWhereRowsAreFew) {
  cost::LinkCosts link = kSlow;
  link.seconds_per_row = 1e-3;
  link.kv_heads = 3;
  const SubBatchCount one = ChooseSubBatches({.automatic = true}, link, WorkOf(1));
  EXPECT_EQ(one.cut, (plan::Chunking{.chunks = 3, .by_heads = true}));
  EXPECT_EQ(
      one.why,
      "3 chunks of KV heads: 1 row, 1.00 ms of link against 1.50 ms of attention and 1.00 ms of "
      "slice a layer");
  EXPECT_TRUE(ChooseSubBatches({.automatic = true}, link, WorkOf(2)).cut.by_heads);
  EXPECT_FALSE(ChooseSubBatches({.automatic = true}, link, WorkOf(3)).cut.by_heads);
  link.threads = 2;  // One row has work for both in chunks of two heads, and of three there is one.
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, link, WorkOf(1)).cut.chunks, 1u);
  link.kv_heads = 8;
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, link, WorkOf(1)).cut.chunks, 4u);
  // Few rows on a fast link go in one, whatever heads there are.
  cost::LinkCosts fast = kFast;
  fast.kv_heads = 8;
  EXPECT_EQ(ChooseSubBatches({.automatic = true}, fast, WorkOf(1)).cut, plan::Chunking());
}

TEST(SubBatchesTest, QueriesGoFirstWhereTheLinkIsSlowUnlessSaidOtherwise) {
  const auto first = [](QueryFirst query_first, const cost::LinkCosts& link) {
    const SubBatchCount fixed =
        ChooseSubBatches({.chunks = 3, .query_first = query_first}, link, kWork);
    const SubBatchCount automatic =
        ChooseSubBatches({.automatic = true, .query_first = query_first}, link, kWork);
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

TEST(SubBatchesTest, AutoCutsLessWhereMessagesCostMore) {
  cost::LinkCosts costly = kSlow;
  costly.seconds_per_message = 40e-6;
  const uint32_t cheap = ChooseSubBatches({.automatic = true}, kSlow, kWork).cut.chunks;
  EXPECT_LT(ChooseSubBatches({.automatic = true}, costly, kWork).cut.chunks, cheap);
}

}  // namespace
}  // namespace lamina::core
