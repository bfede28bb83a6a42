// SPDX-License-Identifier: Apache-2.0
//
// What CUDA C++ has no words for, or other words than C++: dynamic shared memory, asynchronous
// copies into it, products on tensor cores, ordered loads and stores that other processors see, the
// global clock, the launch before. Everything else of kernels/cuda is plain CUDA C++.
//
// The emulation that runs these kernels in unit tests has its own file of this name.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <nv/target>

namespace lamina::kernels::cuda {

// Begins a kernel whose launch may be dependent (launch.cuh): waits until the launch before it on
// the stream has ended and all that it wrote is there, and so, since that one waited too, all
// before; then lets the next one be launched. After an ordinary launch it does nothing.
__device__ inline void WaitForLaunchBefore() {
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (cudaGridDependencySynchronize(); cudaTriggerProgrammaticLaunchCompletion();))
}

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

// Starts copying them if they are `real`, else writes 16 bytes of zeros and reads nothing.
__device__ inline void CopyAsync16OrZero(void* shared, const void* global, bool real) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}

// Loads what no kernel writes meanwhile, and what this one reads once: past the first-level cache.
__device__ inline void LoadOnce(const void* from, uint4& to) {
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
      : "l"(from));
}
__device__ inline void LoadOnce(const void* from, uint2& to) {
  asm("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
      : "=r"(to.x), "=r"(to.y)
      : "l"(from));
}
__device__ inline void LoadOnce(const void* from, uint32_t& to) {
  asm("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(to) : "l"(from));
}

// Ends a group of copies that this thread started since the last one; it may be empty.
__device__ inline void EndCopyGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of this thread but the last `kLeft`.
template <int kLeft>
__device__ inline void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Waits for all copies that this thread started. Other threads see them after a barrier.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Loads four matrices of 8 x 8 bf16 for the warp, one to an element of `fragment`. Lane 8i + r
// gives the address of row r of matrix i, a multiple of 16; lane l gets of each matrix elements 2(l
// mod 4) and the next of row l / 4, the first in the lower half. The whole warp takes part.
__device__ inline void LoadMatrices(const uint16_t* row, uint32_t (&fragment)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// A place in shared memory, so many bytes behind which others lie: known to be there, it costs no
// conversion at each use.
using SharedAddress = uint32_t;
__device__ inline SharedAddress SharedAddressOf(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void CopyAsync16OrZeroTo(SharedAddress shared, const void* global, bool real) {
  const uint32_t bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// LoadMatrices() and LoadTransposed() of rows at such addresses.
__device__ inline void LoadMatricesAt(SharedAddress row, uint32_t (&fragment)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row));
}
__device__ inline void LoadTransposedAt(SharedAddress row, uint32_t (&fragment)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row));
}

// Loads each matrix's transpose: lane l gets elements l / 4 of rows 2(l mod 4) and the next.
__device__ inline void LoadTransposed(const uint16_t* row, uint32_t (&fragment)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// c += a b on tensor cores, by the whole warp: a [16, 16] and b [16, 8] bf16, c [16, 8] f32. Lane
// l = 4g + i has, as the PTX ISA lays out mma.m16n8k16, two neighbours to a word:
//   a[0], a[1]  rows g and g + 8, columns 2i, 2i + 1        a[2], a[3]  columns 8 further
//   b0, b1      rows 2i, 2i + 1 and 8 further, column g
//   c[0], c[1]  row g, columns 2i, 2i + 1                   c[2], c[3]  row g + 8
// An element of c follows from its own row of a and column of b alone.
__device__ inline void MultiplyMatrices(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                        float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Both rounded to bf16, to nearest even; `low` in the lower half.
__device__ inline uint32_t PackBFloat16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 2^x within 2^-22 of itself; 0 for minus infinity, and where the result would be subnormal.
__device__ inline float ExpTwo(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

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
