// SPDX-License-Identifier: Apache-2.0
//
// How long what comes back from a spill tier takes, between which plans and reports.

#include "coordinator/restore_times.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "common/clock.h"

namespace lamina::coordinator {
namespace {

class RestoreTimesTest : public ::testing::Test {
 protected:
  void Read(plan::SequenceId sequence, uint64_t spill, Nanos now) {
    times_.Planned({.spills_in = {{.spill = spill, .sequence = sequence, .tokens = 9}}}, now);
  }
  void Row(plan::SequenceId sequence, Nanos now) {
    times_.Planned({.rows = {{.sequence = sequence, .position = 9}}}, now);
  }
  void Report(uint64_t spill, Nanos now, bool ok = true) {
    times_.Reported({.epoch = 1, .spill = spill, .ok = ok}, now);
  }
  uint64_t count() const { return metrics_.restore_read.Take().count; }

  RequestMetrics metrics_;
  RestoreTimes times_{metrics_};
};

TEST_F(RestoreTimesTest, AreFromThePlanToTheLastReportAndToTheFirstWork) {
  Read(7, 3, Millis(100));
  Row(8, Millis(110));
  Report(3, Millis(108));
  Report(3, Millis(112));
  EXPECT_EQ(count(), 0u);
  Row(7, Millis(142));
  Row(7, Millis(180));
  EXPECT_EQ(count(), 1u);
  EXPECT_DOUBLE_EQ(metrics_.restore_read.Take().sum, 0.012);
  EXPECT_DOUBLE_EQ(metrics_.restore_step.Take().sum, 0.030);
}

TEST_F(RestoreTimesTest, WhatIsNotReadOrLeavesHasNone) {
  Read(7, 3, Millis(1));
  Report(3, Millis(2), /*ok=*/false);
  Row(7, Millis(3));
  Read(8, 4, Millis(4));
  times_.Planned({.leaves = {{.id = 8}}}, Millis(5));
  Report(4, Millis(6));
  Row(8, Millis(7));
  Read(9, 5, Millis(8));
  times_.Reset();
  Report(5, Millis(9));
  Row(9, Millis(10));
  EXPECT_EQ(count(), 0u);
}

TEST_F(RestoreTimesTest, ChunksAreWorkToo) {
  Read(7, 3, Millis(1));
  Report(3, Millis(2));
  times_.Planned({.chunks = {{.sequence = 7, .first_token = 9, .tokens = 4}}}, Millis(3));
  EXPECT_EQ(count(), 1u);
}

}  // namespace
}  // namespace lamina::coordinator
