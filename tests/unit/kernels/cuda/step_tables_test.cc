// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/step_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/partial.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint32_t kTileRows = 32;

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
      FillStepTables(Options(1), kTileRows, {{.extents = extents, .first_position = 599}}, tables)
          .ok());

  ASSERT_EQ(tables.units.size(), 3u);
  EXPECT_EQ(tables.units[0].extent, 0u);
  EXPECT_EQ(tables.units[1].extent, 2u);
  EXPECT_EQ(tables.units[1].extent_skip, 56u);
  EXPECT_EQ(tables.units[2].extent, 3u);
  EXPECT_EQ(tables.units[2].extent_skip, 12u);
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
    ASSERT_TRUE(
        FillStepTables(Options(3), c.tile_rows, {{.extents = extents, .query_tokens = 50}}, tables)
            .ok());
    EXPECT_EQ(tables.units.size(), c.units);
    EXPECT_EQ(tables.tile_rows_max, c.rows_max);
  }
}

TEST(StepTablesTest, HiddenBlocksHaveNoUnits) {
  const std::vector<Extent> extents = {{0, 2000}};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1, 300), kTileRows,
                             {{.extents = extents, .first_position = 1999}}, tables)
                  .ok());

  EXPECT_EQ(tables.units.size(), 2u);
  EXPECT_EQ(tables.rows[0].first_block, 6u);
}

TEST(StepTablesTest, TokensOfAnotherHolderAreNotSeen) {
  const std::vector<Extent> extents = {{0, 512}};
  StepTables tables;

  ASSERT_TRUE(FillStepTables(Options(1), kTileRows,
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

  ASSERT_TRUE(FillStepTables(Options(1, 50), kTileRows,
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
