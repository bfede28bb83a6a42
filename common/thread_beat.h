// SPDX-License-Identifier: Apache-2.0
//
// ThreadBeat: a word that a node's data thread raises while it gets on, and what it says that it is
// doing, so that others see whether it moves.
//
// It is raised between ops and pieces of work, and at each nap of a wait: no wait of a data thread
// is longer than kNapMost without a beat. A thread that hangs in a lock, in the kernel or under a
// debugger raises nothing, however alive the other threads of its process are. What prepares an
// epoch on another thread, while there is no data thread, says so with an ActivityScope.
//
// Threading: one writer at a time: the data thread, or who prepares while there is none. Any
// reader. Cost:      Raise() is a load and a store, relaxed; no clock, no lock.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina {

enum class ThreadActivity : uint8_t {
  kNone,        // There is no data thread: the node has no part in an epoch.
  kIdle,        // It sleeps for want of work, in naps.
  kWorking,     // It runs a step, or waits for a peer's part of one.
  kLoading,     // Weights are loaded.
  kPreparing,   // Memory and regions of an epoch are made.
  kConnecting,  // The regions of peers are opened.
};

// In the order of the enum, for people and on the wire.
inline constexpr std::array<absl::string_view, 6> kThreadActivityNames = {
    "none", "idle", "working", "loading", "preparing", "connecting"};

inline absl::string_view NameOf(ThreadActivity activity) {
  return kThreadActivityNames[static_cast<size_t>(activity)];
}

// kNone for a name that there is not.
inline ThreadActivity ThreadActivityOf(absl::string_view name) {
  for (size_t i = 0; i < kThreadActivityNames.size(); ++i) {
    if (kThreadActivityNames[i] == name) {
      return static_cast<ThreadActivity>(i);
    }
  }
  return ThreadActivity::kNone;
}

class ThreadBeat {
 public:
  // The longest sleep without a beat.
  static constexpr Nanos kNapMost = Millis(100);

  void Raise() {
    beats_.store(beats_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // The writer does something else from now on.
  void Begin(ThreadActivity activity) {
    activity_.store(activity, std::memory_order_relaxed);
    Raise();
  }

  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  ThreadActivity activity() const { return activity_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> beats_{0};
  std::atomic<ThreadActivity> activity_{ThreadActivity::kNone};
};

// The writer does this while the scope lasts, and then again what it did before.
class ActivityScope {
 public:
  ActivityScope(ThreadBeat& beat, ThreadActivity activity) : beat_(beat), before_(beat.activity()) {
    beat.Begin(activity);
  }
  ~ActivityScope() { beat_.Begin(before_); }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  ThreadBeat& beat_;
  const ThreadActivity before_;
};

}  // namespace lamina
