// SPDX-License-Identifier: Apache-2.0
//
// LinearEngine: the matrix products of CudaDense. cuBLASLt in programs, plain loops in the
// emulation that unit tests run on.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/device.h"
#include "kernels/dense.h"

namespace lamina::kernels::cuda {

// Weights on the device: rows [out_features, in_features] in the compute type, and an f32 bias.
class DeviceLinear final : public PackedLinear {
 public:
  // Owns `memory`, where both lie.
  DeviceLinear(size_t in_features, size_t out_features, MemoryArena memory, const void* weights,
               const float* bias)
      : in_features_(in_features),
        out_features_(out_features),
        memory_(std::move(memory)),
        weights_(weights),
        bias_(bias) {}

  size_t in_features() const override { return in_features_; }
  size_t out_features() const override { return out_features_; }
  uint64_t bytes() const override { return memory_.bytes(); }
  const void* weights() const { return weights_; }
  const float* bias() const { return bias_; }  // Null: none.

 private:
  size_t in_features_;
  size_t out_features_;
  MemoryArena memory_;
  const void* weights_;
  const float* bias_;
};

class LinearEngine {
 public:
  virtual ~LinearEngine() = default;
  virtual std::string description() const = 0;

  // Chooses the algorithms for `weights`. Errors: kUnimplemented  there is none with one order of
  // sums, for this shape.
  virtual absl::Status Prepare(const DeviceLinear& weights) = 0;

  // kernels/dense.h's Linear(), on the stream.
  virtual absl::Status Linear(const DeviceLinear& weights, const ActivationView& in,
                              size_t first_out, MatrixView<float> out) = 0;
};

// `workspace` is device memory that products of this stream may use.
absl::StatusOr<std::unique_ptr<LinearEngine>> MakeLinearEngine(DType compute_type,
                                                               absl::Span<std::byte> workspace,
                                                               const Stream& stream);

}  // namespace lamina::kernels::cuda
