// SPDX-License-Identifier: Apache-2.0
//
// kernels/cuda/ptx.cuh on the CPU.

#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/warp_operations.h"

namespace lamina::kernels::cuda {

inline void WaitForLaunchBefore() { cuda_emulation::NoteWaited(); }

inline unsigned char* DynamicShared() { return cuda_emulation::Shared(); }

inline void CopyAsync16(void* shared, const void* global) { emulated::Start(shared, global); }
inline void CopyAsync16OrZero(void* shared, const void* global, bool real) {
  emulated::Start(shared, real ? global : nullptr);
}
template <typename T>
void LoadOnce(const void* from, T& to) {
  emulated::CheckAligned(from, sizeof(T));
  std::memcpy(&to, from, sizeof(T));
}
inline void EndCopyGroup() { emulated::Copies().push_back({nullptr, nullptr, true}); }
template <int kLeft>
void WaitForCopyGroups() {
  int groups = 0;
  for (const emulated::Copy& copy : emulated::Copies()) {
    groups += copy.ends_group ? 1 : 0;
  }
  while (groups > kLeft) {
    groups -= emulated::Copies().front().ends_group ? 1 : 0;
    emulated::FinishFirst();
  }
}
inline void WaitForCopies() {
  while (!emulated::Copies().empty()) {
    emulated::FinishFirst();
  }
}

inline void LoadMatrices(const uint16_t* row, uint32_t (&fragment)[4]) {
  emulated::CheckAligned(row, 16);
  const auto& rows = emulated::ShowWarp(row);
  const size_t lane = cuda_emulation::Lane();
  for (size_t i = 0; i < 4; ++i) {
    std::memcpy(&fragment[i], rows[8 * i + lane / 4] + lane % 4 * 2, sizeof(uint32_t));
  }
}

inline void LoadTransposed(const uint16_t* row, uint32_t (&fragment)[4]) {
  emulated::CheckAligned(row, 16);
  const auto& rows = emulated::ShowWarp(row);
  const size_t lane = cuda_emulation::Lane();
  for (size_t i = 0; i < 4; ++i) {
    const size_t first = 8 * i + lane % 4 * 2;
    fragment[i] = rows[first][lane / 4] | uint32_t{rows[first + 1][lane / 4]} << 16;
  }
}

using SharedAddress = unsigned char*;
inline SharedAddress SharedAddressOf(const void* shared) {
  return static_cast<unsigned char*>(const_cast<void*>(shared));
}
inline void CopyAsync16OrZeroTo(SharedAddress shared, const void* global, bool real) {
  CopyAsync16OrZero(shared, global, real);
}
inline void LoadMatricesAt(SharedAddress row, uint32_t (&fragment)[4]) {
  LoadMatrices(reinterpret_cast<const uint16_t*>(row), fragment);
}
inline void LoadTransposedAt(SharedAddress row, uint32_t (&fragment)[4]) {
  LoadTransposed(reinterpret_cast<const uint16_t*>(row), fragment);
}

// Sums in the order of the columns of `a`, each product fused: a device has an order of its own.
inline void MultiplyMatrices(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  struct Factors {
    uint32_t a[4];
    uint32_t b[2];
  };
  const auto& lanes = emulated::ShowWarp(Factors{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const size_t lane = cuda_emulation::Lane();
  for (size_t i = 0; i < 4; ++i) {
    const size_t row_lanes = lane / 4 * 4;  // Those that have row l / 4, or 8 further,
    const size_t column_lanes = (lane % 4 * 2 + i % 2) * 4;  // and those that have this column.
    for (size_t k = 0; k < 16; ++k) {
      const size_t part = k % 8 / 2;
      const uint32_t left = lanes[row_lanes + part].a[i / 2 + k / 8 * 2];
      const uint32_t right = lanes[column_lanes + part].b[k / 8];
      c[i] = std::fma(emulated::Half(left, k % 2), emulated::Half(right, k % 2), c[i]);
    }
  }
}

inline uint32_t PackBFloat16(float low, float high) {
  return emulated::NearestBFloat16(low) | emulated::NearestBFloat16(high) << 16;
}

inline float ExpTwo(float x) {
  const float power = std::exp2(x);
  return std::fabs(power) < 0x1p-126f ? 0.0f : power;
}

inline uint64_t LoadAcquire(const uint64_t* word) {
  emulated::CheckVisible(word);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void StoreRelease(uint64_t* word, uint64_t value) {
  emulated::CheckVisible(word);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline uint32_t LoadRelaxed(const uint32_t* word) {
  emulated::CheckVisible(word);
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

inline uint64_t GlobalNanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline void Pause(uint32_t) { std::this_thread::yield(); }

}  // namespace lamina::kernels::cuda
