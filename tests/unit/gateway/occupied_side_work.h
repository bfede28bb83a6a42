// SPDX-License-Identifier: Apache-2.0
//
// Posted stands for the gateway's thread: it keeps what SideWork posts until the test runs it.
// OccupiedSideWork holds all threads of a SideWork until the test lets them go.

#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gateway/side_work.h"
#include "gtest/gtest.h"

namespace lamina::gateway {

class Posted {
 public:
  PostFunction post() {
    return [this](std::function<void()> work) {
      const absl::MutexLock lock(&mu_);
      works_.push_back(std::move(work));
    };
  }

  // Runs what was posted, and what will be, until `done`.
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      std::function<void()> work;
      {
        const absl::MutexLock lock(&mu_);
        const auto has_some = [this] { return !works_.empty(); };
        ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&has_some), absl::Seconds(60)));
        work = std::move(works_.front());
        works_.pop_front();
      }
      work();
    }
  }

 private:
  absl::Mutex mu_;
  std::deque<std::function<void()>> works_;
};

class OccupiedSideWork {
 public:
  OccupiedSideWork(SideWork& side_work, Posted& posted) : posted_(posted) {
    for (size_t i = 0; i < SideWork::kThreads; ++i) {
      const absl::Status begun = side_work.Do(
          SideWork::kSmallBytesMax + 1,
          [this] {
            held_.DecrementCount();
            released_.WaitForNotification();
            return 0;
          },
          [this](int) { ++ended_; });
      EXPECT_TRUE(begun.ok()) << begun;
    }
    held_.Wait();
  }
  ~OccupiedSideWork() {
    if (!released_.HasBeenNotified()) {
      Release();
    }
    posted_.RunUntil([this] { return ended_ == SideWork::kThreads; });
  }
  OccupiedSideWork(const OccupiedSideWork&) = delete;
  OccupiedSideWork& operator=(const OccupiedSideWork&) = delete;

  void Release() { released_.Notify(); }

 private:
  Posted& posted_;
  absl::BlockingCounter held_{SideWork::kThreads};
  absl::Notification released_;
  size_t ended_ = 0;
};

}  // namespace lamina::gateway
