// SPDX-License-Identifier: Apache-2.0
//
// KvDevice on a CUDA device; in canonical arithmetic it has the bits of the processor's.
//
// Rows go through pinned host memory: gathered by the processor, one copy to the device for all
// rows of a Store and of an Attend, one copy back. Those in the device's memory (KvDeviceRows) are
// read by the kernels where they are, a launch for each run of rows at one distance, and outputs
// are written there. Tables of extents are sent only when they
// change, that is once for all layers of a step, unless its sequences share so many slots that an
// Attend goes in several parts.

#pragma once

#include "absl/status/statusor.h"
#include "kernels/kv_device.h"

namespace lamina::kernels::cuda {

// On device `index`.
// Errors of the makers: kUnavailable as OpenDevice(); kInvalidArgument and kResourceExhausted as
//                       CudaAttention::Create() and MemoryArena::Create(); kInvalidArgument also
//                       activations and INT8.
KvDeviceMaker CudaKvDevices(int index);

// Bytes/s that device `index` reads, from copies within its memory, which read and write.
// Cost: 512 MiB of device memory, some milliseconds.
absl::StatusOr<double> MeasureReadBandwidth(int index);

}  // namespace lamina::kernels::cuda
