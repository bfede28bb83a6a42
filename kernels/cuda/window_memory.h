// SPDX-License-Identifier: Apache-2.0
//
// A CUDA device's memory as transports see it (common/device_memory.h).
//
//   dmabuf   cuMemGetHandleForAddressRange, with NVIDIA's open kernel modules
//   peermem  where the module nvidia_peermem (once nv_peer_mem) is loaded
//   peers    cudaIpcGetMemHandle; a process opens each allocation once, and counts
//   flush    none where the device orders such writes itself, else
//   cudaDeviceFlushGPUDirectRDMAWrites
//
// Its copies, handles and export compile and run in the emulation; none of it has met a NIC or a
// second process on hardware yet.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device_memory.h"

namespace lamina::kernels::cuda {

// `modules` is the folder of the kernel's modules, for tests.
// Errors: kUnavailable  no such device.
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenWindowMemory(
    int index, const std::string& modules = "/sys/module");

}  // namespace lamina::kernels::cuda
