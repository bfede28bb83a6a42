// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/empty_kernel.cuh"
#include "kernels/cuda/launch.cuh"

namespace lamina::bench {
namespace {

constexpr int kThreads = 32;

__global__ void Nothing() {}

}  // namespace

cudaError_t EmptyKernel(uint32_t x, uint32_t y, cudaStream_t stream) {
  return kernels::cuda::Launch(
      Nothing, {.grid = dim3(x, y), .block = dim3(kThreads), .shared_bytes = 0, .stream = stream});
}

}  // namespace lamina::bench
