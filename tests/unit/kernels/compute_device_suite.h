// SPDX-License-Identifier: Apache-2.0
//
// The device that a program runs the suite of ComputeDevice on, and that of SliceExecutor: each
// such program defines it.

#pragma once

#include <memory>

#include "common/dtype.h"
#include "common/thread_pool.h"
#include "kernels/compute_device.h"

namespace lamina::kernels {

// With plain kernels where there is a choice, and little memory for partials of chunks.
std::unique_ptr<ComputeDevice> SuiteComputeDevice(DType compute_type, ThreadPool& pool);

}  // namespace lamina::kernels
