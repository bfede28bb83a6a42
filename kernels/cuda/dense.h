// SPDX-License-Identifier: Apache-2.0
//
// CudaDense: the dense layers of kernels/dense.h on a CUDA device.
//
// All pointers are device memory, those of weights, biases, frequencies, positions and ids too,
// whose spans carry only their sizes; Pack() alone takes host memory. Calls launch on the stream
// and do not synchronise. Calls that return nothing note the first error: see Check().
//
// Row-invariance: norms, rope, activations, sums and embedding are. Linear is one cuBLASLt
// algorithm for each shape of weights and each of two ranges of rows, up to kDecodeRows and above,
// whose sums have one order, in as many parts as it has: within a range a row's bits are meant not
// to depend on the others, which a test on the device checks, since cuBLASLt does not promise it;
// between the ranges, on another kind of device or with another cuBLASLt, bits may differ.
//
// Ownership: the stream and the arena outlive it.
// Threading: the stream's thread. Memory: the workspace comes from the arena; packed weights own
// theirs, so that a node can let go of some layers and load others; the plans that Prepare() or a
// first use makes are host memory.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/dense.h"

namespace lamina::kernels::cuda {

// Rows of the first range.
inline constexpr size_t kDecodeRows = 128;

struct CudaDenseOptions {
  DType compute_type = DType::kBF16;
  // Device memory for products. Fewer bytes rule out some algorithms.
  size_t workspace_bytes = size_t{32} << 20;
  // For description(): how kernels are launched (dependent_launches.h). Empty: it does not say.
  std::string launches;
};

class CudaDense : public Dense {
 public:
  // The first error of a call that returned nothing, or OK; and forgets it. The owner asks once a
  // step, before it sends what was computed.
  virtual absl::Status Check() = 0;
};

// Errors: kResourceExhausted  the arena has no workspace_bytes left.
//         kInternal           cuBLASLt does not start; with its status.
absl::StatusOr<std::unique_ptr<CudaDense>> MakeCudaDense(const CudaDenseOptions& options,
                                                         MemoryArena& arena, const Stream& stream);

}  // namespace lamina::kernels::cuda
