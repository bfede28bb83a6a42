// SPDX-License-Identifier: Apache-2.0
//
// The device of a memory node, by its name in the cluster file.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attention_arithmetic.h"
#include "common/device_memory.h"
#include "common/thread_pool.h"
#include "kernels/kv_device.h"

namespace lamina::memory_node {

struct NodeDevice {
  kernels::KvDeviceMaker make;
  std::string kernels;  // For people: "highway/AVX2", "cuda, dependent launches".
  AttentionArithmetic fast_attention = AttentionArithmetic::kCanonical;  // As NodeIdentity's.
  double read_bytes_per_second = 0;
  // Where query windows may lie; null where that is the host's memory alone.
  std::unique_ptr<DeviceMemory> window_memory = nullptr;
};

// "cpu", "cuda" or "cuda:N". Measures its read bandwidth, over `capacity` bytes or fewer: some
// tenths of a second. `pool` outlives the devices.
//
// Errors: kInvalidArgument  another name.
//         kUnavailable      CUDA that this program or this host lacks; says what was looked for.
absl::StatusOr<NodeDevice> OpenNodeDevice(absl::string_view device, uint64_t capacity,
                                          ThreadPool& pool);

// node_device_cuda.cc or node_device_without_cuda.cc, as CMake chose. Whether kernels on a GPU may
// be launched as dependent, where it can; before a device is opened.
void AllowDependentLaunches(bool allowed);
absl::StatusOr<NodeDevice> OpenCudaNodeDevice(int index);

}  // namespace lamina::memory_node
