// SPDX-License-Identifier: Apache-2.0
#include "memory_node/node_device.h"

namespace lamina::memory_node {

void AllowDependentLaunches(bool) {}

absl::StatusOr<NodeDevice> OpenCudaNodeDevice(int) {
  return absl::UnavailableError(
      "this program was built without CUDA; deploy/build_cuda.sh builds with it");
}

}  // namespace lamina::memory_node
