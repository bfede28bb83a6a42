// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ as ordinary C++: keywords, built-in variables and functions that kernels/cuda uses.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/support/cuda_emulation/cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define threadIdx (lamina::cuda_emulation::Here().thread)
#define blockIdx (lamina::cuda_emulation::Here().block)
#define blockDim (lamina::cuda_emulation::Here().block_dim)
#define gridDim (lamina::cuda_emulation::Here().grid_dim)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}

inline void __syncthreads() { lamina::cuda_emulation::SyncThreads(); }
inline void __syncwarp() { lamina::cuda_emulation::SyncWarp(); }
inline void __threadfence_system() {}

template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = lamina::cuda_emulation::Exchange(bits, static_cast<unsigned>(source));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int offset) {
  return __shfl_sync(mask, value, static_cast<int>(lamina::cuda_emulation::Lane()) ^ offset);
}

template <typename T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place = before + value;
  return before;
}
template <typename T>
T atomicOr(T* place, T value) {
  const T before = *place;
  *place = before | value;
  return before;
}
template <typename T>
T atomicMax(T* place, T value) {
  const T before = *place;
  *place = before < value ? value : before;
  return before;
}
