// SPDX-License-Identifier: Apache-2.0
#include "compute_node/captured_slices.h"

#include <gtest/gtest.h>

#include "tests/unit/compute_node/counting_device.h"

namespace lamina::compute_node {
namespace {

const std::vector<OpRange> kRanges = {{.slice = 0, .from = 0, .end = 4},
                                      {.slice = 0, .from = 4, .end = 6},
                                      {.slice = 1, .from = 0, .end = 3}};

class CapturedSlicesTest : public ::testing::Test {
 protected:
  // What was run, as (slice, first op, rows), for these rows of the three ranges, of which the
  // weights of slices before `slices_end` are here.
  absl::Status Capture(size_t rows_max, size_t rows_limit, uint32_t slices_end = 2) {
    return captured_.Capture(
        {.ranges = kRanges,
         .rows_max = rows_max,
         .rows_limit = rows_limit,
         .has_weights = [&](const OpRange& range) { return range.slice < slices_end; },
         .run =
             [&](const OpRange& range, size_t rows) {
               ran_.push_back({range.slice, range.from, rows});
             }},
        device_);
  }

  ThreadPool pool_{{}};
  CountingDevice device_{pool_};
  CapturedSlices captured_;
  std::vector<std::array<size_t, 3>> ran_;
};

TEST_F(CapturedSlicesTest, EachRangeRunsOnceBeforeItIsCapturedForEachNumberOfRows) {
  ASSERT_TRUE(Capture(3, 100).ok());

  EXPECT_EQ(ran_, (std::vector<std::array<size_t, 3>>{{0, 0, 1},
                                                      {0, 0, 1},
                                                      {0, 0, 2},
                                                      {0, 0, 4},
                                                      {0, 4, 1},
                                                      {0, 4, 1},
                                                      {0, 4, 2},
                                                      {0, 4, 4},
                                                      {1, 0, 1},
                                                      {1, 0, 1},
                                                      {1, 0, 2},
                                                      {1, 0, 4}}));
  EXPECT_EQ(device_.captured(), 9);
  EXPECT_EQ(captured_.count(), 9u);
  EXPECT_EQ(device_.synchronized(), 1);
}

TEST_F(CapturedSlicesTest, ARunTakesTheNextNumberOfRowsThatIsCaptured) {
  ASSERT_TRUE(Capture(3, 100).ok());

  EXPECT_EQ(captured_.Find(kRanges[1], 3), captured_.Find(kRanges[1], 4));
  EXPECT_NE(captured_.Find(kRanges[1], 3), nullptr);
  EXPECT_NE(captured_.Find(kRanges[1], 2), captured_.Find(kRanges[1], 3));
  EXPECT_NE(captured_.Find(kRanges[1], 1), captured_.Find(kRanges[0], 1));
  EXPECT_EQ(captured_.Find(kRanges[1], 5), nullptr);
  EXPECT_EQ(captured_.Find({.slice = 1, .from = 0, .end = 2}, 1), nullptr);
  EXPECT_EQ(captured_.RowsComputed(3), 4u);
  EXPECT_EQ(captured_.RowsComputed(4), 4u);
  EXPECT_EQ(captured_.RowsComputed(5), 5u);
}

TEST_F(CapturedSlicesTest, NoneIsOfMoreRowsThanThereIsRoomFor) {
  ASSERT_TRUE(Capture(50, 20).ok());

  EXPECT_EQ(captured_.rows(), (std::vector<size_t>{1, 2, 4, 8, 16, 20}));
}

TEST_F(CapturedSlicesTest, RangesWithoutWeightsNeverRun) {
  ASSERT_TRUE(Capture(1, 100, /*slices_end=*/1).ok());

  EXPECT_EQ(captured_.count(), 2u);
  EXPECT_NE(captured_.Find(kRanges[0], 1), nullptr);
  EXPECT_EQ(captured_.Find(kRanges[2], 1), nullptr);
  for (const auto& ran : ran_) {
    EXPECT_EQ(ran[0], 0u);
  }
}

TEST_F(CapturedSlicesTest, WithoutAnyWeightsNothingIsCaptured) {
  ASSERT_TRUE(Capture(1, 100, /*slices_end=*/0).ok());

  EXPECT_TRUE(captured_.rows().empty());
  EXPECT_EQ(captured_.RowsComputed(1), 1u);
}

TEST_F(CapturedSlicesTest, AFailureLeavesNothingCaptured) {
  device_.FailCapture(5);

  EXPECT_EQ(Capture(3, 100).code(), absl::StatusCode::kResourceExhausted);

  EXPECT_EQ(captured_.count(), 0u);
  EXPECT_TRUE(captured_.rows().empty());
  EXPECT_EQ(captured_.Find(kRanges[0], 1), nullptr);
}

TEST_F(CapturedSlicesTest, NoRowsAreNotCaptured) {
  ASSERT_TRUE(Capture(0, 100).ok());

  EXPECT_TRUE(ran_.empty());
  EXPECT_TRUE(captured_.rows().empty());
}

}  // namespace
}  // namespace lamina::compute_node
