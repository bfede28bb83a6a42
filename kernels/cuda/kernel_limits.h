// SPDX-License-Identifier: Apache-2.0
//
// KernelLimits: what a device gives to kernels, and what those that were loaded ask for.

#pragma once

#include <cstddef>

namespace lamina::kernels::cuda {

struct KernelLimits {
  size_t shared_bytes_max = 0;  // Bytes of a thread block, static and dynamic, after opting in.
  size_t local_bytes = 0;       // Bytes of a thread, the most of any kernel.
  int ptx_version_min = 1000;   // 10 * major + minor of the PTX that a kernel was made from.
};

}  // namespace lamina::kernels::cuda
