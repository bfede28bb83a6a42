// SPDX-License-Identifier: Apache-2.0
//
// ModelWeights: the weights of a graph, resident in the form that the kernels take.
//
// A node that runs some layers only (a stage) holds the weights of those.
//
// Threading: built once; constant afterwards.
// Memory:    linear weights once in the backend's packed layout; an embedding table once as rows
// (so a
//            tied table is held twice: rows to look up, packed for the LM head).

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "kernels/dense.h"
#include "model/model.h"

namespace lamina::compute_node {

class ModelWeights {
 public:
  // Called while loading, with the share done in [0, 1].
  using Progress = std::function<void(double fraction)>;

  // Reads, dequantises and packs the weights of these ops, and no others.
  // Errors: those of ReadWeight(); kResourceExhausted.
  static absl::StatusOr<ModelWeights> Load(const model::Model& model, kernels::Dense& dense,
                                           absl::Span<const model::OpId> ops,
                                           const Progress& progress) {
    return Load(model.graph, *model.weights, dense, ops, progress);
  }
  // The same of another graph of the model: a shard's (model/shard.h).
  static absl::StatusOr<ModelWeights> Load(const model::Graph& graph,
                                           const model::WeightSource& source, kernels::Dense& dense,
                                           absl::Span<const model::OpId> ops,
                                           const Progress& progress);

  // Of a LinearOp: its parts stacked. nullptr for other ops.
  const kernels::PackedLinear* linear(model::OpId op) const { return linears_[op].get(); }
  // A norm's weight or bias, or another vector.
  const std::vector<float>& vector(model::WeightId weight) const { return vectors_[weight]; }
  // Rows of an embedding, in the compute type.
  const void* table(model::WeightId weight) const { return tables_[weight].data(); }
  DType table_type() const { return table_type_; }

  uint64_t bytes() const { return bytes_; }

 private:
  ModelWeights() = default;
  // Whose weights, and from where.
  struct Origin {
    const model::Graph& graph;
    const model::WeightSource& source;
    absl::StatusOr<std::vector<float>> Read(model::WeightId id) const;
  };
  absl::Status LoadLinear(const Origin& model, model::OpId op, kernels::Dense& dense);
  absl::Status LoadTable(const Origin& model, model::WeightId weight);
  absl::Status LoadVector(const Origin& model, model::WeightId weight);
  absl::Status LoadOp(const Origin& model, model::OpId op, kernels::Dense& dense);

  DType table_type_ = DType::kBF16;
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<kernels::PackedLinear>> linears_;  // [ops]
  std::vector<std::vector<float>> vectors_;                      // [weights]
  std::vector<std::vector<std::byte>> tables_;                   // [weights]
};

}  // namespace lamina::compute_node
