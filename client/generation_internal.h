// SPDX-License-Identifier: Apache-2.0
//
// A generation of the client library: a Generate call, and the calls of Attach that go on with it
// where its coordinator dies and journals it (resumption.h).
//
// Threading: as of Client::StartGenerate().

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cancellation.h"
#include "client/client.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::client::internal {

// How many generations of a client wait for the coordinator.
//
// Threading: any thread.
class WaitingGenerations {
 public:
  // `on_wait` is called, if there is one, for the first of those that wait.
  explicit WaitingGenerations(std::function<void()> on_wait) : on_wait_(std::move(on_wait)) {}

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

// `stub` and `waiting` must live until `on_done` was called, which is last.
void StartGeneration(v1::Inference::Stub& stub, WaitingGenerations& waiting,
                     const GenerateOptions& options, ChunkFunction on_chunk, DoneFunction on_done,
                     const Cancellation& cancellation);

}  // namespace lamina::client::internal
