// SPDX-License-Identifier: Apache-2.0
//
// The emulation's device memory. The host must not touch a device's, so its pages are closed from
// each wait for a stream to the next work: a host that then reads or writes them ends with a
// segmentation fault, as on a device. Where several threads work it may get away with it.
//
// Threading: any thread.

#pragma once

#include <cstddef>

namespace lamina::cuda_emulation {

// Whole pages, zeroed. Null: there is not so much.
void* AllocateDevice(size_t bytes);
// Whether it was allocated.
bool FreeDevice(void* data);

bool IsDevice(const void* address);

// Closes the memory, unless some stream works.
void CloseDevice();

// While one lives, device memory can be touched; and after it, until it is closed.
class DeviceAccess {
 public:
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  ~DeviceAccess();
};

}  // namespace lamina::cuda_emulation
