// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/task_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/thread_pool.h"

namespace lamina::kernels::cpu {
namespace {

std::vector<size_t> TasksOf(TaskShares& shares, size_t share) {
  std::vector<size_t> tasks;
  shares.RunShare(share, [&](size_t task) { tasks.push_back(task); });
  return tasks;
}

TEST(TaskSharesTest, SharesAreEvenAndOfNeighbours) {
  for (size_t count = 0; count <= 50; ++count) {
    for (size_t threads = 1; threads <= 8; ++threads) {
      TaskShares shares(8);
      shares.Begin(count, threads);
      std::vector<size_t> lengths;
      for (size_t task = 0; task < count; ++task) {
        if (shares.Begins(task)) {
          lengths.push_back(0);
        }
        ASSERT_FALSE(lengths.empty()) << "the first task begins no share";
        ++lengths.back();
      }
      EXPECT_TRUE(shares.Begins(count));
      ASSERT_EQ(lengths.size(), std::min(count, threads)) << count << " tasks";
      for (const size_t length : lengths) {
        EXPECT_GE(length, count / threads);
        EXPECT_LE(length, (count + threads - 1) / threads);
      }
    }
  }
}

TEST(TaskSharesTest, WhoeverIsAloneTakesItsOwnInOrderAndThenWhatOthersHaveLeftFromTheEnd) {
  TaskShares shares(3);
  shares.Begin(9, 3);
  EXPECT_EQ(TasksOf(shares, 1), (std::vector<size_t>{3, 4, 5, 8, 7, 6, 2, 1, 0}));
  EXPECT_TRUE(TasksOf(shares, 0).empty());
  EXPECT_TRUE(TasksOf(shares, 2).empty());

  shares.Begin(3, 2);
  EXPECT_EQ(TasksOf(shares, 0), (std::vector<size_t>{0, 1, 2}));
  shares.Begin(0, 3);
  EXPECT_TRUE(TasksOf(shares, 0).empty());
}

// One that is long at its first task loses the others to those that get on.
TEST(TaskSharesTest, OthersTakeWhatIsLeftOfAShareUnderWay) {
  TaskShares shares(2);
  shares.Begin(8, 2);
  std::vector<size_t> own;
  std::vector<size_t> others;
  shares.RunShare(0, [&](size_t task) {
    own.push_back(task);
    if (own.size() == 1) {
      others = TasksOf(shares, 1);
    }
  });
  EXPECT_EQ(own, (std::vector<size_t>{0}));
  EXPECT_EQ(others, (std::vector<size_t>{4, 5, 6, 7, 3, 2, 1}));
}

TEST(TaskSharesTest, EachTaskIsRunOnceByManyThreads) {
  constexpr size_t kThreads = 4;
  ThreadPool pool({.threads = kThreads});
  TaskShares shares(kThreads);
  for (size_t round = 0; round < 300; ++round) {
    const size_t count = round % 67;
    std::vector<std::atomic<int>> runs(count);
    shares.Begin(count, kThreads);
    pool.Run(kThreads, [&](size_t share, size_t /*worker*/) {
      shares.RunShare(share, [&](size_t task) { runs[task].fetch_add(1); });
    });
    for (size_t task = 0; task < count; ++task) {
      ASSERT_EQ(runs[task].load(), 1) << "task " << task << " of " << count;
    }
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
