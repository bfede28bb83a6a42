// SPDX-License-Identifier: Apache-2.0
//
// Which cores of the host a thread may use, and how many threads they are for.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// Returns the cores that the calling thread may run on, ascending. Empty where the kernel does not
// say.
std::vector<int> CoresOfThread();

// Returns those of `cores` that the calling thread may not run on, in their order: such as the host
// does not have, or that its mask leaves out. Empty where the kernel does not say.
std::vector<int> CoresMissing(const std::vector<int>& cores);

// Returns the cores that the calling thread may run on, ascending, but for `cores`. Empty where the
// kernel does not say.
std::vector<int> CoresBut(const std::vector<int>& cores);

// The most threads of a pool for each core: more only wait for each other. kThreadsAlways are
// allowed on any host.
inline constexpr uint32_t kThreadsPerCoreMax = 4;
inline constexpr uint32_t kThreadsAlways = 16;

// Whether a pool of `threads` can work on the cores that the calling thread may use. `what` names
// the key: "compute node c0: threads".
// Errors: kInvalidArgument  too many; says how many cores there are.
absl::Status CheckThreads(absl::string_view what, size_t threads);

}  // namespace lamina
