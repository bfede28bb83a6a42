// SPDX-License-Identifier: Apache-2.0
//
// OpRunner: runs ops of a graph as calls of the device's dense layers, on values in ValueBuffers.
//
// Threading: one thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "compute_node/model_weights.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_buffers.h"
#include "kernels/dense.h"
#include "kernels/experts.h"
#include "model/graph.h"

namespace lamina::compute_node {

class OpRunner {
 public:
  // References must outlive the runner.
  OpRunner(const SliceProgram& program, const ModelWeights& weights, kernels::Dense& dense);

  // Called after every op; null: nothing is.
  void SetBetweenOps(std::function<void()> call) { between_ops_ = std::move(call); }
  void BetweenOps() const {
    if (between_ops_) {
      between_ops_();
    }
  }

  // Runs these ops on all rows of the buffers: in one call each a sum and the RMS norm of it; gates
  // and ups and their activation; norms of heads, rope, and where the buffers have it so, the store
  // of k and v. Requires: the linear ones' weights are here; no attention, no reduction.
  void Run(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const;

  // Runs ops of which the first is a linear one, and makes of its output only columns from
  // `first_column` on, a multiple of 64: the others are not to be looked at.
  void RunColumns(absl::Span<const model::OpId> ops, size_t first_column,
                  ValueBuffers& buffers) const;

 private:
  void RunOp(model::OpId id, ValueBuffers& buffers) const;
  // Whether `ops` begin with a sum of two and the RMS norm of that sum, which are then run.
  bool RunAddNorm(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const;
  // Whether `ops` begin with a linear one that a gated activation alone reads, and it, which are
  // then run.
  bool RunLinearGated(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const;
  // Whether `ops` begin with norms of heads that rope alone reads, and it, which are then run.
  bool RunNormRope(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const;
  void RunLinear(model::OpId id, size_t rows, size_t first_column, ValueBuffers& buffers) const;
  void Embed(model::WeightId table, absl::Span<const uint32_t> ids,
             kernels::MatrixView<float> out) const;
  void RunConvert(const model::Op& op, size_t rows, ValueBuffers& buffers) const;
  void RunNorm(const model::Op& op, size_t rows, ValueBuffers& buffers) const;
  void RunAdd(const model::Op& op, size_t rows, ValueBuffers& buffers) const;
  kernels::HeadNorms HeadNormsOf(const model::Op& op) const;
  void RunHeadNorm(const model::Op& op, size_t rows, ValueBuffers& buffers) const;
  void RunExperts(model::OpId id, size_t rows, ValueBuffers& buffers) const;
  // `norms` is the op of the heads' norms right before it; null: there is none.
  void RunRope(model::OpId id, const model::Op* norms, ValueBuffers& buffers) const;

  const SliceProgram& program_;
  const ModelWeights& weights_;
  kernels::Dense& dense_;
  std::vector<uint32_t> readers_;  // [values]: how many ops read each.
  std::function<void()> between_ops_;
  mutable kernels::ExpertLayers expert_layers_;  // Mutable for its scratch.
};

}  // namespace lamina::compute_node
