// SPDX-License-Identifier: Apache-2.0
//
// CudaSampler: kernels/sampling.h for many rows on the device; only token ids leave it.
//
// Greedy tokens are those of Sample(), to the bit: bias and penalties are the same operations.
// Draws take the same random number and the same candidates, but weigh them in integers of 2^-44 of
// the likeliest token's weight, which Sample() weighs in f32: so a token differs from Sample()'s
// only where the draw, or the edge of top-p, falls within about 1e-6 of the border between two
// candidates. Log-probabilities are not computed here.
//
// Ownership: the stream and the arenas outlive it.
// Threading: the stream's thread. Memory: all from the arenas in Create(); rows_max * vocabulary *
// 8 bytes of device memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/sampling_params.h"
#include "kernels/cuda/device.h"
#include "kernels/sampling.h"

namespace lamina::kernels::cuda {

struct CudaSamplerOptions {
  uint32_t vocabulary = 0;  // At most 2^19.
  uint32_t rows_max = 0;
  uint32_t tokens_max = 0;  // Prompt and output tokens of all rows of a call that have penalties.
  uint32_t biases_max = 0;  // Biases of all rows of a call.
};

class CudaSampler {
 public:
  static uint64_t DeviceBytes(const CudaSamplerOptions& options);
  static uint64_t PinnedBytes(const CudaSamplerOptions& options);

  // Errors: kInvalidArgument    no vocabulary, or one beyond 2^19.
  //         kResourceExhausted  the arenas have less than DeviceBytes() and PinnedBytes().
  static absl::StatusOr<std::unique_ptr<CudaSampler>> Create(const CudaSamplerOptions& options,
                                                             MemoryArena& device_arena,
                                                             MemoryArena& pinned_arena,
                                                             const Stream& stream);
  virtual ~CudaSampler() = default;

  // Samples row i of `logits` for request i. Waits until the device has fetched what the call
  // before handed over; does not wait for results. Shapes: logits [requests, vocabulary] f32,
  // device memory, `stride` elements between rows. Errors: kInvalidArgument    a request that wants
  // log-probabilities.
  //         kResourceExhausted  a limit of the options, by name. Nothing was launched.
  virtual absl::Status Sample(const float* logits, size_t stride,
                              absl::Span<const SampleRequest> requests) = 0;

  // Token ids of the last call, in pinned memory; there once the stream has passed that call.
  virtual absl::Span<const TokenId> results() const = 0;
};

}  // namespace lamina::kernels::cuda
