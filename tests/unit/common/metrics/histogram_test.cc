// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace lamina {
namespace {

using ::testing::ElementsAre;

TEST(HistogramTest, CountsValuesUpToTheirBoundAndThoseAboveAll) {
  Histogram histogram({1, 10});
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0}) {
    histogram.Observe(value);
  }

  const Histogram::Snapshot snapshot = histogram.Take();

  EXPECT_THAT(snapshot.bounds, ElementsAre(1, 10));
  EXPECT_THAT(snapshot.counts, ElementsAre(2, 2, 1));
  EXPECT_EQ(snapshot.count, 5u);
  EXPECT_DOUBLE_EQ(snapshot.sum, 24.0);
}

TEST(HistogramTest, WithoutValuesAllIsZero) {
  const Histogram::Snapshot snapshot = Histogram({1}).Take();

  EXPECT_THAT(snapshot.counts, ElementsAre(0, 0));
  EXPECT_EQ(snapshot.sum, 0);
}

TEST(HistogramTest, LosesNothingOfManyThreads) {
  constexpr uint64_t kEach = 20'000;
  Histogram histogram({1, 2});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (uint64_t j = 0; j < kEach; ++j) {
        histogram.Observe(2);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }

  EXPECT_THAT(histogram.Take().counts, ElementsAre(0, 4 * kEach, 0));
  EXPECT_DOUBLE_EQ(histogram.Take().sum, 8.0 * kEach);
}

}  // namespace
}  // namespace lamina
