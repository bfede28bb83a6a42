// SPDX-License-Identifier: Apache-2.0
#include "common/crowded_core.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/units.h"

namespace lamina {
namespace {

// A thread that has been stopped so often, and how often it was asked.
struct Thread {
  int64_t stops = 0;
  int asked = 0;
  CrowdedCore core;

  bool IsCrowded(Nanos now) {
    return core.Is(now, [this] {
      ++asked;
      return stops;
    });
  }
};

TEST(CrowdedCoreTest, WhatHappenedBeforeTheFirstLookDoesNotCount) {
  Thread thread{.stops = 1000};
  EXPECT_FALSE(thread.IsCrowded(Seconds(100)));
}

TEST(CrowdedCoreTest, IsOneWhereTheThreadIsStoppedTwiceInTwentyMilliseconds) {
  for (const int64_t stops : {0, 1, 2, 40}) {
    Thread thread;
    thread.IsCrowded(Seconds(1));
    thread.stops = stops;
    EXPECT_EQ(thread.IsCrowded(Seconds(1) + Millis(20)), stops >= 2) << stops;
  }
}

TEST(CrowdedCoreTest, CountsByTheRate) {
  for (const int64_t stops : {3, 4}) {
    Thread thread;
    thread.IsCrowded(Seconds(1));
    thread.stops = stops;
    EXPECT_EQ(thread.IsCrowded(Seconds(1) + Millis(40)), stops >= 4) << stops;
  }
}

TEST(CrowdedCoreTest, AThreadThatHasNotWaitedForLongIsAskedAnew) {
  Thread thread;
  thread.IsCrowded(Seconds(1));
  thread.stops = 100000;
  EXPECT_FALSE(thread.IsCrowded(Seconds(9)));
  thread.stops += 2;
  EXPECT_TRUE(thread.IsCrowded(Seconds(9) + Millis(20)));
}

TEST(CrowdedCoreTest, StaysSoForATimeInWhichNothingIsAsked) {
  Thread thread;
  thread.IsCrowded(Seconds(1));
  thread.stops = 10;
  ASSERT_TRUE(thread.IsCrowded(Seconds(1) + Millis(20)));
  EXPECT_TRUE(thread.IsCrowded(Seconds(1) + Millis(219)));
  EXPECT_EQ(thread.asked, 2);
  EXPECT_FALSE(thread.IsCrowded(Seconds(1) + Millis(220)));
}

TEST(CrowdedCoreTest, AsksOnceInAPeriod) {
  Thread thread;
  for (Nanos now = Seconds(1); now < Seconds(2); now += Micros(100)) {
    thread.IsCrowded(now);
  }
  EXPECT_EQ(thread.asked, 50);
}

TEST(CrowdedCoreTest, SeesThatThreadsOutnumberProcessors) {
  std::atomic<bool> over{false};
  std::atomic<size_t> found{0};
  std::vector<std::jthread> threads;
  const size_t count = 3 * std::thread::hardware_concurrency();
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      bool told = false;
      while (!over.load()) {
        if (CoreIsCrowded(RealClock().Now()) && !told) {
          told = true;
          found.fetch_add(1);
        }
      }
    });
  }
  const Nanos deadline = RealClock().Now() + Seconds(60);
  while (found.load() == 0 && RealClock().Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  over.store(true);
  EXPECT_GT(found.load(), 0u);
}

}  // namespace
}  // namespace lamina
