// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of kernels/window_channel.h: window_channel_suite.cc, linked into a test
// program with a file that says which devices it is run for.

#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/compute_device.h"
#include "kernels/window_channel.h"

namespace lamina::kernels {

// A device that makes channels, and memory for their rows.
class ChannelDevice {
 public:
  static constexpr uint32_t kLanes = 2;  // It serves so many.

  virtual ~ChannelDevice() = default;
  virtual absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) = 0;
  // Rows lie in this device's memory. What a channel does is done once it is closed.
  virtual ComputeDevice& memory() = 0;
};

struct ChannelDeviceCase {
  std::string name;
  std::function<std::unique_ptr<ChannelDevice>()> make;
};
inline std::ostream& operator<<(std::ostream& to, const ChannelDeviceCase& device) {
  return to << device.name;
}

// Whatever a device puts into a stream goes on behind the caller's back.
std::vector<ChannelDeviceCase> ChannelDeviceCases();

}  // namespace lamina::kernels
