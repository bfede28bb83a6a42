// SPDX-License-Identifier: Apache-2.0
#include "memory_node/node_device.h"

#include "common/status_macros.h"
#include "config/cuda_host.h"
#include "kernels/attention.h"
#include "kernels/processor_attention.h"
#include "kernels/read_bandwidth.h"

namespace lamina::memory_node {

absl::StatusOr<NodeDevice> OpenNodeDevice(absl::string_view device, uint64_t capacity,
                                          ThreadPool& pool) {
  if (device == "cpu") {
    const kernels::AttentionKernel& kernel = kernels::CpuAttention();
    return NodeDevice{.make = kernels::CpuKvDevices(kernel, pool),
                      .kernels = kernel.name(),
                      .fast_attention = kernels::FastAttention(),
                      .read_bytes_per_second = kernels::MeasureReadBandwidth(pool, capacity)};
  }
  LAMINA_ASSIGN_OR_RETURN(const int index, ParseCudaDevice(device));
  absl::StatusOr<NodeDevice> opened = OpenCudaNodeDevice(index);
  if (!opened.ok()) {
    return WithCudaHost(opened.status(), device);
  }
  return opened;
}

}  // namespace lamina::memory_node
