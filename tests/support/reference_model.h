// SPDX-License-Identifier: Apache-2.0
//
// ReferenceModel: runs a graph with plain loops, all tokens of one sequence at once, full causal
// attention from scratch. The independent check that graphs are right; slow.
//
// Sums are in double; values are float. Nothing is rounded to bf16 unless asked.
//
// Threading: const calls from any thread.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/sampling_params.h"
#include "model/model.h"

namespace lamina::test_support {

struct ReferenceOptions {
  bool round_bf16 = false;     // Round the values whose type is kBF16, as every deployment does.
  bool round_compute = false;  // And those of type kCompute, and weights: a deployment in bf16.
};

class ReferenceModel {
 public:
  // Reads all weights. `model` must outlive the result.
  static absl::StatusOr<ReferenceModel> Load(const model::Model& model,
                                             const ReferenceOptions& options = {});

  // Logits of every position, [tokens.size()][vocabulary]. Requires: tokens in the vocabulary.
  std::vector<std::vector<float>> Logits(absl::Span<const TokenId> tokens) const;

  // Runs a model over shards (model/shard.h), each loaded with its own graph, by index.
  static std::vector<std::vector<float>> Logits(absl::Span<const ReferenceModel> shards,
                                                absl::Span<const TokenId> tokens);

 private:
  ReferenceModel(const model::Model& model, const ReferenceOptions& options)
      : model_(&model), options_(options) {}

  const model::Model* model_;
  ReferenceOptions options_;
  std::vector<std::vector<float>> weights_;  // By WeightId.
};

}  // namespace lamina::test_support
