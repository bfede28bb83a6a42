// SPDX-License-Identifier: Apache-2.0
#include "tests/support/polled_memory.h"
#include "tests/unit/compute_node/suite_window_memory.h"

namespace lamina::compute_node {

bool SuiteHasWindowMemory() { return true; }

std::unique_ptr<DeviceMemory> SuiteWindowMemory(bool ordered) {
  return std::make_unique<test_support::PolledMemory>(ordered);
}

}  // namespace lamina::compute_node
