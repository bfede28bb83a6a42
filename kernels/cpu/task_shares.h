// SPDX-License-Identifier: Apache-2.0
//
// TaskShares: tasks of which each thread takes neighbours, so that it reads memory in order, and
// which end evenly all the same. Tasks [0, count) are cut into even shares of neighbours. Whoever
// has a share takes its tasks from the first on, and then the last ones that others have left.
//
// Which thread runs a task is not determined; each is run once.
//
// Threading: Begin() by one thread while nobody runs shares; RunShare() by any, each share once.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"

namespace lamina::kernels::cpu {

class TaskShares {
 public:
  explicit TaskShares(size_t shares_max) : left_(shares_max) {}

  void Begin(size_t count, size_t shares) {
    LAMINA_CHECK(shares >= 1 && shares <= left_.size() && count <= kFirstMask);
    count_ = count;
    shares_ = shares;
    for (size_t share = 0; share < shares; ++share) {
      left_[share].tasks.store(FirstOf(share) | uint64_t{FirstOf(share + 1)} << kEndShift,
                               std::memory_order_relaxed);
    }
  }

  // Whether a share begins with this task, or all of them end before it.
  bool Begins(size_t task) const {
    return task >= count_ || FirstOf(task * shares_ / count_) == task;
  }

  // Calls run(task).
  template <class RunTask>
  void RunShare(size_t share, const RunTask& run) {
    for (size_t task = TakeFirst(share); task != kNone; task = TakeFirst(share)) {
      run(task);
    }
    for (size_t others = 1; others < shares_; ++others) {
      const size_t other = (share + others) % shares_;
      for (size_t task = TakeLast(other); task != kNone; task = TakeLast(other)) {
        run(task);
      }
    }
  }

 private:
  // The next task of a share in the lower half, and its end in the upper one.
  struct alignas(64) Left {
    std::atomic<uint64_t> tasks{0};
  };

  static constexpr size_t kNone = SIZE_MAX;
  static constexpr int kEndShift = 32;
  static constexpr uint64_t kFirstMask = (uint64_t{1} << kEndShift) - 1;
  static size_t NextIn(uint64_t tasks) { return tasks & kFirstMask; }
  static size_t EndIn(uint64_t tasks) { return tasks >> kEndShift; }

  size_t FirstOf(size_t share) const { return (share * count_ + shares_ - 1) / shares_; }

  size_t TakeFirst(size_t share) {
    std::atomic<uint64_t>& left = left_[share].tasks;
    uint64_t tasks = left.load(std::memory_order_relaxed);
    while (NextIn(tasks) < EndIn(tasks)) {
      if (left.compare_exchange_weak(tasks, tasks + 1, std::memory_order_relaxed)) {
        return NextIn(tasks);
      }
    }
    return kNone;
  }

  size_t TakeLast(size_t share) {
    std::atomic<uint64_t>& left = left_[share].tasks;
    uint64_t tasks = left.load(std::memory_order_relaxed);
    while (NextIn(tasks) < EndIn(tasks)) {
      if (left.compare_exchange_weak(tasks, tasks - (uint64_t{1} << kEndShift),
                                     std::memory_order_relaxed)) {
        return EndIn(tasks) - 1;
      }
    }
    return kNone;
  }

  std::vector<Left> left_;
  size_t count_ = 0;
  size_t shares_ = 1;
};

}  // namespace lamina::kernels::cpu
