// SPDX-License-Identifier: Apache-2.0
#include "transport/outbox/send_times.h"

#include <gtest/gtest.h>

namespace lamina::transport {
namespace {

OutboxTimes Of(uint64_t value) {
  return {.word = 2,
          .value = value,
          .bytes = 64,
          .unraised = static_cast<Nanos>(100 * value),
          .posted = static_cast<Nanos>(100 * value + 7)};
}

TEST(SendTimesTest, PutsAreTakenWhenSoManyAreCompleteAndInTheirOrder) {
  SendTimes times;
  EXPECT_FALSE(times.in_flight());
  times.Posted(1, Of(1));
  times.Posted(3, Of(2));  // The second put was of no interest.
  times.Complete(0, 400);
  EXPECT_TRUE(times.in_flight());
  EXPECT_FALSE(times.Take().has_value());

  times.Complete(2, 500);
  EXPECT_TRUE(times.in_flight());
  const std::optional<OutboxTimes> first = times.Take();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->word, 2u);
  EXPECT_EQ(first->value, 1u);
  EXPECT_EQ(first->bytes, 64u);
  EXPECT_EQ(first->unraised, 100);
  EXPECT_EQ(first->posted, 107);
  EXPECT_EQ(first->complete, 500);
  EXPECT_FALSE(times.Take().has_value());

  times.Complete(3, 600);
  EXPECT_FALSE(times.in_flight());
  const std::optional<OutboxTimes> second = times.Take();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->value, 2u);
  EXPECT_EQ(second->complete, 600);
}

TEST(SendTimesTest, WhatNobodyTakesIsKeptAndLaterOnesAreDropped) {
  SendTimes times;
  for (uint64_t put = 1; put <= SendTimes::kKept + 1; ++put) {
    times.Posted(put, Of(put));
  }
  times.Complete(SendTimes::kKept + 1, 1);

  for (uint64_t put = 1; put <= SendTimes::kKept; ++put) {
    const std::optional<OutboxTimes> taken = times.Take();
    ASSERT_TRUE(taken.has_value());
    EXPECT_EQ(taken->value, put);
  }
  EXPECT_FALSE(times.Take().has_value());
  times.Posted(SendTimes::kKept + 2, Of(9));
  times.Complete(SendTimes::kKept + 2, 2);
  EXPECT_EQ(times.Take()->value, 9u) << "there is room again";
}

}  // namespace
}  // namespace lamina::transport
