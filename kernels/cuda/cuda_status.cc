// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status_internal.h"

namespace lamina::kernels::cuda {

absl::Status CudaToStatus(cudaError_t error, absl::string_view call) {
  const auto message = [&] {
    return absl::StrCat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  };
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message());
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemNotReady:
      return absl::UnavailableError(message());
    case cudaErrorNotSupported:  // By this device, driver or virtual machine.
      return absl::UnimplementedError(message());
    default:
      return absl::InternalError(message());
  }
}

}  // namespace lamina::kernels::cuda
