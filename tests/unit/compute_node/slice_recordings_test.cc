// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_recordings.h"

#include <gtest/gtest.h>

#include "tests/unit/compute_node/counting_device.h"

namespace lamina::compute_node {
namespace {

const std::vector<OpRange> kRanges = {{.slice = 0, .from = 0, .end = 4},
                                      {.slice = 0, .from = 4, .end = 6},
                                      {.slice = 1, .from = 0, .end = 3}};

class SliceRecordingsTest : public ::testing::Test {
 protected:
  // What was run, as (slice, first op, rows), for these rows of the three ranges, of which the
  // weights of slices before `slices_end` are here.
  absl::Status Record(size_t rows_max, size_t rows_limit, uint32_t slices_end = 2) {
    return recordings_.Record(
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
  SliceRecordings recordings_;
  std::vector<std::array<size_t, 3>> ran_;
};

TEST_F(SliceRecordingsTest, EachRangeRunsOnceBeforeItIsRecordedForEachNumberOfRows) {
  ASSERT_TRUE(Record(3, 100).ok());

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
  EXPECT_EQ(device_.recorded(), 9);
  EXPECT_EQ(recordings_.count(), 9u);
  EXPECT_EQ(device_.synchronized(), 1);
}

TEST_F(SliceRecordingsTest, ARunTakesTheNextNumberOfRowsThatIsRecorded) {
  ASSERT_TRUE(Record(3, 100).ok());

  EXPECT_EQ(recordings_.Find(kRanges[1], 3), recordings_.Find(kRanges[1], 4));
  EXPECT_NE(recordings_.Find(kRanges[1], 3), nullptr);
  EXPECT_NE(recordings_.Find(kRanges[1], 2), recordings_.Find(kRanges[1], 3));
  EXPECT_NE(recordings_.Find(kRanges[1], 1), recordings_.Find(kRanges[0], 1));
  EXPECT_EQ(recordings_.Find(kRanges[1], 5), nullptr);
  EXPECT_EQ(recordings_.Find({.slice = 1, .from = 0, .end = 2}, 1), nullptr);
  EXPECT_EQ(recordings_.RowsComputed(3), 4u);
  EXPECT_EQ(recordings_.RowsComputed(4), 4u);
  EXPECT_EQ(recordings_.RowsComputed(5), 5u);
}

TEST_F(SliceRecordingsTest, NoneIsOfMoreRowsThanThereIsRoomFor) {
  ASSERT_TRUE(Record(50, 20).ok());

  EXPECT_EQ(recordings_.rows(), (std::vector<size_t>{1, 2, 4, 8, 16, 20}));
}

TEST_F(SliceRecordingsTest, RangesWithoutWeightsNeverRun) {
  ASSERT_TRUE(Record(1, 100, /*slices_end=*/1).ok());

  EXPECT_EQ(recordings_.count(), 2u);
  EXPECT_NE(recordings_.Find(kRanges[0], 1), nullptr);
  EXPECT_EQ(recordings_.Find(kRanges[2], 1), nullptr);
  for (const auto& ran : ran_) {
    EXPECT_EQ(ran[0], 0u);
  }
}

TEST_F(SliceRecordingsTest, WithoutAnyWeightsNothingIsRecorded) {
  ASSERT_TRUE(Record(1, 100, /*slices_end=*/0).ok());

  EXPECT_TRUE(recordings_.rows().empty());
  EXPECT_EQ(recordings_.RowsComputed(1), 1u);
}

TEST_F(SliceRecordingsTest, AFailureLeavesNothingRecorded) {
  device_.FailRecording(5);

  EXPECT_EQ(Record(3, 100).code(), absl::StatusCode::kResourceExhausted);

  EXPECT_EQ(recordings_.count(), 0u);
  EXPECT_TRUE(recordings_.rows().empty());
  EXPECT_EQ(recordings_.Find(kRanges[0], 1), nullptr);
}

TEST_F(SliceRecordingsTest, NoRowsAreNotRecorded) {
  ASSERT_TRUE(Record(0, 100).ok());

  EXPECT_TRUE(ran_.empty());
  EXPECT_TRUE(recordings_.rows().empty());
}

}  // namespace
}  // namespace lamina::compute_node
