// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv_device.h"
#include "kernels/cuda/window_memory.h"
#include "memory_node/node_device.h"

namespace lamina::memory_node {

void AllowDependentLaunches(bool allowed) { kernels::cuda::AllowDependentLaunches(allowed); }

absl::StatusOr<NodeDevice> OpenCudaNodeDevice(int index) {
  LAMINA_ASSIGN_OR_RETURN(const kernels::cuda::DeviceInfo info, kernels::cuda::OpenDevice(index));
  LAMINA_ASSIGN_OR_RETURN(const double bandwidth, kernels::cuda::MeasureReadBandwidth(index));
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                          kernels::cuda::OpenWindowMemory(index));
  return NodeDevice{.make = kernels::cuda::CudaKvDevices(index),
                    .kernels = absl::StrCat("cuda, ", kernels::cuda::DescribeLaunches(info)),
                    .read_bytes_per_second = bandwidth,
                    .window_memory = std::move(memory)};
}

}  // namespace lamina::memory_node
