// SPDX-License-Identifier: Apache-2.0
//
// Where windows may lie of the device that a program runs the suite of StepWorker on: each such
// program defines it.

#pragma once

#include <memory>

#include "common/device_memory.h"

namespace lamina::compute_node {

bool SuiteHasWindowMemory();

// The memory of a device that orders the writes of NICs, or does not. Requires:
// SuiteHasWindowMemory().
std::unique_ptr<DeviceMemory> SuiteWindowMemory(bool ordered);

}  // namespace lamina::compute_node
