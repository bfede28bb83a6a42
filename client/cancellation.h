// SPDX-License-Identifier: Apache-2.0
//
// Cancellation: one thread's word to another that it should stop. Copies share one state.
//
// Threading: any thread. Not from a signal handler: have a thread wait for the signal.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lamina::client {

class Cancellation {
 public:
  Cancellation() : state_(std::make_shared<State>()) {}

  // Runs what was registered, once. Later calls do nothing.
  void Cancel() const {
    std::map<uint64_t, std::function<void()>> listeners;
    {
      const absl::MutexLock lock(&state_->mu);
      state_->cancelled = true;
      listeners.swap(state_->listeners);
    }
    for (const auto& [id, listener] : listeners) {
      listener();
    }
  }

  bool cancelled() const {
    const absl::MutexLock lock(&state_->mu);
    return state_->cancelled;
  }

  // Runs `listener` in the thread that cancels, or now when that has happened. Returns an id for
  // Remove(). A listener may still be running when Remove() returns: it must own what it uses.
  uint64_t Listen(std::function<void()> listener) const {
    {
      const absl::MutexLock lock(&state_->mu);
      if (!state_->cancelled) {
        state_->listeners.emplace(++state_->last_id, std::move(listener));
        return state_->last_id;
      }
    }
    listener();
    return 0;
  }

  void Remove(uint64_t id) const {
    const absl::MutexLock lock(&state_->mu);
    state_->listeners.erase(id);
  }

 private:
  struct State {
    absl::Mutex mu;
    bool cancelled ABSL_GUARDED_BY(mu) = false;
    uint64_t last_id ABSL_GUARDED_BY(mu) = 0;
    std::map<uint64_t, std::function<void()>> listeners ABSL_GUARDED_BY(mu);
  };
  std::shared_ptr<State> state_;
};

}  // namespace lamina::client
