// SPDX-License-Identifier: Apache-2.0
//
// KvRecompute: makes K and V of tokens again from the activations that memory nodes have sent of
// them (kvpr.txt 3): the linear layer of the slice with its biases, norms of heads, and rope at the
// tokens' own positions. They have the bits of those that were made first, since rows do not depend
// on each other. Queries are left out, where columns of k and v alone have the same bits.
//
// Threading: the data thread. Allocation: in Prepare().

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "compute_node/slice_executor.h"
#include "compute_node/value_buffers.h"
#include "plan/epoch_config.h"

namespace lamina::compute_node {

class KvRecompute {
 public:
  // Rows that run together.
  static constexpr size_t kRows = 256;

  // References must outlive this.
  KvRecompute(const plan::EpochConfig& config, SliceExecutor& executor)
      : config_(config), executor_(executor) {}

  // Errors: those of the device.
  //         kUnimplemented  activations in f32, or of a model in which nothing is k and v's alone.
  absl::Status Prepare();

  // Values of the rows that run together; 0 before Prepare().
  uint64_t bytes() const { return buffers_.bytes(); }

  // Runs once for so many rows of the first layer, to be timed.
  // Requires: rows in [1, kRows].   Errors: as Run().
  absl::Status Try(size_t rows);

  // The first column of the layer's q, k and v that is computed: that of the queries, or of k as
  // far as products begin there. After Prepare().
  size_t first_column(uint32_t layer) const { return first_columns_[layer]; }

  // Tokens of a layer. An activation lies in parts, each by itself.
  // Shapes: widths       [parts], elements of each part, together activation_width
  //         activations  [positions, parts], each of widths[part] elements
  //         slots        of one token after the other
  struct Tokens {
    absl::Span<const uint32_t> widths;
    absl::Span<const BFloat16* const> activations;
    absl::Span<const uint32_t> positions;
    absl::Span<const Extent> slots;
  };
  // Where K and V of some heads go.
  // Shapes: k, v  as kernels::KvView of the host, of these heads
  struct Planes {
    HeadRange heads;
    BFloat16* k = nullptr;
    BFloat16* v = nullptr;
    size_t head_stride = 0;
  };

  // Stores K and V of the layer's tokens in the same slots of all planes, with the weights of its
  // slice (WeightSource), which the caller holds.
  // Errors: those of the device.   Requires: a slot for each token.
  // Cost: 4 * activation_width * kv_width flops for each token, or with queries as much more.
  absl::Status Run(uint32_t layer, const Tokens& tokens, absl::Span<const Planes> planes);

 private:
  absl::StatusOr<bool> SameWithoutQueries(uint32_t layer);
  // Runs a try: positions 0, 1, 2, ... in slots of these numbers.
  // Shapes: activations  [rows, activation_width];  kv  [2, rows, kv_width]
  absl::Status RunTry(uint32_t layer, absl::Span<const BFloat16> activations,
                      absl::Span<BFloat16> kv);

  const plan::EpochConfig& config_;
  SliceExecutor& executor_;
  ValueBuffers buffers_;
  std::vector<size_t> first_columns_;  // [layers]: of q, k, v that are computed.
  std::vector<uint32_t> ids_;          // Nobody reads them.
};

}  // namespace lamina::compute_node
