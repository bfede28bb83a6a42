// SPDX-License-Identifier: Apache-2.0
//
// Launch: starts a kernel on a stream. A function and not <<<>>>, so that arguments convert as in a
// call and the error comes back.
//
// A kernel is loaded before, by LoadKernels() (load_kernels.h). CUDA would load it at its first
// launch, and so wait for all kernels that run, under a lock that stops other threads' launches:
// where one of those polls for what another thread is to launch, neither goes on.
//
// A launch may be dependent (dependent_launches.h). Then the kernel begins with
// WaitForLaunchBefore() (ptx.cuh), in every thread and before it touches memory; and what is put
// into the stream right before it is no product of cuBLASLt's, of whose kernels we do not know what
// they wait for.

#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/kernel_limits.h"

namespace lamina::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool dependent = false;  // Where the device has such launches.
};

// Loads a kernel into this thread's device, and lets its launches have all the dynamic shared
// memory that there is: set once, and not at launches, of which those by other threads may ask for
// less meanwhile.
template <typename... Parameters>
cudaError_t LoadKernel(void (*kernel)(Parameters...), KernelLimits& limits) {
  cudaFuncAttributes attributes = {};
  const cudaError_t loaded = cudaFuncGetAttributes(&attributes, kernel);
  if (loaded != cudaSuccess) {
    return loaded;
  }
  if (attributes.localSizeBytes > limits.local_bytes) {
    limits.local_bytes = attributes.localSizeBytes;
  }
  if (attributes.ptxVersion < limits.ptx_version_min) {
    limits.ptx_version_min = attributes.ptxVersion;
  }
  const size_t dynamic = limits.shared_bytes_max - attributes.sharedSizeBytes;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(dynamic));
}

// Loads the kernels up to the first that fails.
template <typename... Kernels>
cudaError_t LoadEach(KernelLimits& limits, Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  ((error == cudaSuccess ? void(error = LoadKernel(kernels, limits)) : void()), ...);
  return error;
}

// Does not synchronise. An error of the launch itself is returned; one of the run shows later.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const LaunchShape& shape,
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attribute = {};
  if (shape.dependent && LaunchesAreDependent()) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace lamina::kernels::cuda
