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
#include <cstdint>
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

// By what other processes of this host open an allocation.
struct PeerHandle {
  std::string bytes;  // Opaque; made by the owner's device, read by the peer's.
  // Where the memory that is meant begins in the allocation that `bytes` names.
  uint64_t offset = 0;

  friend bool operator==(const PeerHandle&, const PeerHandle&) = default;
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

  // What another process of this host opens `bytes` by, as long as they are allocated. The handle
  // names the allocation, of which it gives away all.
  // Errors: kUnimplemented  the device or its driver shares none; says which.
  // Requires: `bytes` lie within one allocation of this object.
  virtual absl::StatusOr<PeerHandle> ExportToPeers(absl::Span<const std::byte> bytes) = 0;

  // Where the memory that a process exported lies in this one, for the copies below. Each opening
  // takes a closing; several of one allocation share a mapping, and what this process exported
  // itself is where it was. The owner frees it when all have closed it.
  // Errors: kUnavailable  refused; says by what call, and what CUDA or the system says of it.
  virtual absl::StatusOr<std::byte*> OpenPeer(const PeerHandle& handle) = 0;
  virtual void ClosePeer(const PeerHandle& handle) = 0;

  // Done when they return: what reads the memory from then on, in any process, sees the bytes.
  // A place on a device lies within one allocation: of this process, any device's, or opened.
  // Errors: kInternal  the device failed. Cost: a trip to the device.
  virtual absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual absl::Status CopyAcross(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Whether other devices' writes become visible to its work in the order in which they were
  // written, so that work that sees a word sees what was written before it, without a flush.
  virtual bool OrdersPeerWrites() const = 0;

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

// Memory of another process, closed when it is destroyed.
class PeerMemory {
 public:
  // Errors: those of OpenPeer().
  static absl::StatusOr<PeerMemory> Open(DeviceMemory& memory, const PeerHandle& handle) {
    const absl::StatusOr<std::byte*> opened = memory.OpenPeer(handle);
    if (!opened.ok()) {
      return opened.status();
    }
    PeerMemory made;
    made.memory_ = &memory;
    made.handle_ = handle;
    made.data_ = *opened;
    return made;
  }
  PeerMemory() = default;
  PeerMemory(PeerMemory&& other) noexcept { *this = std::move(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(handle_, other.handle_);
    std::swap(data_, other.data_);
    return *this;
  }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() {
    if (memory_ != nullptr) {
      memory_->ClosePeer(handle_);
    }
  }

  std::byte* data() const { return data_; }  // Null when empty.

 private:
  DeviceMemory* memory_ = nullptr;
  PeerHandle handle_;
  std::byte* data_ = nullptr;
};

}  // namespace lamina
