// SPDX-License-Identifier: Apache-2.0
//
// What a memory node measures for policy auto before it joins, where some node of the cluster is on
// a GPU, so that they are unlike: how fast attention reads K and V there, over layers like the
// model's.
//
// Threading: the calling thread, with the device's.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kv_device.h"

namespace lamina::memory_node {

// Bytes of K and V a second, by the device's clock. 0 where the model is not on this host, which
// the log says: a memory node needs none otherwise.
// Errors: those of the device, and of `make`.
// Cost: some 0.1 s, and memory for `kv_bytes` meanwhile.
absl::StatusOr<double> MeasureAttentionRate(const std::string& model,
                                            const kernels::KvDeviceMaker& make,
                                            uint64_t kv_bytes = uint64_t{96} << 20);

}  // namespace lamina::memory_node
