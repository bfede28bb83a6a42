// SPDX-License-Identifier: Apache-2.0
//
// kernels/compute_device.h's RowSampler over CudaSampler: rows without log-probabilities, without a
// form or a list of allowed tokens, and with at most kBiasesOfRow biases.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/compute_device.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

inline constexpr uint32_t kBiasesOfRow = 64;

// The stream outlives it. Errors: those of CudaSampler::Create() and of MemoryArena::Create().
absl::StatusOr<std::unique_ptr<RowSampler>> MakeCudaRowSampler(const RowSamplerOptions& options,
                                                               const Stream& stream);

}  // namespace lamina::kernels::cuda
