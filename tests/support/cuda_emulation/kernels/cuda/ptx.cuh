// SPDX-License-Identifier: Apache-2.0
//
// kernels/cuda/ptx.cuh on the CPU.

#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "tests/support/cuda_emulation/emulation.h"

namespace lamina::kernels::cuda {

inline unsigned char* DynamicShared() { return cuda_emulation::Shared(); }

inline void CopyAsync16(void* shared, const void* global) { std::memcpy(shared, global, 16); }
inline void WaitForCopies() {}

inline uint64_t LoadAcquire(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void StoreRelease(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline uint32_t LoadRelaxed(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

inline uint64_t GlobalNanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline void Pause(uint32_t) { std::this_thread::yield(); }

}  // namespace lamina::kernels::cuda
