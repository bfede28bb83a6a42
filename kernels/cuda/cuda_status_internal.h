// SPDX-License-Identifier: Apache-2.0
//
// CudaToStatus: the one place where an error of the CUDA runtime becomes a Status.
//
// The message is "call: cudaErrorName: what CUDA says of it". Errors of a kernel that already runs
// belong to an earlier call than the one that reports them; such errors stay for good, and the
// process that met one can only end.

#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::kernels::cuda {

// Errors: kResourceExhausted  no memory.
//         kUnavailable        no device, no driver, or a driver too old for this build.
//         kUnimplemented      nothing that this device, driver or virtual machine has.
//         kInternal           anything else: a bug of ours, or a broken device.
absl::Status CudaToStatus(cudaError_t error, absl::string_view call);

}  // namespace lamina::kernels::cuda
