// SPDX-License-Identifier: Apache-2.0
//
// Counts the calls of operator new in this process, by replacing it: link this into a benchmark
// that promises none.

#pragma once

#include <cstdint>

namespace lamina::bench {

// Threading: any thread.
uint64_t AllocationsSoFar();

}  // namespace lamina::bench
