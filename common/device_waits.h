// SPDX-License-Identifier: Apache-2.0
//
// DeviceWaits: whether devices wait for windows themselves, and write their peers', where they can.

#pragma once

#include <cstdint>

namespace lamina {

enum class DeviceWaits : uint8_t {
  kAuto,  // Wherever the device and all windows in question allow it.
  kOff,
};

}  // namespace lamina
