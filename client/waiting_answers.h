// SPDX-License-Identifier: Apache-2.0
//
// WaitingAnswers: how many generations and scores of a client wait for the coordinator.
//
// Threading: any thread.

#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lamina::client::internal {

class WaitingAnswers {
 public:
  // `on_wait` is called, if there is one, for the first of those that wait.
  explicit WaitingAnswers(std::function<void()> on_wait) : on_wait_(std::move(on_wait)) {}

  void Begin() {
    {
      const absl::MutexLock lock(&mu_);
      if (++count_ > 1) {
        return;
      }
    }
    if (on_wait_ != nullptr) {
      on_wait_();
    }
  }
  void End() {
    const absl::MutexLock lock(&mu_);
    --count_;
  }

 private:
  const std::function<void()> on_wait_;
  absl::Mutex mu_;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lamina::client::internal
