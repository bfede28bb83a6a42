// SPDX-License-Identifier: Apache-2.0
//
// OpenCalls: how many asynchronous calls have not ended. Whoever made them waits for none before it
// goes, since their threads use it. Shared with the calls: the last of them may still be leaving
// its lock then.
//
// Threading: any thread.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lamina::client {

class OpenCalls {
 public:
  void Add(int64_t count) {
    const absl::MutexLock lock(&mu_);
    count_ += count;
  }
  void AwaitNone() {
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &OpenCalls::None));
  }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ == 0; }

  absl::Mutex mu_;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lamina::client
