// SPDX-License-Identifier: Apache-2.0
//
// CudaChunkAttention: kernels/compute_device.h's ChunkAttention on a CUDA device: a
// StreamKvDevice for the K and V of prompts, and the kernels of decode attention over tiles of
// query tokens.
//
// Canonical arithmetic (docs/adr/0050-canonical-arithmetic-on-gpus.md) is on ordinary cores: right
// to the bit, not fast. That of tensor cores (docs/adr/0074-attention-on-tensor-cores.md) has bits
// of its own. A chunk whose partials do not fit goes in several parts.
//
// Memory: taken in Create().   Threading: the stream's thread.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/compute_device.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

// `partial_bytes_max` of device memory holds what a part leaves between two kernels, for each kind
// of layer; one token of the longest prompt fits always. The stream outlives it.
// Errors: as CudaAttention::Create() and MemoryArena::Create(); kInvalidArgument  INT8.
absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeCudaChunkAttention(
    const ChunkAttentionOptions& options, uint64_t partial_bytes_max, const DeviceInfo& info,
    const Stream& stream);

}  // namespace lamina::kernels::cuda
