// SPDX-License-Identifier: Apache-2.0
//
// How much memory a process may still take, asked before taking it: Linux answers a request for
// too much memory by killing somebody later, not by an error now.
//
// Threading: any thread. Reads files under /proc and /sys; for start-up.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

struct HostMemory {
  uint64_t available_bytes = UINT64_MAX;  // Without pushing anybody out. Unknown: the maximum.
  std::string limit;                      // What sets it, for messages: "MemAvailable of the host".
};

// The smaller of what the host has and what the control groups (of versions 1 and 2) of this
// process leave. `root` is put before every path, for tests.
HostMemory QueryHostMemory(absl::string_view root = "");

}  // namespace lamina
