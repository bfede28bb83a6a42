// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_device.h"

#include <utility>

#include "common/status_macros.h"
#include "config/cuda_host.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

absl::StatusOr<std::unique_ptr<kernels::ComputeDevice>> OpenNodeDevice(
    absl::string_view device, const kernels::DenseOptions& options, ThreadPool& pool) {
  if (device == "cpu") {
    kernels::DenseOptions own = options;
    own.pool = &pool;  // One set of threads for all that the node computes.
    LAMINA_ASSIGN_OR_RETURN(auto dense, kernels::MakeCpuDense(own));
    return kernels::MakeCpuComputeDevice(std::move(dense), kernels::CpuAttention(), pool);
  }
  LAMINA_ASSIGN_OR_RETURN(const int index, ParseCudaDevice(device));
  auto opened = OpenCudaNodeDevice(index, options.compute_type);
  if (!opened.ok()) {
    return WithCudaHost(opened.status(), device);
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenWindowMemory(absl::string_view device) {
  if (device == "cpu") {
    return nullptr;
  }
  LAMINA_ASSIGN_OR_RETURN(const int index, ParseCudaDevice(device));
  return OpenCudaWindowMemory(index);
}

}  // namespace lamina::compute_node
