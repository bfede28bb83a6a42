// SPDX-License-Identifier: Apache-2.0
//
// The launch behind LaunchNothing, without abseil.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lamina::bench {

cudaError_t EmptyKernel(uint32_t x, uint32_t y, cudaStream_t stream);

}  // namespace lamina::bench
