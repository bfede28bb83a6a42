// SPDX-License-Identifier: Apache-2.0
//
// DecoderLayers: the layers of a gated decoder (gated_decoder_internal.h), appended to a graph.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {

// Everything outlives the layers.
struct DecoderParts {
  const ModelConfig& config;
  const GatedDecoderOptions& options;
  const DecoderNames& names;
  ActivationKind activation;
};

// A vector whose elements are those of the file plus `offset`.
WeightId AddOffsetVector(GraphBuilder& builder, const std::string& name, uint32_t cols,
                         float offset);

class DecoderLayers {
 public:
  DecoderLayers(const DecoderParts& parts, const WeightSource& weights, GraphBuilder& builder)
      : config_(parts.config),
        options_(parts.options),
        names_(parts.names),
        activation_(parts.activation),
        weights_(weights),
        builder_(builder) {}

  // Appends layer `layer` behind `residual`, the stream between layers; returns the stream behind
  // it. Errors: those of reading sinks.
  absl::StatusOr<ValueId> Append(uint32_t layer, ValueId residual);

 private:
  std::string Name(const std::string& name) const { return prefix_ + name; }
  LinearOp::Part Part(const std::string& name, uint32_t rows, uint32_t cols, bool bias);
  NormOp Norm(const std::string& name);
  ValueId NormBefore(const char* op, const std::string& name, ValueId residual);
  ValueId AddToResidual(const char* norm, const std::string& name, const char* sum,
                        ValueId residual, ValueId out);
  std::vector<LinearOp::Part> QkvParts();
  absl::StatusOr<ValueId> AppendAttention(uint32_t layer, ValueId residual);
  ValueId AppendMlp(ValueId in);
  ValueId AppendExperts(ValueId in);
  ExpertsOp::Expert MakeExpert(uint32_t expert);
  // A part of expert `expert`: rows first, first + step, ... of what is stored under `name`.
  LinearOp::Part ExpertPart(const std::string& name, uint32_t expert, uint32_t rows, uint32_t cols,
                            uint32_t first = 0, uint32_t step = 1);

  const ModelConfig& config_;
  const GatedDecoderOptions& options_;
  const DecoderNames& names_;
  const ActivationKind activation_;
  const WeightSource& weights_;
  GraphBuilder& builder_;
  std::string prefix_;
};

}  // namespace lamina::model
