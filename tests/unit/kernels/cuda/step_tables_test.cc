// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/step_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/partial.h"

namespace lamina::kernels::cuda {
namespace {

constexpr StepCut kCut = {.tile_rows = 32};

CudaAttentionOptions Options(uint32_t group, uint32_t window = 0) {
  return {.descriptor = {.query_heads = group, .kv_heads = 1, .head_dim = 64, .window = window},
          .query_rows_max = 1000,
          .partials_max = 1000,
          .extents_max = 1000};
}

TEST(StepTablesTest, UnitsNameWhereTheirBlockBegins) {
  const std::vector<Extent> extents = {{1000, 200}, {0, 0}, {50, 300}, {2000, 100}};
  StepTables tables;

  ASSERT_TRUE(
      FillStepTables(Options(1), kCut, {{.extents = extents, .first_position = 599}}, tables).ok());

  ASSERT_EQ(tables.units.size(), 3u);
  const std::vector<PlacedExtent> placed = {{1000, 0}, {0, 200}, {50, 200}, {2000, 500}};
  EXPECT_EQ(tables.extents, placed);
  EXPECT_EQ(tables.units[0].extent, 0u);
  EXPECT_EQ(tables.units[0].extents, 3u);
  EXPECT_EQ(tables.units[1].extent, 2u);
  EXPECT_EQ(tables.units[1].extents, 2u);
  EXPECT_EQ(tables.units[1].first_token, 256u);
  EXPECT_EQ(tables.units[1].first_slot, kScattered);
  EXPECT_EQ(tables.units[2].extent, 3u);
  EXPECT_EQ(tables.units[2].extents, 1u);
  EXPECT_EQ(tables.units[2].first_token, 512u);
  EXPECT_EQ(tables.units[2].first_slot, 2012u);
  EXPECT_EQ(tables.units[2].tokens, 88u);
  EXPECT_EQ(tables.rows[0].blocks, 3u);
}

TEST(StepTablesTest, TilesAreAsLargeAsTheDeviceTakes) {
  struct Case {
    uint32_t tile_rows;
    size_t units;
    uint32_t rows_max;
  };
  const std::vector<Extent> extents = {{0, 100}};
  for (const Case& c : {Case{32, 5, 30}, Case{64, 3, 63}, Case{16, 10, 15}, Case{3, 50, 3}}) {
    StepTables tables;
    ASSERT_TRUE(FillStepTables(Options(3), {.tile_rows = c.tile_rows},
                               {{.extents = extents, .query_tokens = 50}}, tables)
                    .ok());
    EXPECT_EQ(tables.units.size(), c.units);
    EXPECT_EQ(tables.tile_rows_max, c.rows_max);
  }
}

TEST(StepTablesTest, ItemsOfManyRowsAreCutIntoRuns) {
  const std::vector<Extent> extents = {{0, 2000}};
  const StepCut cut = {.tile_rows = 32, .run_rows = 128, .run_log2 = 2};
  StepTables tables;

  // 50 query tokens up to token 1,949, 33 rows and more of which take runs, then one by itself.
  ASSERT_TRUE(FillStepTables(Options(3), cut,
                             {{.extents = extents, .first_position = 1900, .query_tokens = 50},
                              {.extents = extents, .first_position = 700}},
                             tables)
                  .ok());

  // Tiles of 42 and 8 query tokens, each with blocks 0 to 3 and 4 to 7.
  ASSERT_EQ(tables.run_units, 4u);
  ASSERT_EQ(tables.units.size(), 4u + 3u);
  EXPECT_EQ(tables.units[0].query_tokens, 1u) << "units of runs come last";
  EXPECT_EQ(tables.units[3].block, 0u);
  EXPECT_EQ(tables.units[3].tokens, 1024u);
  EXPECT_EQ(tables.units[4].block, 4u);
  EXPECT_EQ(tables.units[4].tokens, 976u);
  EXPECT_EQ(tables.rows[0].blocks, 2u);
  EXPECT_EQ(tables.rows[50].blocks, 3u);
  EXPECT_EQ(tables.partials, 50u * 2 + 3);
  EXPECT_EQ(tables.tile_rows_max, 3u);
}

TEST(StepTablesTest, AWindowBeginsInsideARun) {
  const std::vector<Extent> extents = {{0, 2000}};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1, 600), {.tile_rows = 16, .run_rows = 128, .run_log2 = 2},
                             {{.extents = extents, .first_position = 1900, .query_tokens = 50}},
                             tables)
                  .ok());

  // The first query token sees tokens from 1,301 on, in block 5.
  ASSERT_EQ(tables.run_units, 1u);
  EXPECT_EQ(tables.units[0].block, 5u);
  EXPECT_EQ(tables.units[0].tokens, 2000u - 5 * 256);
  EXPECT_EQ(tables.rows[0].first_block, 1u);
  EXPECT_EQ(tables.rows[0].blocks, 1u);
}

TEST(StepTablesTest, RunsAreAsLongAsThereIsWorkForAll) {
  const StepCut cut = {.tile_rows = 64, .run_rows = 128, .run_log2 = 3};
  const std::vector<StepItem> one = {{.first_position = 8000, .query_tokens = 128}};
  const std::vector<StepItem> many(64, one.front());
  CudaAttentionOptions options = Options(4);
  EXPECT_EQ(RunLog2Of(options, cut, one, /*multiprocessors=*/1), 3u);
  EXPECT_EQ(RunLog2Of(options, cut, one, /*multiprocessors=*/132), 0u);
  EXPECT_EQ(RunLog2Of(options, cut, many, /*multiprocessors=*/132), 3u);
  EXPECT_EQ(RunLog2Of(options, {.tile_rows = 64}, many, /*multiprocessors=*/132), 0u);
}

// Tiles and runs name rows of q, past those that are left out; rows know how many these are.
TEST(StepTablesTest, RowsThatAreLeftOutHaveNoPlaceInTheTables) {
  const std::vector<Extent> extents = {{0, 300}};
  const StepCut cut = {.tile_rows = 2, .run_rows = 4, .run_log2 = 0};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1), cut,
                             {{.extents = extents, .query_tokens = 2},
                              {.extents = extents, .query_tokens = 5, .left_out = 3},
                              {.extents = extents, .left_out = 10}},
                             tables)
                  .ok());

  // The second item has runs, of a tile of four query tokens and one of the last.
  ASSERT_EQ(tables.run_units, 2u);
  ASSERT_EQ(tables.units.size(), 4u);
  EXPECT_EQ(tables.units[0].row, 0u);
  EXPECT_EQ(tables.units[1].row, 20u);
  EXPECT_EQ(tables.units[2].row, 5u);
  EXPECT_EQ(tables.units[3].row, 9u);
  ASSERT_EQ(tables.rows.size(), 8u);
  for (const uint32_t row : {0u, 1u, 2u, 6u, 7u}) {
    EXPECT_EQ(tables.rows[row].left_out, row < 2 ? 0u : row < 7 ? 3u : 13u) << row;
  }
}

TEST(StepTablesTest, HiddenBlocksHaveNoUnits) {
  const std::vector<Extent> extents = {{0, 2000}};
  StepTables tables;

  ASSERT_TRUE(
      FillStepTables(Options(1, 300), kCut, {{.extents = extents, .first_position = 1999}}, tables)
          .ok());

  EXPECT_EQ(tables.units.size(), 2u);
  EXPECT_EQ(tables.rows[0].first_block, 6u);
}

TEST(StepTablesTest, TokensOfAnotherHolderAreNotSeen) {
  const std::vector<Extent> extents = {{0, 512}};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1), kCut,
                             {{.extents = extents, .held_token = 256, .first_position = 9000},
                              {.extents = extents, .held_token = 256, .first_position = 100}},
                             tables)
                  .ok());

  EXPECT_EQ(tables.units.size(), 2u);
  EXPECT_EQ(tables.rows[0].blocks, 2u);
  EXPECT_EQ(tables.rows[1].blocks, 0u) << "that query comes before all tokens held here";
  EXPECT_TRUE(EntriesOf(tables.rows[1]).empty());
}

TEST(StepTablesTest, AWindowMayHideAllThatIsHeld) {
  const std::vector<Extent> extents = {{0, 300}};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1, 50), kCut,
                             {{.extents = extents, .held_token = 256, .first_position = 5000}},
                             tables)
                  .ok());

  EXPECT_TRUE(tables.units.empty());
  ASSERT_EQ(tables.rows.size(), 1u);
  EXPECT_EQ(tables.rows[0].blocks, 0u);
}

TEST(StepTablesTest, EntriesAreThoseOfThePartialStack) {
  const float out[16] = {};
  for (uint32_t first = 0; first < 20; ++first) {
    for (uint32_t blocks = 0; blocks < 40; ++blocks) {
      PartialStack stack(16);
      for (uint32_t i = 0; i < blocks; ++i) {
        stack.Push(first + i, 1, out, 0.0f);
      }

      const std::vector<StackEntry> entries =
          EntriesOf({.held_block = first, .first_block = first, .blocks = blocks});

      ASSERT_EQ(entries.size(), stack.size());
      for (size_t i = 0; i < entries.size(); ++i) {
        EXPECT_EQ(entries[i].first_block, stack.entry(i).first_block);
        EXPECT_EQ(entries[i].blocks, stack.entry(i).blocks);
      }
    }
  }
}

}  // namespace
}  // namespace lamina::kernels::cuda
