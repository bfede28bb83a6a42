// SPDX-License-Identifier: Apache-2.0
#include "memory_node/data_checks.h"

namespace lamina::memory_node {

bool ChecksData() { return true; }

}  // namespace lamina::memory_node
