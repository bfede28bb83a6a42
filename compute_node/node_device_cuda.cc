// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_device.h"
#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/window_memory.h"

namespace lamina::compute_node {

void AllowDependentLaunches(bool allowed) { kernels::cuda::AllowDependentLaunches(allowed); }

absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> OpenCudaNodeDevice(int index,
                                                                           DType compute_type) {
  return kernels::cuda::MakeCudaComputeDevice(
      {.index = index, .dense = {.compute_type = compute_type}});
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaWindowMemory(int index) {
  return kernels::cuda::OpenWindowMemory(index);
}

}  // namespace lamina::compute_node
