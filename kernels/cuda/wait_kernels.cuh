// SPDX-License-Identifier: Apache-2.0
//
// The kernels of waiting and signalling as wait.cc calls them.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kernel_limits.h"
#include "kernels/cuda/wait.h"

namespace lamina::kernels::cuda {

cudaError_t LaunchWait(const WaitRequest& request, cudaStream_t stream);
cudaError_t LaunchRaise(const RaiseRequest& request, cudaStream_t stream);
cudaError_t LaunchPut(const PutRequest& request, cudaStream_t stream);

// For LoadKernels(): all of these.
cudaError_t LoadWaits(KernelLimits& limits);

}  // namespace lamina::kernels::cuda
