// SPDX-License-Identifier: Apache-2.0
//
// Launch: starts a kernel on a stream. A function and not <<<>>>, so that arguments convert as in a
// call and the error comes back.

#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace lamina::kernels::cuda {

// Static limit of dynamic shared memory without asking for more.
inline constexpr size_t kSharedBytesDefault = 48 * 1024;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Does not synchronise. An error of the launch itself is returned; one of the run shows later.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const LaunchShape& shape,
                   const Arguments&... arguments) {
  if (shape.shared_bytes > kSharedBytesDefault) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace lamina::kernels::cuda
