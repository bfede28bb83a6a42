// SPDX-License-Identifier: Apache-2.0
//
// LoadKernels: has all kernels of kernels/cuda in a device's memory before the first of them runs.
//
// Loading one later would wait for those that run (launch.cuh); so would the first launch of one
// that needs more local memory than there is, for which room is made here too.
//
// Not among them: cuBLASLt's, which CudaDense's Prepare() runs once; those of copies and fills,
// which come with the driver.

#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

// Loads the kernels of this thread's device, which is `device`. Once for each device and process;
// again it does nothing. Any thread.
// Errors: kUnimplemented  there is no code for this kind of device; says for which there is.
absl::Status LoadKernels(const DeviceInfo& device);

// Whether the kernels that were loaded for device `index` were built for devices with dependent
// launches, and so wait for the launch before (dependent_launches.h).
bool LoadedKernelsWait(int index);

}  // namespace lamina::kernels::cuda
