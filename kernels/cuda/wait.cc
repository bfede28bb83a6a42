// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/wait.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/wait_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPutAlignment = 16;

cudaStream_t HandleOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.get()); }

}  // namespace

absl::Status WaitForWindow(const WaitRequest& request, const Stream& stream) {
  if (request.signal == nullptr || request.abort == nullptr || request.record == nullptr) {
    return absl::InvalidArgumentError("a wait wants a signal word, an abort word and a record");
  }
  if (request.timeout_nanos == 0) {
    return absl::InvalidArgumentError("timeout_nanos: 0; a wait always has a deadline");
  }
  return CudaToStatus(LaunchWait(request, HandleOf(stream)), "WaitForWindow");
}

absl::Status RaiseSignal(const RaiseRequest& request, const Stream& stream) {
  if (request.signal == nullptr) {
    return absl::InvalidArgumentError("signal: null");
  }
  if (request.unit != nullptr && request.record == nullptr) {
    return absl::InvalidArgumentError("a unit's time counts from a record's wait");
  }
  return CudaToStatus(LaunchRaise(request, HandleOf(stream)), "RaiseSignal");
}

absl::Status PutBytes(const PutRequest& request, const Stream& stream) {
  if (request.bytes == 0 && !request.stamped) {
    return absl::OkStatus();
  }
  if (reinterpret_cast<uintptr_t>(request.to) % kPutAlignment != 0 ||
      reinterpret_cast<uintptr_t>(request.from) % kPutAlignment != 0 ||
      request.bytes % kPutAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a put of ", request.bytes,
                                                   " bytes: addresses and size must be multiples "
                                                   "of ",
                                                   kPutAlignment));
  }
  return CudaToStatus(LaunchPut(request, HandleOf(stream)), "PutBytes");
}

}  // namespace lamina::kernels::cuda
