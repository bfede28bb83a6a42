// SPDX-License-Identifier: Apache-2.0
//
// A weight of a model in 8 bits (kernels/int8_weights.h), read from the model's file. Groups are
// those of the whole matrix, so that a shard's columns have the values that they have in one piece.
//
// Threading: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/weight_source.h"

namespace lamina::compute_node {

// Whether the file has the weight as f32, f16 or bf16: what `weights: int8` is for. What a file has
// quantised stays as it is.
bool IsOfFloats(const model::Graph& graph, const model::WeightSource& source, model::WeightId id);

// Whether the op's matrices are meant: products of the layers, experts and the LM head; not the
// router of experts.
bool IsQuantisable(const model::Graph& graph, model::OpId op);

// Errors: kFailedPrecondition  no matrix that is meant is of floats: names the types in the file.
absl::Status CheckQuantises(const model::Graph& graph, const model::WeightSource& source);

// Rows of blocks. Where a shard's columns begin or end inside a group, these are the groups around
// them.
struct QuantisedWeight {
  std::vector<uint8_t> blocks;
  size_t rows = 0;
  size_t row_bytes = 0;
  size_t first = 0;   // Inputs of the first block that come before the row's own.
  size_t cols = 0;    // The row's own.
  bool whole = true;  // They begin and end with blocks, or with the matrix.

  // The blocks of each row's own columns. Requires: whole.
  std::vector<const uint8_t*> Rows() const;
  // The values of all rows, one after the other.
  std::vector<float> Values() const;
};

// Errors: those of ReadWeight().
//         kInvalidArgument  a weight is not finite, or too large for it.
absl::StatusOr<QuantisedWeight> QuantiseWeight(const model::Graph& graph,
                                               const model::WeightSource& source,
                                               model::WeightId id);

}  // namespace lamina::compute_node
