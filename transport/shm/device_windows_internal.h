// SPDX-License-Identifier: Apache-2.0
//
// DeviceWindows: what a Transport of shm:// keeps of a device: which memory is the device's, and
// windows that are gone but for the peers that have not noticed yet.
//
// A peer holds a shared lock on the region's file for as long as it may write the region's memory
// in the device; the kernel drops it when the peer dies. So memory that is freed is mapped nowhere
// else: to free what another process maps is undefined in CUDA.
//
// Threading: Holds() from the thread that puts, before or behind the others; these from any.

#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "common/device_memory.h"
#include "transport/shm/shared_mapping_internal.h"

namespace lamina::transport {

class DeviceWindows {
 public:
  explicit DeviceWindows(DeviceMemory* device) : device_(device) {}

  DeviceMemory* device() const { return device_; }  // Null: there is none.

  // Memory of the device that puts may read.
  void AddSource(absl::Span<const std::byte> bytes);
  void RemoveSource(absl::Span<const std::byte> bytes);
  bool Holds(absl::Span<const std::byte> bytes) const;

  // Frees `data` when nobody holds a lock on `file`: now, or in a later Sweep(), at the latest with
  // this.
  void Retire(DeviceAllocation data, FileDescriptor file);
  void Sweep();

  size_t retired() const;

 private:
  struct Window {
    DeviceAllocation data;
    FileDescriptor file;
  };

  DeviceMemory* const device_;
  mutable std::mutex set_up_;  // Not for the data path.
  std::vector<absl::Span<const std::byte>> sources_;
  std::vector<Window> retired_;
};

}  // namespace lamina::transport
