// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::kernels {

std::unique_ptr<ComputeDevice> SuiteComputeDevice(DType compute_type, ThreadPool& pool) {
  return MakeCpuComputeDevice(MakeReferenceDense(compute_type), CpuAttention(), pool);
}

}  // namespace lamina::kernels
