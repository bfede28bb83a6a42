// SPDX-License-Identifier: Apache-2.0
//
// What CUDA C++ has no words for, or other words than C++: dynamic shared memory, asynchronous
// copies into it, ordered loads and stores that other processors see, the global clock. Everything
// else of kernels/cuda is plain CUDA C++.
//
// The emulation that runs these kernels in unit tests has its own file of this name.

#pragma once

#include <cstdint>

namespace lamina::kernels::cuda {

// The thread block's dynamic shared memory, as many bytes as its launch asked for.
__device__ inline unsigned char* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return dynamic_shared;
}

// Starts copying 16 bytes from global to shared memory; both addresses multiples of 16.
__device__ inline void CopyAsync16(void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

// Waits for all copies that this thread started. Other threads see them after a barrier.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What was written before the matching StoreRelease, by whatever processor, is visible after it.
__device__ inline uint64_t LoadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline void StoreRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// One look at a word that another processor may change; orders nothing.
__device__ inline uint32_t LoadRelaxed(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Nanoseconds of the device's clock; it ticks in steps of up to about a microsecond.
__device__ inline uint64_t GlobalNanos() {
  uint64_t nanos;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanos)::"memory");
  return nanos;
}

// Gives the scheduler back for about `nanos`, at most twice that.
__device__ inline void Pause(uint32_t nanos) { __nanosleep(nanos); }

}  // namespace lamina::kernels::cuda
