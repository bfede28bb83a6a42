// SPDX-License-Identifier: Apache-2.0
#include "common/status_macros.h"
#include "kernels/cuda/kv_device.h"
#include "memory_node/node_device.h"

namespace lamina::memory_node {

absl::StatusOr<NodeDevice> OpenCudaNodeDevice(int index) {
  LAMINA_ASSIGN_OR_RETURN(const double bandwidth, kernels::cuda::MeasureReadBandwidth(index));
  return NodeDevice{.make = kernels::cuda::CudaKvDevices(index),
                    .kernels = "cuda",
                    .read_bytes_per_second = bandwidth};
}

}  // namespace lamina::memory_node
