// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/kv_device_suite.h"

namespace lamina::kernels {

KvDeviceMaker SuiteDevices(ThreadPool& pool) { return CpuKvDevices(CpuAttention(), pool); }

}  // namespace lamina::kernels
