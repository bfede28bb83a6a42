// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace lamina {

struct ThreadPool::Shared {
  explicit Shared(const ThreadPoolOptions& o) : options(o) {}

  const ThreadPoolOptions options;
  std::vector<std::thread> workers;

  // A round is published by storing the body and count, then raising `round` (release).
  const std::function<void(size_t, size_t)>* body = nullptr;
  size_t count = 0;
  std::atomic<size_t> next{0};
  std::atomic<uint32_t> round{0};
  std::atomic<size_t> working{0};
  std::atomic<bool> stop{false};

  void Drain(size_t worker) {
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(i, worker);
    }
  }

  uint32_t AwaitRound(uint32_t seen) const {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::microseconds(options.spin_us);
    for (uint32_t now = round.load(std::memory_order_acquire);;
         now = round.load(std::memory_order_acquire)) {
      if (now != seen) {
        return now;
      }
      if (std::chrono::steady_clock::now() > give_up) {
        round.wait(seen, std::memory_order_acquire);
      }
    }
  }

  void Work(size_t worker) {
    uint32_t seen = 0;
    for (;;) {
      seen = AwaitRound(seen);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      Drain(worker);
      working.fetch_sub(1, std::memory_order_release);
      working.notify_one();
    }
  }
};

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : shared_(std::make_unique<Shared>(options)) {
  for (size_t worker = 1; worker < options.threads; ++worker) {
    shared_->workers.emplace_back([this, worker] {
      const std::vector<int>& cores = shared_->options.cores;
      if (!cores.empty()) {
        PinThisThread({cores[worker % cores.size()]});
      }
      shared_->Work(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->round.fetch_add(1, std::memory_order_release);
  shared_->round.notify_all();
  for (std::thread& worker : shared_->workers) {
    worker.join();
  }
}

size_t ThreadPool::threads() const { return shared_->workers.size() + 1; }

void ThreadPool::Run(size_t count, const std::function<void(size_t, size_t)>& body) {
  if (shared_->workers.empty() || count <= 1) {
    for (size_t i = 0; i < count; ++i) {
      body(i, 0);
    }
    return;
  }
  shared_->body = &body;
  shared_->count = count;
  shared_->next.store(0, std::memory_order_relaxed);
  shared_->working.store(shared_->workers.size(), std::memory_order_relaxed);
  shared_->round.fetch_add(1, std::memory_order_release);
  shared_->round.notify_all();
  shared_->Drain(0);
  for (size_t left = shared_->working.load(std::memory_order_acquire); left != 0;
       left = shared_->working.load(std::memory_order_acquire)) {
    for (int spin = 0; spin < 2000 && shared_->working.load(std::memory_order_acquire) != 0;
         ++spin) {
    }
    left = shared_->working.load(std::memory_order_acquire);
    if (left != 0) {
      shared_->working.wait(left, std::memory_order_acquire);
    }
  }
}

std::vector<int> CallerCores(const ThreadPoolOptions& options) {
  if (options.threads <= 1 || options.cores.empty()) {
    return options.cores;
  }
  return {options.cores.front()};
}

bool PinThisThread(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < 0 || core >= CPU_SETSIZE) {
      return false;
    }
    CPU_SET(static_cast<size_t>(core), &set);
  }
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

}  // namespace lamina
