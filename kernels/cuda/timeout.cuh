// SPDX-License-Identifier: Apache-2.0
//
// Timeout: how long a wait goes on before it times out. The time counts from the peer's last sign
// of life, which is a change of its heartbeat, or else from the start.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lamina::kernels::cuda {

class Timeout {
 public:
  __device__ Timeout(uint64_t timeout_nanos, uint64_t now, uint64_t beat)
      : timeout_(timeout_nanos), since_(now), beat_(beat) {}

  // Whether the timeout has passed without a change of `beat`.
  __device__ bool IsOver(uint64_t now, uint64_t beat) {
    if (beat != beat_) {
      beat_ = beat;
      since_ = now;
    }
    return now - since_ >= timeout_;
  }

 private:
  uint64_t timeout_;
  uint64_t since_;
  uint64_t beat_;
};

}  // namespace lamina::kernels::cuda
