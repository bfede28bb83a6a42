// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

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

// The threads in use change before every round; the workers' numbers say which took part.
TEST_P(ThreadPoolTest, RunsEveryIndexOnceOnAsManyThreadsAsAreInUse) {
  ThreadPool pool({.threads = GetParam()});
  for (size_t round = 0; round < 300; ++round) {
    const size_t used = 1 + (round * 5 + round / 7) % pool.threads();
    pool.UseThreads(used);
    ASSERT_EQ(pool.threads_in_use(), used);
    std::vector<std::atomic<int>> hits(round % 37);

    pool.Run(hits.size(), [&](size_t i, size_t worker) {
      ASSERT_LT(worker, used);
      hits[i].fetch_add(1);
    });

    for (const auto& hit : hits) {
      ASSERT_EQ(hit.load(), 1);
    }
  }
}

// Work that is too little for all threads goes to the first ones.
TEST_P(ThreadPoolTest, RunsEveryIndexOnceOnAtMostSoManyThreads) {
  ThreadPool pool({.threads = GetParam()});
  for (size_t round = 0; round < 300; ++round) {
    std::vector<std::atomic<int>> hits(1 + round % 61);

    pool.Run(hits.size(), 1 + round % 11, [&](size_t i, size_t worker) {
      ASSERT_LT(worker, pool.threads());
      hits[i].fetch_add(1);
    });

    for (const auto& hit : hits) {
      ASSERT_EQ(hit.load(), 1);
    }
  }
  pool.Run(9, 1, [&](size_t, size_t worker) { ASSERT_EQ(worker, 0u); });
}

// A round ends when its indices have been run: the one that each thread holds here.
TEST_P(ThreadPoolTest, ThreadsRunIndicesAtTheSameTime) {
  ThreadPool pool({.threads = GetParam()});
  for (int round = 0; round < 20; ++round) {
    std::atomic<size_t> arrived = 0;
    pool.Run(pool.threads(), [&](size_t, size_t) {
      arrived.fetch_add(1);
      while (arrived.load() < pool.threads()) {  // Ends only if all of them have an index.
        std::this_thread::yield();
      }
    });
    ASSERT_EQ(arrived.load(), pool.threads());
  }
}

// Others see that the caller gets on inside a call, and inside a long index.
TEST_P(ThreadPoolTest, CountsTheStepsOfTheCallerAlone) {
  ThreadPool pool({.threads = GetParam()});
  std::atomic<uint64_t> by_caller = 0;
  for (int round = 0; round < 20; ++round) {
    pool.Run(11, [&](size_t, size_t worker) {
      if (worker == 0) {
        ASSERT_EQ(pool.caller_steps(), by_caller.load());
        by_caller.fetch_add(2);
      }
      pool.CountStep(worker);
    });
    ASSERT_EQ(pool.caller_steps(), by_caller.load());
  }
}

TEST_P(ThreadPoolTest, EndsWhileThreadsSleep) {
  std::atomic<int> hits = 0;
  {
    ThreadPool pool({.threads = GetParam()});
    pool.UseThreads(1);
    pool.Run(5, [&](size_t, size_t) { hits.fetch_add(1); });
  }
  EXPECT_EQ(hits.load(), 5);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8, 40));

// How often this thread has gone to sleep.
int64_t Sleeps() {
  rusage usage = {};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

// A worker's last index takes longer than a few looks, and less than the time to spin.
TEST(ThreadPoolWaitTest, TheCallerSpinsForTheLastIndex) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  if (CPU_COUNT(&set) < 2) {
    GTEST_SKIP() << "nobody spins where threads outnumber cores";
  }
  ThreadPool pool({.threads = 2, .spin_us = 60'000'000});
  std::atomic<int> arrived = 0;
  int64_t before = 0;
  pool.Run(2, [&](size_t, size_t worker) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) {  // Each has one.
      std::this_thread::yield();
    }
    if (worker == 0) {
      before = Sleeps();
      return;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < end) {
    }
  });
  EXPECT_EQ(Sleeps(), before);
}

// Workers 1, 2, ... have cores[1], cores[2], ...
TEST(CallerCoresTest, AreThoseThatNoWorkerHas) {
  EXPECT_EQ(CallerCores({.threads = 1, .cores = {4, 5}}), (std::vector<int>{4, 5}));
  EXPECT_EQ(CallerCores({.threads = 2, .cores = {4, 5}}), std::vector<int>{4});
  EXPECT_EQ(CallerCores({.threads = 3, .cores = {}}), std::vector<int>{});
}

}  // namespace
}  // namespace lamina
