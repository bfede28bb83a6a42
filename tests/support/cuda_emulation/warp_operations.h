// SPDX-License-Identifier: Apache-2.0
//
// What asynchronous copies and matrix operations of the emulated ptx.cuh are made of.
//
// An asynchronous copy fills its place with 0xff bytes when it starts, and brings what it copies
// when its thread waits for it: so a kernel that reads too early, or starts a copy into what others
// still read, has wrong results here too.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"

namespace lamina::kernels::cuda::emulated {

inline constexpr size_t kThreadsMax = 1024;
inline constexpr size_t kWarpThreads = 32;

inline size_t Thread() { return cuda_emulation::Here().thread.x; }

[[noreturn]] inline void Stop(const char* why) {
  std::fprintf(stderr, "CUDA emulation: %s\n", why);
  std::abort();
}

inline void CheckAligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    Stop("an address of a copy or a matrix is not aligned");
  }
}

inline void CheckVisible(const void* address) {
  if (!cuda_emulation::IsVisible(address)) {
    Stop("a kernel touches memory that is neither the device's nor pinned nor registered");
  }
}

struct Copy {
  void* to;
  const void* from;  // Null: zeros.
  bool ends_group;   // The end of a group, and no copy.
};

inline std::deque<Copy>& Copies() {
  static thread_local std::array<std::deque<Copy>, kThreadsMax> copies;
  return copies[Thread()];
}

inline void Start(void* shared, const void* global) {
  CheckAligned(shared, 16);
  CheckAligned(global, 16);
  std::memset(shared, 0xff, 16);
  Copies().push_back({shared, global, false});
}

inline void FinishFirst() {
  const Copy copy = Copies().front();
  Copies().pop_front();
  if (copy.ends_group) {
    return;
  }
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

// Shows `mine` to the warp and returns what its lanes show. Two tables, as a thread can be one
// exchange ahead of another, not two.
template <typename T>
const std::array<T, kWarpThreads>& ShowWarp(const T& mine) {
  struct Shown {
    std::array<T, kWarpThreads> values;
    std::array<uint64_t, kWarpThreads> counts;
  };
  static thread_local std::array<std::array<Shown, 2>, kThreadsMax / kWarpThreads> warps;
  static thread_local std::array<uint64_t, kThreadsMax> counts;
  const uint64_t count = counts[Thread()]++;
  Shown& shown = warps[Thread() / kWarpThreads][count % 2];
  shown.values[cuda_emulation::Lane()] = mine;
  shown.counts[cuda_emulation::Lane()] = count;
  cuda_emulation::SyncWarp();
  for (const uint64_t other : shown.counts) {
    if (other != count) {
      Stop("part of a warp left a matrix operation");
    }
  }
  return shown.values;
}

inline float LowerHalf(uint32_t word) {
  word <<= 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline float Half(uint32_t word, size_t half) { return LowerHalf(half == 0 ? word : word >> 16); }

inline uint32_t NearestBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

}  // namespace lamina::kernels::cuda::emulated
