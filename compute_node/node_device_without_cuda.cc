// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_device.h"

namespace lamina::compute_node {

void AllowDependentLaunches(bool) {}

absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> OpenCudaNodeDevice(int, DType) {
  return absl::UnavailableError(
      "this program was built without CUDA; deploy/build_cuda.sh builds with it");
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaWindowMemory(int) {
  return absl::UnavailableError("this program was built without CUDA");
}

}  // namespace lamina::compute_node
