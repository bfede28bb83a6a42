// SPDX-License-Identifier: Apache-2.0
//
// StreamKvDevice: K and V of token slots of a compute device, in its memory and on its stream.
//
// Rows and outputs are the device's memory; calls are ordered behind what the stream has and wait
// for nothing, so that slices and attention of a whole step may be ordered ahead. What fails shows
// when the stream is waited for. Items may have any number of query tokens, and no partials. What
// the partials between two kernels do not fit goes in several parts, which no bit shows.
//
// Memory: taken when it is made.   Threading: the stream's thread.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/kv_device.h"

namespace lamina::kernels::cuda {

// `partial_bytes_max` of device memory holds what a part leaves between two kernels, for each kind
// of layer; one query token of the longest sequence fits always. The stream outlives it.
// Errors: as CudaAttention::Create() and MemoryArena::Create(); kInvalidArgument  lanes of steps,
//         activations or INT8, which it does not serve.
absl::StatusOr<std::unique_ptr<KvDevice>> MakeStreamKvDevice(const KvDeviceOptions& options,
                                                             uint64_t partial_bytes_max,
                                                             const DeviceInfo& info,
                                                             const Stream& stream);

}  // namespace lamina::kernels::cuda
