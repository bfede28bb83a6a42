// SPDX-License-Identifier: Apache-2.0
//
// How the network reaches windows in a device's memory: by trying it.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/doctor/finding.h"
#include "common/device_memory.h"

namespace lamina::doctor {

// The memory of this host's first CUDA device. device_memory_cuda.cc or
// device_memory_without_cuda.cc, as CMake chose.
// Errors: kUnavailable  this program or this host has none; says which.
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenDoctorDevice();

// Makes a window in the device's memory over each scheme of `transports` that works here, and says
// how it is reached and why not better, and how the device would wait for windows of a memory node
// itself. One finding where there is no device.
Findings CheckDeviceWindows(const std::vector<std::string>& transports,
                            const absl::StatusOr<std::unique_ptr<DeviceMemory>>& device);

// Where the windows of a running cluster's nodes lie, and how they are reached. A warning where
// that is through a staging buffer, or the host's memory for want of a way to the device's. Empty
// where no node has told.
Findings CheckClusterWindows(const client::ClusterStatus& status);

}  // namespace lamina::doctor
