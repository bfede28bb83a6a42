// SPDX-License-Identifier: Apache-2.0
//
// The device of a compute node, by its name in the cluster file.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/device_memory.h"
#include "common/thread_pool.h"
#include "kernels/compute_device.h"
#include "kernels/dense.h"

namespace lamina::compute_node {

// "cpu", "cuda" or "cuda:N". Threads and cores of `options` are the processor's. `pool` outlives
// the device. Errors: kInvalidArgument  another name.
//                     kUnavailable      CUDA that this program or this host lacks; says what was
//                                       looked for.
//                     those of MakeCpuDense() and of the device's memory.
absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> OpenNodeDevice(
    absl::string_view device, const kernels::DenseOptions& options, ThreadPool& pool);

// Where windows of such a device may lie; null where that is the host's memory alone.
// Errors: as OpenNodeDevice().
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenWindowMemory(absl::string_view device);

// node_device_cuda.cc or node_device_without_cuda.cc, as CMake chose. Whether kernels on a GPU may
// be launched as dependent, where it can; before a device is opened.
void AllowDependentLaunches(bool allowed);
absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> OpenCudaNodeDevice(int index,
                                                                           DType compute_type);
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaWindowMemory(int index);

}  // namespace lamina::compute_node
