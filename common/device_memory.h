// SPDX-License-Identifier: Apache-2.0
//
// DeviceMemory: memory of an accelerator as a transport sees it: for windows that peers write, and
// for what puts read. The processor never touches it but by the copies below.
//
// Implementations: kernels/cuda/window_memory.h; tests/support/emulated_device_memory.h.
//
// Threading: any thread. It outlives everything that was allocated from it.

#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lamina {

// What libraries may take its addresses for.
enum class DeviceAddresses : uint8_t {
  kCuda,    // Pointers of CUDA, which a library built with CUDA knows.
  kHost,    // The processor's own, as of a device that shares the host's memory.
  kOpaque,  // Nothing knows them.
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual const std::string& name() const = 0;  // "cuda:0"
  virtual DeviceAddresses addresses() const = 0;

  // At least `bytes`, zeroed, whole pages of the host's size. May wait for the device.
  // Errors: kResourceExhausted  the device has no more; says how much was asked for.
  virtual absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) = 0;
  virtual void Free(absl::Span<std::byte> allocated) = 0;

  // A dmabuf of whole pages, for the caller to close. It keeps the pages, not the allocation.
  // Errors: kUnimplemented  the device, its driver or this kernel exports none, or these are not
  //                         whole pages; says which.
  virtual absl::StatusOr<int> ExportDmabuf(absl::Span<const std::byte> pages) = 0;

  // Whether a driver pins the memory by its address, as it does with the host's (peermem).
  // Errors: kUnimplemented  no; says what is missing.
  virtual absl::Status CheckPeerAccess() = 0;

  // Done when they return. Both sides lie within one allocation. Cost: a trip to the device.
  // Errors: kInternal  the device failed.
  virtual absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) = 0;

  // What other devices on the bus have written, as far as the processor has seen their signals, is
  // visible to all work that the device is given from now on.
  // Errors: kUnimplemented  the device cannot promise it; then no other device may write there.
  virtual absl::Status FlushPeerWrites() = 0;
};

// An allocation, freed when it is destroyed.
class DeviceAllocation {
 public:
  // Errors: those of Allocate().
  static absl::StatusOr<DeviceAllocation> Make(DeviceMemory& memory, size_t bytes) {
    absl::StatusOr<absl::Span<std::byte>> allocated = memory.Allocate(bytes);
    if (!allocated.ok()) {
      return allocated.status();
    }
    DeviceAllocation made;
    made.memory_ = &memory;
    made.bytes_ = *allocated;
    return made;
  }
  DeviceAllocation() = default;
  DeviceAllocation(DeviceAllocation&& other) noexcept { *this = std::move(other); }
  DeviceAllocation& operator=(DeviceAllocation&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  DeviceAllocation(const DeviceAllocation&) = delete;
  DeviceAllocation& operator=(const DeviceAllocation&) = delete;
  ~DeviceAllocation() {
    if (memory_ != nullptr) {
      memory_->Free(bytes_);
    }
  }

  absl::Span<std::byte> bytes() const { return bytes_; }
  DeviceMemory* memory() const { return memory_; }  // Null when empty.

 private:
  DeviceMemory* memory_ = nullptr;
  absl::Span<std::byte> bytes_;
};

}  // namespace lamina
