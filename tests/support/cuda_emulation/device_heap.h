// SPDX-License-Identifier: Apache-2.0
//
// The emulation's device memory. The host must not touch a device's, so its pages are closed from
// each wait for a stream to the next work: a host that then reads or writes them ends with a
// segmentation fault, as on a device. Where several threads work it may get away with it.
//
// It is a file in memory, so that other processes can map pieces of it. Places in it are given
// once.
//
// Threading: any thread.

#pragma once

#include <sys/types.h>

#include <cstddef>

namespace lamina::cuda_emulation {

// Whole pages, zeroed. Null: there is not so much.
void* AllocateDevice(size_t bytes);
// Whether it was allocated.
bool FreeDevice(void* data);

bool IsDevice(const void* address);

// A piece of some process's device memory.
struct DevicePiece {
  pid_t process = 0;
  int file = -1;
  ino_t inode = 0;
  size_t offset = 0;
  size_t bytes = 0;
};

// Whether the address lies in a piece that this process allocated.
bool ExportDevice(const void* address, DevicePiece* piece);
// Another process's piece, to be given back by FreeDevice(). Null: it is not there, or our own.
void* ImportDevice(const DevicePiece& piece);

// Closes the memory, unless some stream works.
void CloseDevice();

// Closes it although the caller works, unless others do too. Whether it did; and opens it again.
bool CloseUnderWork();
void OpenDevice();

// While one lives, device memory can be touched; and after it, until it is closed.
class DeviceAccess {
 public:
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  ~DeviceAccess();
};

}  // namespace lamina::cuda_emulation
