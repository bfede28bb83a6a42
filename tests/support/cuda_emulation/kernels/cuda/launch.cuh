// SPDX-License-Identifier: Apache-2.0
//
// kernels/cuda/launch.cuh on the CPU: a launch is done when it returns, or taken down with its
// arguments if the stream captures.

#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace lamina::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const LaunchShape& shape,
                   const Arguments&... arguments) {
  return cuda_emulation::Enqueue(
      shape.stream, [kernel, shape, ... arguments = Parameters(arguments)] {
        cuda_emulation::RunGrid(shape.grid, shape.block, shape.shared_bytes,
                                [&] { kernel(arguments...); });
      });
}

}  // namespace lamina::kernels::cuda
