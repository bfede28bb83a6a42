// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA runtime that kernels/cuda calls, over ordinary memory: device memory is host
// memory, streams and events do nothing because every call is done when it returns.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "tests/support/cuda_emulation/emulation.h"

using dim3 = lamina::cuda_emulation::Dim3;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
};

inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : error == cudaErrorLaunchFailure  ? "cudaErrorLaunchFailure"
                                            : "cudaErrorInvalidValue";
}
inline const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrGPUDirectRDMAFlushWritesOptions = 117,
  cudaDevAttrGPUDirectRDMAWritesOrdering = 118,
};
enum cudaGPUDirectRDMAWritesOrdering { cudaGPUDirectRDMAWritesOrderingOwner = 100 };
enum cudaFlushGPUDirectRDMAWritesOptions { cudaFlushGPUDirectRDMAWritesOptionHost = 1 };
enum cudaFlushGPUDirectRDMAWritesScope { cudaFlushGPUDirectRDMAWritesToOwner = 100 };
enum cudaFlushGPUDirectRDMAWritesTarget { cudaFlushGPUDirectRDMAWritesTargetCurrentDevice };
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
};
inline constexpr unsigned long long cudaEnableDefault = 0;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

struct cudaDeviceProp {
  char name[256] = {};
  size_t totalGlobalMem = 0;
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaHostAllocPortable = 1;
inline constexpr unsigned cudaHostAllocMapped = 2;

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulation");
  properties->totalGlobalMem = size_t{1} << 30;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 * 1024
           : attribute == cudaDevAttrComputeCapabilityMajor     ? 9
           : attribute == cudaDevAttrGPUDirectRDMAFlushWritesOptions
               ? cudaFlushGPUDirectRDMAWritesOptionHost
           : attribute == cudaDevAttrMultiProcessorCount ? 1
                                                         : 0;
  return cudaSuccess;
}

// Refuses what no device of today has, so that the error can be tested.
inline cudaError_t cudaMalloc(void** data, size_t bytes) {
  const size_t padded = (bytes + 255) / 256 * 256;
  const size_t alignment = bytes >= size_t{1} << 21 ? 4096 : 256;  // Large ones on whole pages.
  *data = bytes > size_t{1} << 40 ? nullptr : std::aligned_alloc(alignment, padded);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return cudaMalloc(data, bytes);
}
inline cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// There is no driver.
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
  *function = nullptr;
  *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                                      cudaFlushGPUDirectRDMAWritesScope) {
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return lamina::cuda_emulation::TakeFailure() ? cudaErrorLaunchFailure : cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}
