// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace lamina::control {
namespace {

using namespace std::chrono_literals;

TEST(EpochThreadTest, IsJoinedWhenItsWorkHasReturned) {
  std::atomic<bool> stop = false;
  std::atomic<bool> done = false;
  ThreadBeat beat;
  EpochThread thread(beat);
  thread.Join();  // Nothing has begun.
  thread.Start(
      {}, 1,
      [&] {
        stop.wait(false);
        EXPECT_EQ(beat.activity(), ThreadActivity::kWorking);
        done = true;
        return absl::OkStatus();
      },
      nullptr);
  stop = true;
  stop.notify_one();
  thread.Join();
  EXPECT_TRUE(done);
  EXPECT_EQ(beat.activity(), ThreadActivity::kNone);
  thread.Join();
}

// Attention over a long prompt does not look whether it is told to stop.
TEST(EpochThreadTest, WorkThatGetsOnIsWaitedFor) {
  ThreadBeat beat;
  std::atomic<uint64_t> steps = 0;
  EpochThread thread(beat, [&] { return steps.load(); });
  std::atomic<bool> done = false;
  thread.Start(
      {}, 1,
      [&] {
        for (int i = 0; i < 25; ++i) {
          std::this_thread::sleep_for(100ms);
          ++steps;
        }
        done = true;
        return absl::OkStatus();
      },
      nullptr);
  thread.Join(2s);
  EXPECT_TRUE(done);
}

TEST(EpochThreadDeathTest, WorkThatDoesNotEndEndsTheProcessWithStatus1) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stuck = [] {
    ThreadBeat beat;
    EpochThread thread(beat);
    std::atomic<bool> never = false;
    thread.Start(
        {}, 1,
        [&] {
          never.wait(false);
          return absl::OkStatus();
        },
        nullptr);
    thread.Join(50ms);
  };
  EXPECT_EXIT(stuck(), ::testing::ExitedWithCode(1), "has not for 0.05 s; this process ends");
}

}  // namespace
}  // namespace lamina::control
