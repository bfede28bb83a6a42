// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <thread>

#include "common/check.h"

namespace lamina {

namespace {

// Cores that the pool's threads may run on.
size_t UsableCores(const std::vector<int>& cores) {
  if (!cores.empty()) {
    return std::set<int>(cores.begin(), cores.end()).size();
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<size_t>(CPU_COUNT(&set))
                                                      : SIZE_MAX;
}

}  // namespace

struct ThreadPool::Shared {
  explicit Shared(const ThreadPoolOptions& o)
      : options(o),
        spin_us(o.threads > UsableCores(o.cores) ? 0 : o.spin_us),
        seats(std::max<size_t>(1, o.threads)) {}

  // What others know of a worker.
  struct alignas(64) Seat {
    std::atomic<uint32_t> asleep{0};  // 1: on a futex, or about to be.
    std::atomic<uint32_t> busy{0};    // 1: it may take indices.
  };

  const ThreadPoolOptions options;
  const int spin_us;
  std::vector<Seat> seats;  // [threads]
  std::vector<std::thread> workers;

  // A round is published by storing the body, then the ticket (release), then raising `round`.
  const std::function<void(size_t, size_t)>* body = nullptr;
  // The round's count in the upper half, the next index in the lower one: whoever takes an index
  // knows with the same access whether there was one, and of which round.
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<uint32_t> done{0};  // Indices that have been run.
  alignas(64) std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> wanted{1};  // Workers from this one on have no part in the round.
  std::atomic<uint32_t> in_use{1};
  std::atomic<bool> stop{false};
  // Written by the caller alone; away from what workers write.
  alignas(64) std::atomic<uint64_t> caller_steps{0};

  // Half a microsecond or so, before the caller looks at a clock or, where nobody spins, sleeps.
  static constexpr int kLooks = 2000;

  static constexpr int kCountShift = 32;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kCountShift) - 1;
  static bool HasIndex(uint64_t t) { return (t & kIndexMask) < t >> kCountShift; }

  void CountStep(size_t worker) {
    if (worker != 0) {
      return;
    }
    caller_steps.store(caller_steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // A late worker may take part in a round behind the one that woke it: until its index is done
  // that round does not end.
  void Drain(size_t worker) {
    uint32_t ran = 0;
    for (uint64_t t = ticket.fetch_add(1, std::memory_order_acq_rel); HasIndex(t);
         t = ticket.fetch_add(1, std::memory_order_acq_rel)) {
      (*body)(t & kIndexMask, worker);
      CountStep(worker);
      ++ran;
    }
    if (ran > 0) {
      done.fetch_add(ran, std::memory_order_acq_rel);
      done.notify_one();
    }
  }

  void Wake(size_t worker) {
    std::atomic<uint32_t>& asleep = seats[worker].asleep;
    if (asleep.load() == 1) {
      asleep.store(0);
      asleep.notify_one();
    }
  }
  void WakeChildren(size_t worker, size_t end) {
    for (size_t child = 2 * worker + 1; child <= 2 * worker + 2 && child < end; ++child) {
      Wake(child);
    }
  }

  // Until there is another round than `seen`. Whoever raises `round` looks at `asleep` afterwards,
  // and a worker the other way around: one of them sees the other.
  void AwaitRound(size_t worker, uint32_t& seen) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
    std::atomic<uint32_t>& asleep = seats[worker].asleep;
    for (;;) {
      const uint32_t now = round.load();
      if (now != seen) {
        seen = now;
        // One that is not wanted goes on, and sleeps in its time.
        if (stop.load(std::memory_order_relaxed) || worker < wanted.load()) {
          return;
        }
      }
      if (std::chrono::steady_clock::now() > give_up) {
        asleep.store(1);
        if (round.load() == seen) {
          asleep.wait(1);
        }
        asleep.store(0);
      }
    }
  }

  void Work(size_t worker) {
    uint32_t seen = 0;
    for (;;) {
      AwaitRound(worker, seen);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      seats[worker].busy.store(1);
      const size_t end = wanted.load();
      if (worker < end && HasIndex(ticket.load(std::memory_order_relaxed))) {
        WakeChildren(worker, end);
        Drain(worker);
      }
      seats[worker].busy.store(0);
    }
  }

  // A round has `count` indices, for workers below `end`.
  void BeginRound(size_t count, size_t end) {
    done.store(0, std::memory_order_relaxed);
    ticket.store(uint64_t{count} << kCountShift, std::memory_order_release);
    wanted.store(static_cast<uint32_t>(end));
    round.fetch_add(1);
    WakeChildren(0, end);
  }

  // The caller waits as workers do, for most often one of them has a last index to end: to sleep
  // and be woken takes longer than that.
  void AwaitIndices(uint32_t count) {
    const auto all_done = [&] { return done.load(std::memory_order_acquire) == count; };
    for (int look = 0; look < kLooks; ++look) {
      if (all_done()) {
        return;
      }
    }
    if (spin_us > 0) {
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
      while (std::chrono::steady_clock::now() < give_up) {
        if (all_done()) {
          return;
        }
      }
    }
    for (uint32_t now = done.load(std::memory_order_acquire); now != count;
         now = done.load(std::memory_order_acquire)) {
      done.wait(now, std::memory_order_acquire);
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
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->round.fetch_add(1);
  for (size_t worker = 1; worker < threads(); ++worker) {
    shared_->Wake(worker);
  }
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
  shared_->in_use.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  shared_->wanted.store(1);  // Whoever is late for the last round finds that it is not wanted.
  for (size_t worker = count; worker < threads(); ++worker) {
    while (shared_->seats[worker].busy.load() != 0) {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::Run(size_t count, const std::function<void(size_t, size_t)>& body) {
  Run(count, threads_in_use(), body);
}

void ThreadPool::Run(size_t count, size_t threads,
                     const std::function<void(size_t, size_t)>& body) {
  LAMINA_CHECK(threads >= 1 && count <= INT32_MAX);
  const size_t taking_part = std::min({threads, threads_in_use(), count});
  if (taking_part <= 1) {
    for (size_t i = 0; i < count; ++i) {
      body(i, 0);
      shared_->CountStep(0);
    }
    return;
  }
  shared_->body = &body;
  shared_->BeginRound(count, taking_part);
  shared_->Drain(0);
  shared_->AwaitIndices(static_cast<uint32_t>(count));
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
