// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_program.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

bool IsReduce(const model::Op& op) { return std::holds_alternative<model::ReduceOp>(op.body); }

// Token ids or positions, besides values.
bool ReadsRowInputs(const model::Op& op) {
  return std::holds_alternative<model::EmbedOp>(op.body) ||
         std::holds_alternative<model::PositionEmbedOp>(op.body) ||
         std::holds_alternative<model::RopeOp>(op.body);
}

}  // namespace

absl::StatusOr<SliceProgram> SliceProgram::Create(const model::Graph& graph, DType compute_type) {
  LAMINA_ASSIGN_OR_RETURN(model::SplitModel split, model::SplitAtAttention(graph));
  if (split.slices.size() < 2) {
    return absl::InvalidArgumentError("the model has no attention");
  }
  const std::vector<model::OpId>& last = split.slices.back().ops;
  if (last.empty() || !std::holds_alternative<model::LinearOp>(graph.ops[last.back()].body)) {
    return absl::InvalidArgumentError("the model does not end with a linear layer, the LM head");
  }
  for (const model::Slice& slice : split.slices) {
    const auto overlapped = absl::MakeConstSpan(slice.ops).subspan(slice.ops_before_send);
    for (const model::OpId op : overlapped) {
      if (slice.attention != model::kNone && IsReduce(graph.ops[op])) {
        return absl::UnimplementedError(absl::StrCat(
            graph.ops[op].name, ": a reduction over shards overlapped with the attention"));
      }
    }
  }
  return SliceProgram(graph, compute_type, std::move(split));
}

SliceProgram::SliceProgram(const model::Graph& graph, DType compute_type, model::SplitModel split)
    : graph_(&graph), compute_type_(compute_type), split_(std::move(split)) {
  FindCrossings();
  FindTail();
  FindKvOps();
}

// A chain: nothing but norms of heads and rope stands between the linear layer and the attention.
void SliceProgram::FindKvOps() {
  for (uint32_t slice = 0; slice + 1 < slice_count(); ++slice) {
    std::vector<model::OpId> ops;
    model::ValueId value = Qkv(slice);
    bool linear = false;
    while (!linear) {
      ops.push_back(graph_->values[value].producer);
      const model::Op& op = graph_->ops[ops.back()];
      if (op.inputs.size() != 1) {
        ops.clear();
        break;
      }
      linear = std::holds_alternative<model::LinearOp>(op.body);
      value = op.inputs[0];
    }
    std::reverse(ops.begin(), ops.end());
    kv_ops_.push_back(std::move(ops));
  }
}

void SliceProgram::FindCrossings() {
  is_part_.assign(graph_->values.size(), false);
  for (const model::Op& op : graph_->ops) {
    if (IsReduce(op)) {
      is_part_[op.inputs[0]] = true;
    }
  }
  crosses_.assign(graph_->values.size(), false);
  crosses_[graph_->logits] = true;
  for (uint32_t slice = 0; slice + 1 < slice_count(); ++slice) {
    crosses_[Qkv(slice)] = true;
    crosses_[AttentionOutput(slice)] = true;
    for (const model::ValueId value : Context(slice)) {
      crosses_[value] = true;
    }
  }
}

void SliceProgram::FindTail() {
  last_inputs_ = Context(slice_count() - 2);
  last_inputs_.push_back(AttentionOutput(slice_count() - 2));
  const std::vector<model::OpId>& ops = split_.slices.back().ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (IsReduce(graph_->ops[ops[i]])) {
      tail_begin_ = i + 1;
    }
  }
  for (const model::OpId op : OpsIn(Tail())) {
    LAMINA_CHECK(!ReadsRowInputs(graph_->ops[op]) && "tail buffers have no ids nor positions");
  }
  if (tail_begin_ == 0) {
    tail_inputs_ = last_inputs_;
    return;
  }
  std::vector<bool> known(graph_->values.size(), false);
  for (const model::OpId op : OpsIn(Tail())) {
    for (const model::ValueId input : graph_->ops[op].inputs) {
      if (!known[input]) {
        tail_inputs_.push_back(input);
      }
      known[input] = true;
    }
    known[graph_->ops[op].output] = true;
  }
}

std::vector<model::OpId> SliceProgram::OpsOf(uint32_t first, uint32_t end, bool head) const {
  std::vector<model::OpId> ops;
  for (uint32_t s = first; s < end; ++s) {
    const absl::Span<const model::OpId> all = split_.slices[s].ops;
    const auto own = s + 1 == slice_count() && !head ? all.first(tail_begin_) : all;
    ops.insert(ops.end(), own.begin(), own.end());
  }
  return ops;
}

size_t SliceProgram::OpsEnd(uint32_t slice) const {
  return slice + 1 == slice_count() ? tail_begin_ : split_.slices[slice].ops_before_send;
}

size_t SliceProgram::NextReduce(uint32_t slice, size_t from) const {
  const size_t end = OpsEnd(slice);
  while (from < end && !IsReduce(OpAt(slice, from))) {
    ++from;
  }
  return from;
}

OpRange SliceProgram::Tail() const {
  return {.slice = slice_count() - 1, .from = tail_begin_, .end = split_.slices.back().ops.size()};
}

std::vector<OpRange> SliceProgram::Ranges() const {
  std::vector<OpRange> ranges;
  const auto add = [&ranges](const OpRange& range) {
    if (range.from < range.end) {
      ranges.push_back(range);
    }
  };
  for (uint32_t slice = 0; slice < slice_count(); ++slice) {
    const size_t end = OpsEnd(slice);
    for (size_t from = 0; from < end;) {
      const size_t reduce = NextReduce(slice, from);
      add({.slice = slice, .from = from, .end = reduce});
      from = reduce + 1;
    }
    if (slice + 1 < slice_count()) {
      add(AfterSend(slice));
    }
  }
  return ranges;
}

const model::AttentionOp& SliceProgram::attention(uint32_t slice) const {
  return std::get<model::AttentionOp>(AttentionOf(slice).body);
}

DType SliceProgram::TypeOf(model::ValueId value) const {
  switch (graph_->values[value].type) {
    case model::ValueType::kF32:
      return DType::kF32;
    case model::ValueType::kBF16:
      return DType::kBF16;
    case model::ValueType::kCompute:
      return compute_type_;
  }
  return DType::kF32;
}

size_t SliceProgram::ContextRowBytesMax() const {
  size_t most = 0;
  for (const model::Slice& slice : split_.slices) {
    size_t bytes = 0;
    for (const model::ValueId value : slice.context) {
      bytes += RowBytes(value);
    }
    most = std::max(most, bytes);
  }
  return most;
}

size_t SliceProgram::PartRowBytesMax() const {
  size_t most = 0;
  for (model::ValueId value = 0; value < is_part_.size(); ++value) {
    most = std::max(most, is_part_[value] ? RowBytes(value) : 0);
  }
  return most;
}

size_t SliceProgram::LinearWeights(absl::Span<const model::OpId> ops) const {
  size_t weights = 0;
  for (const model::OpId id : ops) {
    weights += model::MatrixWeightsOfRow(*graph_, graph_->ops[id]);
  }
  return weights;
}

}  // namespace lamina::compute_node
