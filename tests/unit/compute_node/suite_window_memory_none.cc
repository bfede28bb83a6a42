// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/compute_node/suite_window_memory.h"

namespace lamina::compute_node {

bool SuiteHasWindowMemory() { return false; }

std::unique_ptr<DeviceMemory> SuiteWindowMemory(bool) { return nullptr; }

}  // namespace lamina::compute_node
