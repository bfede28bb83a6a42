// SPDX-License-Identifier: Apache-2.0
//
// kernels/compute_device.h on a CUDA device: one stream; CudaDense; prompt chunks by the kernels of
// decode attention; CudaSampler.
//
// Bits are those of CudaDense: another device's may differ; canonical attention's do not.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/compute_device.h"
#include "kernels/cuda/dense.h"

namespace lamina::kernels::cuda {

struct CudaComputeOptions {
  int index = 0;
  CudaDenseOptions dense;
  // Device memory for what attention of prompt chunks leaves between two kernels, for each kind of
  // layer. Fewer bytes make more launches of long chunks.
  uint64_t partial_bytes_max = uint64_t{256} << 20;
};

// Errors: kUnavailable  as OpenDevice(); those of MakeCudaDense().
absl::StatusOr<std::unique_ptr<ComputeDevice>> MakeCudaComputeDevice(
    const CudaComputeOptions& options);

}  // namespace lamina::kernels::cuda
