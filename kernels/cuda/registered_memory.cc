// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/registered_memory.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "kernels/cuda/cuda_status_internal.h"

namespace lamina::kernels::cuda {
namespace {

constexpr size_t kPageBytes = KiB(4);

}  // namespace

absl::StatusOr<RegisteredMemory> RegisteredMemory::Create(absl::Span<std::byte> pages) {
  const auto address = reinterpret_cast<uintptr_t>(pages.data());
  if (pages.empty() || address % kPageBytes != 0 || pages.size() % kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory to be registered begins and ends with whole pages; this is ",
                     pages.size(), " bytes at ", address % kPageBytes, " of a page"));
  }
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaHostRegister(pages.data(), pages.size(),
                                    cudaHostRegisterPortable | cudaHostRegisterMapped),
                   absl::StrCat("cudaHostRegister(", FormatBytes(pages.size()), ")")));
  RegisteredMemory memory;
  memory.pages_ = pages;
  void* device = nullptr;
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaHostGetDevicePointer(&device, pages.data(), 0), "cudaHostGetDevicePointer"));
  memory.device_ = static_cast<std::byte*>(device);
  return memory;
}

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : pages_(std::exchange(other.pages_, {})), device_(std::exchange(other.device_, nullptr)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(pages_, other.pages_);
  std::swap(device_, other.device_);
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  if (pages_.empty()) {
    return;
  }
  const absl::Status status = CudaToStatus(cudaHostUnregister(pages_.data()), "cudaHostUnregister");
  if (!status.ok()) {
    LogWarning(status.message());
  }
}

}  // namespace lamina::kernels::cuda
