// SPDX-License-Identifier: Apache-2.0
//
// How large the last caches before memory are, for measurements of what comes from memory.
//
// Threading: any thread. Reads files under /sys; for start-up.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina {

inline constexpr char kCpuFolder[] = "/sys/devices/system/cpu";

// Bytes of the last caches of these cores, each counted once however many of them share it.
// Empty:  0 without cores, and where the kernel names no caches, as in some virtual machines.
uint64_t LastCacheBytes(const std::vector<int>& cores, const std::string& folder = kCpuFolder);

}  // namespace lamina
