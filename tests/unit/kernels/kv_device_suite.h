// SPDX-License-Identifier: Apache-2.0
//
// The device that a program runs the suite of KvDevice on: each such program defines it.

#pragma once

#include "common/thread_pool.h"
#include "kernels/kv_device.h"

namespace lamina::kernels {

KvDeviceMaker SuiteDevices(ThreadPool& pool);

}  // namespace lamina::kernels
