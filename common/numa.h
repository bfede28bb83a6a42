// SPDX-License-Identifier: Apache-2.0
//
// Memory near cores, on hosts with several NUMA nodes.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lamina {

inline constexpr char kNumaFolder[] = "/sys/devices/system/node";

// The NUMA nodes that have these cores, ascending. Empty: the kernel names no nodes, or none of
// them has a core of these.
std::vector<int> NumaNodesOf(const std::vector<int>& cores,
                             const std::string& folder = kNumaFolder);

// Has the memory that the calling thread touches first from now on, and threads that it starts
// later, come from these nodes as long as they have room. Pages that are there stay where they are.
// Empty:  no nodes: the kernel's own policy, the node of the core that touches first.
// Errors: kPermissionDenied  a container forbids it; kUnavailable  the kernel refused.
absl::Status PreferMemoryOf(const std::vector<int>& nodes);

}  // namespace lamina
