// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/load_kernels.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/kernel_limits.h"
#include "kernels/cuda/row_kernels.cuh"
#include "kernels/cuda/sampling_kernels.cuh"
#include "kernels/cuda/wait_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kDevicesMax = 64;  // Those above are loaded each time.

using LoadFunction = cudaError_t (*)(KernelLimits&);
constexpr LoadFunction kLoad[] = {
    &LoadAttendBlocks, &LoadAttendBlocksDecode, &LoadAttendBlocksTensor, &LoadAttendRunsTensor,
    &LoadMergeBlocks,  &LoadRowKernels,         &LoadSampling,           &LoadWaits};

// Bits of devices whose kernels wait.
std::atomic<uint64_t> waiting{0};

uint64_t BitOf(int index) { return index < kDevicesMax ? uint64_t{1} << index : 0; }

absl::Status LoadAll(const DeviceInfo& device) {
  KernelLimits limits = {.shared_bytes_max = device.shared_bytes_max};
  for (const LoadFunction load : kLoad) {
    const cudaError_t error = load(limits);
    if (error == cudaErrorNoKernelImageForDevice) {
      return absl::UnimplementedError(absl::StrCat(
          device.name, " has compute capability ", device.capability_major, ".",
          device.capability_minor, ", for which this program has no kernels: ",
          device.capability_major < 8
              ? "they need 8.0 or later (products of bf16 on tensor cores, asynchronous "
                "copies)"
              : "it was built for others; CMAKE_CUDA_ARCHITECTURES says for which"));
    }
    LAMINA_RETURN_IF_ERROR(CudaToStatus(error, "loading a kernel"));
  }
  if (limits.ptx_version_min >= 10 * kDependentCapabilityMajor) {
    waiting.fetch_or(BitOf(device.index), std::memory_order_relaxed);
  }
  size_t stack = 0;
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaDeviceGetLimit(&stack, cudaLimitStackSize), "cudaDeviceGetLimit"));
  if (stack >= limits.local_bytes) {
    return absl::OkStatus();
  }
  return CudaToStatus(cudaDeviceSetLimit(cudaLimitStackSize, limits.local_bytes),
                      absl::StrCat("cudaDeviceSetLimit(stack, ", limits.local_bytes, ")"));
}

}  // namespace

absl::Status LoadKernels(const DeviceInfo& device) {
  // Two threads may both find a device new; then both load, which is no harm.
  static std::atomic<uint64_t> loaded{0};
  const uint64_t bit = BitOf(device.index);
  if ((loaded.load(std::memory_order_acquire) & bit) != 0) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(LoadAll(device));
  loaded.fetch_or(bit, std::memory_order_release);
  return absl::OkStatus();
}

bool LoadedKernelsWait(int index) {
  return (waiting.load(std::memory_order_relaxed) & BitOf(index)) != 0;
}

}  // namespace lamina::kernels::cuda
