// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/emulation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/cuda_emulation/device_heap.h"
#include "tests/support/cuda_emulation/fiber.h"

namespace lamina::cuda_emulation {
namespace {

constexpr size_t kWarpThreads = 32;
constexpr size_t kThreadsMax = 1024;
constexpr size_t kSharedBytesMax = 227 * 1024;

[[noreturn]] void Stop(const char* why) {
  std::fprintf(stderr, "CUDA emulation: %s\n", why);
  std::abort();
}

enum class State : uint8_t { kRunnable, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Thread {
  Fiber fiber;
  State state = State::kDone;
  unsigned exchanges = 0;  // So far; its parity names the place of the next value.
  bool waited = false;     // For the launch before.
  Dim3 index;
};

// What the warp shows itself. Two places each: a thread can be one exchange ahead, not two.
struct Warp {
  std::array<std::array<uint64_t, kWarpThreads>, 2> values;
};

class Machine {
 public:
  static Machine& Mine() {
    static thread_local Machine machine;
    return machine;
  }

  void RunBlock(const Dim3& block, const Dim3& block_dim, const Dim3& grid_dim,
                const std::function<void()>& body) {
    body_ = &body;
    count_ = block_dim.x;
    if (count_ == 0 || count_ > kThreadsMax || block_dim.y != 1 || block_dim.z != 1) {
      Stop("a block has 1 to 1024 threads, all of them in x");
    }
    place_ = {.thread = {}, .block = block, .block_dim = block_dim, .grid_dim = grid_dim};
    if (threads_.size() < count_) {
      threads_.resize(count_);
    }
    warps_.resize((count_ + kWarpThreads - 1) / kWarpThreads);
    for (size_t i = 0; i < count_; ++i) {
      Prepare(i);
    }
    while (RunRunnable()) {
      Release();
    }
  }

  void Wait(State state) {
    Thread& thread = threads_[current_];
    thread.state = state;
    thread.fiber.Leave();
  }

  uint64_t Exchange(uint64_t value, unsigned source) {
    Thread& thread = threads_[current_];
    const size_t warp = current_ / kWarpThreads;
    const unsigned parity = thread.exchanges++ % 2;
    warps_[warp].values[parity][current_ % kWarpThreads] = value;
    if ((warp + 1) * kWarpThreads > count_) {
      Stop("a shuffle in a warp that is not whole");
    }
    Wait(State::kAtWarpBarrier);
    return warps_[warp].values[parity][source % kWarpThreads];
  }

  // The next blocks are those of a launch that is dependent, or not.
  void BeginLaunch(bool dependent) {
    dependent_ = dependent;
    closed_ = dependent && CloseUnderWork();
  }

  void NoteWaited() {
    threads_[current_].waited = true;
    if (closed_) {
      closed_ = false;
      OpenDevice();
    }
  }

  unsigned lane() const { return static_cast<unsigned>(current_ % kWarpThreads); }
  Place place_;
  std::vector<unsigned char> shared_;

 private:
  static void Enter() {
    Machine& machine = Mine();
    (*machine.body_)();
    if (machine.dependent_ && !machine.threads_[machine.current_].waited) {
      Stop("a thread of a dependent launch has not waited for the launch before");
    }
    machine.threads_[machine.current_].state = State::kDone;
    machine.threads_[machine.current_].fiber.Leave();
  }

  void Prepare(size_t i) {
    Thread& thread = threads_[i];
    thread.state = State::kRunnable;
    thread.exchanges = 0;
    thread.waited = false;
    thread.index = Dim3(static_cast<unsigned>(i), 0, 0);
    thread.fiber.Begin(&Machine::Enter);
  }

  // Returns whether some thread is not done.
  bool RunRunnable() {
    bool alive = false;
    for (size_t i = 0; i < count_; ++i) {
      if (threads_[i].state == State::kRunnable) {
        current_ = i;
        place_.thread = threads_[i].index;
        threads_[i].fiber.Resume();
      }
      alive = alive || threads_[i].state != State::kDone;
    }
    return alive;
  }

  // Opens the barriers that everybody has reached.
  void Release() {
    bool released = false;
    for (size_t first = 0; first < count_; first += kWarpThreads) {
      const size_t end = std::min(first + kWarpThreads, count_);
      released = ReleaseAll(first, end, State::kAtWarpBarrier, false) || released;
    }
    if (!released && !ReleaseAll(0, count_, State::kAtBlockBarrier, true)) {
      Stop("threads of a block wait at different barriers, or part of a warp left a shuffle");
    }
  }

  // Threads that are done count as arrived at a block's barrier, not at a warp's.
  bool ReleaseAll(size_t first, size_t end, State state, bool done_counts) {
    for (size_t i = first; i < end; ++i) {
      if (threads_[i].state != state && !(done_counts && threads_[i].state == State::kDone)) {
        return false;
      }
    }
    for (size_t i = first; i < end; ++i) {
      if (threads_[i].state == state) {
        threads_[i].state = State::kRunnable;
      }
    }
    return true;
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  size_t count_ = 0;
  size_t current_ = 0;
  bool dependent_ = false;
  bool closed_ = false;  // Device memory, until a thread has waited.
};

}  // namespace

const Place& Here() { return Machine::Mine().place_; }

void RunGrid(const Dim3& grid, const Dim3& block, size_t shared_bytes,
             const std::function<void()>& body, bool dependent) {
  if (shared_bytes > kSharedBytesMax) {
    Stop("more shared memory than a thread block can have");
  }
  Machine& machine = Machine::Mine();
  machine.BeginLaunch(dependent);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        machine.shared_.assign(shared_bytes, 0xff);
        machine.RunBlock(Dim3(x, y, z), block, grid, body);
      }
    }
  }
}

unsigned char* Shared() { return Machine::Mine().shared_.data(); }

void NoteWaited() { Machine::Mine().NoteWaited(); }

void SyncThreads() { Machine::Mine().Wait(State::kAtBlockBarrier); }

void SyncWarp() { Machine::Mine().Wait(State::kAtWarpBarrier); }

uint64_t Exchange(uint64_t value, unsigned source) {
  return Machine::Mine().Exchange(value, source);
}

unsigned Lane() { return Machine::Mine().lane(); }

namespace {
std::atomic<bool> failure_due{false};
}  // namespace

void FailNextSynchronize() { failure_due.store(true); }
bool TakeFailure() { return failure_due.exchange(false); }

}  // namespace lamina::cuda_emulation
