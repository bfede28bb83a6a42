// SPDX-License-Identifier: Apache-2.0
//
// OnednnPeer: oneDNN called the plain way, to compare ourselves with: one matmul for the whole
// layer, its threads OpenMP's, weights packed as it asks for.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/dtype.h"

namespace lamina::bench {

struct PeerShape {
  size_t rows = 0;
  size_t inputs = 0;
  size_t features = 0;
};

class OnednnPeer {
 public:
  // Weights [features, inputs] row-major of `dtype`. Null: oneDNN does not know the type here.
  static std::unique_ptr<OnednnPeer> Create(const PeerShape& shape, DType dtype,
                                            const void* weights, size_t threads);
  virtual ~OnednnPeer() = default;

  // Pins OpenMP's threads, of which the caller is the first, to these cores, until a product takes
  // fewer of them and a later one more. No cores: they are left alone.
  static void PinThreads(const std::vector<int>& cores);

  // Shapes: in [rows, inputs] of `dtype`, out [rows, features] f32.
  virtual void Run(const void* in, float* out) = 0;
};

}  // namespace lamina::bench
