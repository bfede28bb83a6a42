// SPDX-License-Identifier: Apache-2.0
//
// WindowPlace: where a memory node has its query windows.

#pragma once

#include <cstdint>

namespace lamina {

enum class WindowPlace : uint8_t {
  kAuto,    // In its device's memory exactly where the transport reaches that without staging.
  kHost,    // In the host's memory.
  kDevice,  // In its device's memory, or not at all.
};

}  // namespace lamina
