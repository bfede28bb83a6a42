// SPDX-License-Identifier: Apache-2.0
//
// kernels/cuda/launch.cuh on the CPU: a launch is done when it returns, or taken down with its
// arguments if the stream captures. A kernel that was not loaded is refused; one whose launch is
// dependent is held to its wait (emulation.h).

#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/kernel_limits.h"
#include "tests/support/cuda_emulation/launches.h"

namespace lamina::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool dependent = false;
};

template <typename... Parameters>
cudaError_t LoadKernel(void (*kernel)(Parameters...), KernelLimits& limits) {
  if (cuda_emulation::LoadsFail()) {
    return cudaErrorNoKernelImageForDevice;
  }
  limits.ptx_version_min = 90;
  cuda_emulation::NoteLoaded(reinterpret_cast<const void*>(kernel));
  return cudaSuccess;
}

template <typename... Kernels>
cudaError_t LoadEach(KernelLimits& limits, Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  ((error == cudaSuccess ? void(error = LoadKernel(kernels, limits)) : void()), ...);
  return error;
}

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const LaunchShape& shape,
                   const Arguments&... arguments) {
  const cudaError_t refused = cuda_emulation::CheckLaunch(
      reinterpret_cast<const void*>(kernel), shape.grid, shape.block, shape.shared_bytes);
  if (refused != cudaSuccess) {
    return refused;
  }
  const bool dependent = shape.dependent && LaunchesAreDependent();
  if (dependent) {
    cuda_emulation::NoteDependent();
  }
  return cuda_emulation::Enqueue(
      shape.stream, [kernel, shape, dependent, ... arguments = Parameters(arguments)] {
        cuda_emulation::RunGrid(
            shape.grid, shape.block, shape.shared_bytes, [&] { kernel(arguments...); }, dependent);
      });
}

}  // namespace lamina::kernels::cuda
