// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA runtime that kernels/cuda calls, over ordinary memory: device memory is host
// memory, and every call is done when it returns, unless a stream captures it for a graph. Calls
// that take or give back memory wait for all streams (streams.h).

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "tests/support/cuda_emulation/cuda_error.h"
#include "tests/support/cuda_emulation/device_heap.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/support/cuda_emulation/streams.h"

using dim3 = lamina::cuda_emulation::Dim3;

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
enum cudaLimit { cudaLimitStackSize = 0 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

struct cudaDeviceProp {
  char name[256] = {};
  size_t totalGlobalMem = 0;
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaHostAllocPortable = 1;
inline constexpr unsigned cudaHostAllocMapped = 2;
inline constexpr unsigned cudaHostRegisterPortable = 1;
inline constexpr unsigned cudaHostRegisterMapped = 2;

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
  const lamina::cuda_emulation::Card card = lamina::cuda_emulation::CurrentCard();
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin
               ? static_cast<int>(card.shared_bytes_max)
           : attribute == cudaDevAttrComputeCapabilityMajor ? card.capability_major
           : attribute == cudaDevAttrComputeCapabilityMinor ? card.capability_minor
           : attribute == cudaDevAttrGPUDirectRDMAFlushWritesOptions
               ? cudaFlushGPUDirectRDMAWritesOptionHost
           : attribute == cudaDevAttrMultiProcessorCount ? 1
                                                         : 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetLimit(size_t* bytes, cudaLimit) {
  *bytes = 1024;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) {
  return lamina::cuda_emulation::WaitForDevice();
}

// Refuses what no device of today has, so that the error can be tested.
inline cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = lamina::cuda_emulation::WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  *data = lamina::cuda_emulation::AllocateDevice(bytes);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (const cudaError_t error = lamina::cuda_emulation::WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  *data = lamina::cuda_emulation::AllocateHost(bytes);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* data) {
  if (const cudaError_t error = lamina::cuda_emulation::WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  return lamina::cuda_emulation::FreeDevice(data) ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t error = lamina::cuda_emulation::WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  return lamina::cuda_emulation::FreeHost(data) ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  const cudaError_t error = lamina::cuda_emulation::WaitForDevice();
  return error == cudaSuccess ? lamina::cuda_emulation::RegisterHost(data, bytes) : error;
}
inline cudaError_t cudaHostUnregister(void* data) {
  const cudaError_t error = lamina::cuda_emulation::WaitForDevice();
  return error == cudaSuccess ? lamina::cuda_emulation::UnregisterHost(data) : error;
}
inline cudaError_t cudaHostGetDevicePointer(void** device, void* data, unsigned) {
  if (!lamina::cuda_emulation::IsRegistered(data)) {
    return cudaErrorInvalidValue;
  }
  *device = data;
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  lamina::cuda_emulation::NoteCopy();
  return lamina::cuda_emulation::Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, cudaMemcpyKind,
                                     cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) {
    return cudaErrorInvalidPitchValue;
  }
  lamina::cuda_emulation::NoteCopy();
  return lamina::cuda_emulation::Enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return lamina::cuda_emulation::Enqueue(stream, [=] { std::memset(to, value, bytes); });
}

// As on a device, a process does not open what it exported itself.
struct cudaIpcMemHandle_t {
  char reserved[64];
};
inline constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;
inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  lamina::cuda_emulation::DevicePiece piece;
  static_assert(sizeof piece <= sizeof *handle);
  if (!lamina::cuda_emulation::ExportDevice(data, &piece)) {
    return cudaErrorInvalidValue;
  }
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &piece, sizeof piece);
  return cudaSuccess;
}
inline cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t error = lamina::cuda_emulation::WaitForDevice(); error != cudaSuccess) {
    return error;
  }
  lamina::cuda_emulation::DevicePiece piece;
  std::memcpy(&piece, handle.reserved, sizeof piece);
  *data = lamina::cuda_emulation::ImportDevice(piece);
  return *data != nullptr ? cudaSuccess : cudaErrorDeviceUninitialized;
}
inline cudaError_t cudaIpcCloseMemHandle(void* data) { return cudaFree(data); }

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
  *stream = lamina::cuda_emulation::CreateStream();
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  lamina::cuda_emulation::DestroyStream(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return lamina::cuda_emulation::Query(stream);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return lamina::cuda_emulation::Synchronize(stream);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return lamina::cuda_emulation::RecordEvent(event, stream);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return lamina::cuda_emulation::SynchronizeEvent(event);
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return lamina::cuda_emulation::BeginCapture(stream);
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return lamina::cuda_emulation::EndCapture(stream, graph);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                        unsigned long long = 0) {
  return lamina::cuda_emulation::Instantiate(executable, graph);
}
inline cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& work : executable->work) {
    if (const cudaError_t error = lamina::cuda_emulation::Enqueue(stream, work);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
