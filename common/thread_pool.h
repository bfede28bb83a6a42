// SPDX-License-Identifier: Apache-2.0
//
// ThreadPool: fork and join over a fixed set of threads, for kernels.
//
// The caller takes part, so a pool of one thread starts none. Which thread runs which index is not
// determined; kernels must not let it show in their results.
//
// Fewer threads than it has may be in use (UseThreads()), and fewer of these may take part in a
// Run(); the others spin out their time or sleep.
//
// Threading: one caller at a time. Run() returns when every index has been run: it waits for
//            indices, not for threads, so that one that has not been scheduled yet delays nobody.
//            The counts from any thread.
// Waiting:   a worker spins for `spin_us`, then sleeps on a futex until a Run() wants it. Sleepers
//            are woken along a binary tree, each by one that is awake. The caller spins as long for
//            the last indices. Where there are more threads than cores, nobody spins: it would take
//            time from those that work.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lamina {

struct ThreadPoolOptions {
  size_t threads = 1;      // In all, the caller counted.
  std::vector<int> cores;  // Worker i is pinned to cores[i % size]; empty pins nothing. The caller
                           // is never pinned here.
  int spin_us = 50;        // Longer wakes faster and starves whoever shares the core.
};

class ThreadPool {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(index, worker) for every index in [0, count), worker in [0, threads()). Does not
  // allocate. Empty: count 0 returns at once.
  // On all threads in use, or as many as there are indices.
  void Run(size_t count, const std::function<void(size_t index, size_t worker)>& body);
  // On at most `threads` of them, the caller counted, where work is too little for all. At least 1.
  void Run(size_t count, size_t threads,
           const std::function<void(size_t index, size_t worker)>& body);

  // From the next Run() on this many threads take part, the caller counted; the others sleep, and
  // cost nothing. Waits until none of them works. Between runs. Requires: 1 <= count <= threads().
  void UseThreads(size_t count);

  // Steps that callers of Run() have made themselves, so that others see a caller get on inside a
  // long call: indices, and parts of one that the body counts. While it waits for a worker that
  // hangs, a caller makes none.
  uint64_t caller_steps() const;
  // By a body, of a part of its index; counts where `worker` is the caller.
  void CountStep(size_t worker) const;

  size_t threads() const;  // It has, and at first uses: bounds what there is one of for each.
  size_t threads_in_use() const;  // Take part in Run().

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

// The cores for the thread that calls Run() of such a pool: the one that no worker is pinned to;
// all of them if there is no worker.
std::vector<int> CallerCores(const ThreadPoolOptions& options);

// Pins the calling thread. Returns false when the host refuses (a core outside its mask, say).
bool PinThisThread(const std::vector<int>& cores);

}  // namespace lamina
