// SPDX-License-Identifier: Apache-2.0
//
// SliceProgram: what the slices of a split graph are made of: their ops in order, which of these
// one call runs, where reductions over shards stand between them, where the rows of the last slice
// are cut down to those that are sampled, and what each value is. It knows no memory and no device.
//
//   slice k:  [0, ops_before_send) makes q, k, v | ops_before_send .. overlaps with the attention
//   last one: its body up to the last reduction  | the tail, on few rows | the LM head
//
// Threading: constant once made.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "model/graph.h"
#include "model/splitter.h"

namespace lamina::compute_node {

// Ops [from, end) of a slice.
struct OpRange {
  uint32_t slice = 0;
  size_t from = 0;
  size_t end = 0;
  friend bool operator==(const OpRange&, const OpRange&) = default;
};

class SliceProgram {
 public:
  // The graph must outlive the program. `compute_type`: of the dense layers' inputs.
  // Errors: kInvalidArgument  the graph does not split, has no attention, or no LM head at its end.
  //         kUnimplemented    a reduction in what overlaps with the attention.
  static absl::StatusOr<SliceProgram> Create(const model::Graph& graph, DType compute_type);

  const model::Graph& graph() const { return *graph_; }
  const model::SplitModel& split() const { return split_; }
  uint32_t slice_count() const { return static_cast<uint32_t>(split_.slices.size()); }

  // The ops of slices [first, end): what they need of the weights. Without `head` not those of the
  // last slice behind its last reduction.
  std::vector<model::OpId> OpsOf(uint32_t first, uint32_t end, bool head = true) const;
  absl::Span<const model::OpId> OpsIn(const OpRange& range) const {
    return absl::MakeConstSpan(split_.slices[range.slice].ops)
        .subspan(range.from, range.end - range.from);
  }
  const model::Op& OpAt(uint32_t slice, size_t op) const {
    return graph_->ops[split_.slices[slice].ops[op]];
  }

  // Whether there are reductions; all are before q, k, v are complete, or in the last slice's body.
  bool reduces() const { return tail_begin_ > 0; }
  // Where the ops end that run before q, k, v are sent; of the last slice, where its body ends.
  size_t OpsEnd(uint32_t slice) const;
  // The first reduction from `from` on, or OpsEnd().
  size_t NextReduce(uint32_t slice, size_t from) const;
  OpRange BeforeSend(uint32_t slice) const { return {.slice = slice, .end = OpsEnd(slice)}; }
  OpRange AfterSend(uint32_t slice) const {
    return {.slice = slice, .from = OpsEnd(slice), .end = split_.slices[slice].ops.size()};
  }
  // What one call runs, by slice: up to reductions and between them, and what overlaps with the
  // attention; of the last slice its body, which all shards run. None is empty.
  std::vector<OpRange> Ranges() const;

  // The last slice's ops behind its body, of which the last is the LM head; what they read of
  // values that others made; and what crosses the last attention.
  OpRange Tail() const;
  model::OpId head() const { return split_.slices.back().ops.back(); }
  const std::vector<model::ValueId>& tail_inputs() const { return tail_inputs_; }
  const std::vector<model::ValueId>& last_inputs() const { return last_inputs_; }

  // Requires: slice < slice_count() - 1.
  const model::AttentionOp& attention(uint32_t slice) const;
  model::ValueId Qkv(uint32_t slice) const { return AttentionOf(slice).inputs[0]; }
  model::ValueId AttentionOutput(uint32_t slice) const { return AttentionOf(slice).output; }
  // The ops that make q, k and v of one value, KvInputOf(), in order: its linear layer first. None
  // where they are made in another way.
  absl::Span<const model::OpId> KvOps(uint32_t slice) const { return kv_ops_[slice]; }
  // What must be carried across the attention after `slice`, besides its output.
  const std::vector<model::ValueId>& Context(uint32_t slice) const {
    return split_.slices[slice].context;
  }

  uint32_t Width(model::ValueId value) const { return graph_->values[value].width; }
  DType TypeOf(model::ValueId value) const;
  size_t RowBytes(model::ValueId value) const { return Width(value) * DTypeBytes(TypeOf(value)); }
  size_t ContextRowBytesMax() const;  // Bytes of the widest context.
  size_t PartRowBytesMax() const;     // Bytes of what reductions sum; 0 without them.

  // Whether a reduction sums the value over shards.
  bool IsPart(model::ValueId value) const { return is_part_[value]; }
  // Whether the host sees it: q, k, v, attention outputs, contexts and logits.
  bool Crosses(model::ValueId value) const { return crosses_[value]; }

  // How many weights the linear ones of these ops have; of experts those of one row.
  size_t LinearWeights(absl::Span<const model::OpId> ops) const;

 private:
  SliceProgram(const model::Graph& graph, DType compute_type, model::SplitModel split);
  const model::Op& AttentionOf(uint32_t slice) const {
    return graph_->ops[split_.slices[slice].attention];
  }
  void FindCrossings();
  void FindTail();
  void FindKvOps();

  const model::Graph* graph_;
  DType compute_type_;
  model::SplitModel split_;
  size_t tail_begin_ = 0;  // First op of the last slice behind its last reduction.
  std::vector<model::ValueId> last_inputs_;
  std::vector<model::ValueId> tail_inputs_;
  std::vector<std::vector<model::OpId>> kv_ops_;  // [attentions]
  std::vector<bool> is_part_;                     // [values]
  std::vector<bool> crosses_;                     // [values]
};

// What q, k and v of the slice are made from, in the compute type; kNone without KvOps().
inline model::ValueId KvInputOf(const SliceProgram& program, uint32_t slice) {
  const absl::Span<const model::OpId> ops = program.KvOps(slice);
  return ops.empty() ? model::kNone : program.graph().ops[ops.front()].inputs[0];
}

}  // namespace lamina::compute_node
