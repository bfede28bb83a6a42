// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/check.h"

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
  // Workers from this one on sleep. Changed between rounds only.
  std::atomic<uint32_t> in_use{1};
  // Written by the caller alone; away from what workers write.
  alignas(64) std::atomic<uint64_t> caller_steps{0};

  void CountStep(size_t worker) {
    if (worker != 0) {
      return;
    }
    caller_steps.store(caller_steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void Drain(size_t worker) {
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(i, worker);
      CountStep(worker);
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

  void Done() {
    working.fetch_sub(1, std::memory_order_release);
    working.notify_one();
  }

  // Until the worker is in use again, or the pool ends. It answers when it has seen the round that
  // was last, and so takes none that is over for a new one.
  void Sleep(size_t worker, uint32_t& seen) {
    for (uint32_t used = in_use.load(std::memory_order_acquire); used <= worker;
         used = in_use.load(std::memory_order_acquire)) {
      in_use.wait(used, std::memory_order_acquire);
    }
    seen = round.load(std::memory_order_acquire);
    Done();
  }

  void Work(size_t worker) {
    uint32_t seen = 0;
    for (;;) {
      seen = AwaitRound(seen);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      const bool sleeps = worker >= in_use.load(std::memory_order_relaxed);
      Drain(worker);
      Done();
      if (sleeps) {  // The round was UseThreads().
        Sleep(worker, seen);
      }
    }
  }

  // For the workers in use.
  void BeginRound(size_t taking_part) {
    working.store(taking_part, std::memory_order_relaxed);
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
  }

  void AwaitWorkers() {
    for (size_t left = working.load(std::memory_order_acquire); left != 0;
         left = working.load(std::memory_order_acquire)) {
      for (int spin = 0; spin < 2000 && working.load(std::memory_order_acquire) != 0; ++spin) {
      }
      left = working.load(std::memory_order_acquire);
      if (left != 0) {
        working.wait(left, std::memory_order_acquire);
      }
    }
  }
};

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : shared_(std::make_unique<Shared>(options)) {
  shared_->in_use.store(static_cast<uint32_t>(std::max<size_t>(1, options.threads)),
                        std::memory_order_relaxed);
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
  UseThreads(threads());
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->round.fetch_add(1, std::memory_order_release);
  shared_->round.notify_all();
  for (std::thread& worker : shared_->workers) {
    worker.join();
  }
}

uint64_t ThreadPool::caller_steps() const {
  return shared_->caller_steps.load(std::memory_order_relaxed);
}

void ThreadPool::CountStep(size_t worker) const { shared_->CountStep(worker); }

size_t ThreadPool::threads() const { return shared_->workers.size() + 1; }

size_t ThreadPool::threads_in_use() const {
  return shared_->in_use.load(std::memory_order_relaxed);
}

void ThreadPool::UseThreads(size_t count) {
  LAMINA_CHECK(count >= 1 && count <= threads());
  const size_t before = threads_in_use();
  if (count < before) {
    shared_->count = 0;  // A round of nothing, after which those beyond `count` sleep.
    shared_->next.store(0, std::memory_order_relaxed);
    shared_->in_use.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    shared_->BeginRound(before - 1);
  } else if (count > before) {
    shared_->working.store(count - before, std::memory_order_relaxed);
    shared_->in_use.store(static_cast<uint32_t>(count), std::memory_order_release);
    shared_->in_use.notify_all();
  }
  shared_->AwaitWorkers();
}

void ThreadPool::Run(size_t count, const std::function<void(size_t, size_t)>& body) {
  const size_t in_use = threads_in_use();
  if (in_use == 1 || count <= 1) {
    for (size_t i = 0; i < count; ++i) {
      body(i, 0);
      shared_->CountStep(0);
    }
    return;
  }
  shared_->body = &body;
  shared_->count = count;
  shared_->next.store(0, std::memory_order_relaxed);
  shared_->BeginRound(in_use - 1);
  shared_->Drain(0);
  shared_->AwaitWorkers();
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
