// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/empty_launch.h"

#include "absl/strings/str_cat.h"
#include "bench/cuda/empty_kernel.cuh"

namespace lamina::bench {

absl::Status LaunchNothing(uint32_t x, uint32_t y, const kernels::cuda::Stream& stream) {
  const cudaError_t error = EmptyKernel(x, y, static_cast<cudaStream_t>(stream.get()));
  return error == cudaSuccess
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("EmptyKernel: ", cudaGetErrorName(error)));
}

}  // namespace lamina::bench
