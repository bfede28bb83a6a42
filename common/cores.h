// SPDX-License-Identifier: Apache-2.0
//
// Which cores of the host a thread may use.

#pragma once

#include <vector>

namespace lamina {

// Of these cores those that the calling thread may not run on, in their order: such as the host
// does not have, or that its mask leaves out. Empty where the kernel does not say.
std::vector<int> CoresMissing(const std::vector<int>& cores);

}  // namespace lamina
