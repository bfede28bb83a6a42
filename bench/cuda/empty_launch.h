// SPDX-License-Identifier: Apache-2.0
//
// LaunchNothing: a kernel that does nothing, as a bound for those that do little.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"

namespace lamina::bench {

// `x` times `y` thread blocks of one warp. Errors: kInternal  CUDA refused.
absl::Status LaunchNothing(uint32_t x, uint32_t y, const kernels::cuda::Stream& stream);

}  // namespace lamina::bench
