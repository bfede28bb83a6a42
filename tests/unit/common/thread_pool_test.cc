// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace lamina {
namespace {

class ThreadPoolTest : public testing::TestWithParam<size_t> {};

TEST_P(ThreadPoolTest, RunsEveryIndexOnceInEveryRound) {
  ThreadPool pool({.threads = GetParam()});
  for (int round = 0; round < 500; ++round) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(round % 37));

    pool.Run(hits.size(), [&](size_t i, size_t worker) {
      ASSERT_LT(worker, pool.threads());
      hits[i].fetch_add(1);
    });

    for (const auto& hit : hits) {
      ASSERT_EQ(hit.load(), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

// Workers 1, 2, ... have cores[1], cores[2], ...
TEST(CallerCoresTest, AreThoseThatNoWorkerHas) {
  EXPECT_EQ(CallerCores({.threads = 1, .cores = {4, 5}}), (std::vector<int>{4, 5}));
  EXPECT_EQ(CallerCores({.threads = 2, .cores = {4, 5}}), std::vector<int>{4});
  EXPECT_EQ(CallerCores({.threads = 3, .cores = {}}), std::vector<int>{});
}

}  // namespace
}  // namespace lamina
