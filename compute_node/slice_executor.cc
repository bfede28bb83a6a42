// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

kernels::RopeLayout ToKernel(model::RopeLayout layout) {
  return layout == model::RopeLayout::kHalves ? kernels::RopeLayout::kHalves
                                              : kernels::RopeLayout::kInterleaved;
}

kernels::Activation ToKernel(model::ActivationKind kind) {
  switch (kind) {
    case model::ActivationKind::kRelu:
      return kernels::Activation::kRelu;
    case model::ActivationKind::kSilu:
      return kernels::Activation::kSilu;
    case model::ActivationKind::kGeluErf:
      return kernels::Activation::kGeluErf;
    case model::ActivationKind::kGeluTanh:
      return kernels::Activation::kGeluTanh;
  }
  return kernels::Activation::kRelu;
}

}  // namespace

std::vector<absl::Span<std::byte>> ValueBuffers::Allocations() {
  std::vector<absl::Span<std::byte>> all;
  for (std::vector<std::byte>& buffer : storage_) {
    all.push_back(absl::MakeSpan(buffer));
  }
  return all;
}

absl::StatusOr<std::unique_ptr<SliceExecutor>> SliceExecutor::Create(const model::Graph& graph,
                                                                     const ModelWeights& weights,
                                                                     kernels::Dense& dense,
                                                                     size_t head_columns) {
  LAMINA_ASSIGN_OR_RETURN(model::SplitModel split, model::SplitAtAttention(graph));
  if (split.slices.size() < 2) {
    return absl::InvalidArgumentError("the model has no attention");
  }
  const std::vector<model::OpId>& last = split.slices.back().ops;
  if (last.empty() || !std::holds_alternative<model::LinearOp>(graph.ops[last.back()].body)) {
    return absl::InvalidArgumentError("the model does not end with a linear layer, the LM head");
  }
  for (const model::Slice& slice : split.slices) {
    const auto beside = absl::MakeConstSpan(slice.ops).subspan(slice.ops_before_send);
    for (const model::OpId op : beside) {
      if (slice.attention != model::kNone &&
          std::holds_alternative<model::ReduceOp>(graph.ops[op].body)) {
        return absl::UnimplementedError(
            absl::StrCat(graph.ops[op].name, ": a reduction over shards beside the attention"));
      }
    }
  }
  return std::unique_ptr<SliceExecutor>(
      new SliceExecutor(graph, weights, dense, std::move(split), head_columns));
}

SliceExecutor::SliceExecutor(const model::Graph& graph, const ModelWeights& weights,
                             kernels::Dense& dense, model::SplitModel split, size_t head_columns)
    : graph_(graph),
      weights_(weights),
      dense_(dense),
      split_(std::move(split)),
      head_columns_(head_columns != 0 ? head_columns : HeadColumnsLikeASlice()) {
  FindTail();
}

void SliceExecutor::FindTail() {
  is_part_.assign(graph_.values.size(), false);
  for (const model::Op& op : graph_.ops) {
    if (std::holds_alternative<model::ReduceOp>(op.body)) {
      is_part_[op.inputs[0]] = true;
    }
  }
  const model::Slice& before = split_.slices[split_.slices.size() - 2];
  last_inputs_ = before.context;
  last_inputs_.push_back(graph_.ops[before.attention].output);
  const std::vector<model::OpId>& ops = split_.slices.back().ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (std::holds_alternative<model::ReduceOp>(graph_.ops[ops[i]].body)) {
      tail_begin_ = i + 1;
    }
  }
  if (tail_begin_ == 0) {
    tail_inputs_ = last_inputs_;
    return;
  }
  std::vector<bool> known(graph_.values.size(), false);
  for (size_t i = tail_begin_; i < ops.size(); ++i) {
    for (const model::ValueId input : graph_.ops[ops[i]].inputs) {
      if (!known[input]) {
        tail_inputs_.push_back(input);
      }
      known[input] = true;
    }
    known[graph_.ops[ops[i]].output] = true;
  }
}

size_t SliceExecutor::HeadColumnsLikeASlice() const {
  // Whole blocks of oneDNN's weights; fewer columns would run a block more than once.
  constexpr size_t kStep = 2048;
  size_t slice_weights = 0;
  for (const model::OpId op : split_.slices[split_.slices.size() / 2].ops) {
    if (std::holds_alternative<model::LinearOp>(graph_.ops[op].body)) {
      slice_weights += size_t{graph_.values[graph_.ops[op].inputs[0]].width} *
                       graph_.values[graph_.ops[op].output].width;
    }
  }
  const model::Op& head = graph_.ops[split_.slices.back().ops.back()];
  const size_t columns = slice_weights / graph_.values[head.inputs[0]].width;
  return std::max<size_t>(1, (columns + kStep / 2) / kStep) * kStep;
}

std::vector<model::OpId> SliceExecutor::OpsOf(uint32_t first, uint32_t end, bool head) const {
  std::vector<model::OpId> ops;
  for (uint32_t s = first; s < end; ++s) {
    const absl::Span<const model::OpId> all = split_.slices[s].ops;
    const auto own = s + 1 == slice_count() && !head ? all.first(tail_begin_) : all;
    ops.insert(ops.end(), own.begin(), own.end());
  }
  return ops;
}

absl::Status SliceExecutor::Prepare(size_t rows_max) {
  for (uint32_t s = 0; s < slice_count(); ++s) {
    for (size_t i = 0; i < split_.slices[s].ops.size(); ++i) {
      const model::OpId op = split_.slices[s].ops[i];
      const bool tail = s + 1 == slice_count() && i >= tail_begin_;
      if (weights_.linear(op) != nullptr) {
        LAMINA_RETURN_IF_ERROR(
            dense_.Prepare(*weights_.linear(op), tail ? std::min(rows_max, kTailRows) : rows_max));
      }
    }
  }
  return absl::OkStatus();
}

DType SliceExecutor::TypeOf(model::ValueId value) const {
  switch (graph_.values[value].type) {
    case model::ValueType::kF32:
      return DType::kF32;
    case model::ValueType::kBF16:
      return DType::kBF16;
    case model::ValueType::kCompute:
      return dense_.compute_type();
  }
  return DType::kF32;
}

size_t SliceExecutor::RowBytes(model::ValueId value) const {
  return graph_.values[value].width * DTypeBytes(TypeOf(value));
}

// Gives every value that `order` makes, and `inputs`, a buffer; shares buffers of equal size
// between values that do not live at the same time.
ValueBuffers SliceExecutor::Assign(absl::Span<const Step> order,
                                   absl::Span<const model::ValueId> inputs, size_t rows_max) const {
  ValueBuffers buffers;
  buffers.rows_max_ = rows_max;
  buffers.slot_.assign(graph_.values.size(), model::kNone);
  buffers.placed_.assign(graph_.values.size(), nullptr);
  std::vector<size_t> last_use(graph_.values.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i].reads) {
      for (const model::ValueId value : graph_.ops[order[i].op].inputs) {
        last_use[value] = i;
      }
    }
  }
  // Values that a later set of buffers reads stay to the end.
  for (const model::ValueId value : tail_inputs_) {
    last_use[value] = order.size();
  }
  std::vector<std::pair<size_t, uint32_t>> free;  // (bytes of a row, slot)
  const auto take = [&](model::ValueId value) {
    if (is_part_[value]) {
      return;
    }
    const size_t bytes = RowBytes(value);
    const auto match = std::find_if(free.begin(), free.end(),
                                    [&](const auto& entry) { return entry.first == bytes; });
    if (match != free.end()) {
      buffers.slot_[value] = match->second;
      free.erase(match);
      return;
    }
    buffers.slot_[value] = static_cast<uint32_t>(buffers.storage_.size());
    buffers.storage_.emplace_back(bytes * rows_max);
  };
  for (const model::ValueId value : inputs) {
    take(value);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const model::Op& op = graph_.ops[order[i].op];
    if (order[i].makes) {
      take(op.output);
    }
    if (!order[i].reads) {
      continue;
    }
    std::vector<model::ValueId> read = op.inputs;
    std::sort(read.begin(), read.end());
    read.erase(std::unique(read.begin(), read.end()), read.end());
    for (const model::ValueId value : read) {
      if (last_use[value] == i && !is_part_[value]) {
        free.emplace_back(RowBytes(value), buffers.slot_[value]);
      }
    }
  }
  return buffers;
}

ValueBuffers SliceExecutor::MakeBuffers(size_t rows_max) const {
  std::vector<Step> order;
  for (size_t s = 0; s + 1 < split_.slices.size(); ++s) {
    const model::Slice& slice = split_.slices[s];
    for (uint32_t i = 0; i < slice.ops.size(); ++i) {
      if (i == slice.ops_before_send) {
        order.push_back({.op = slice.attention, .reads = false});
      }
      order.push_back({.op = slice.ops[i]});
    }
    const bool made = slice.ops_before_send < slice.ops.size();
    order.push_back({.op = slice.attention, .makes = !made});
  }
  for (size_t i = 0; i < tail_begin_; ++i) {
    order.push_back({.op = split_.slices.back().ops[i]});
  }
  return Assign(order, {}, rows_max);
}

ValueBuffers SliceExecutor::MakeTailBuffers() const {
  std::vector<Step> order;
  for (const model::OpId op : absl::MakeConstSpan(split_.slices.back().ops).subspan(tail_begin_)) {
    order.push_back({.op = op});
  }
  return Assign(order, tail_inputs_, kTailRows);
}

const model::AttentionOp& SliceExecutor::attention(uint32_t slice) const {
  return std::get<model::AttentionOp>(graph_.ops[split_.slices[slice].attention].body);
}

kernels::MatrixView<float> SliceExecutor::Floats(model::ValueId value, size_t rows,
                                                 ValueBuffers& buffers) const {
  LAMINA_CHECK(TypeOf(value) == DType::kF32 && rows <= buffers.rows_max());
  return kernels::Packed(reinterpret_cast<float*>(buffers.data(value)), rows,
                         graph_.values[value].width);
}

kernels::MatrixView<BFloat16> SliceExecutor::Halves(model::ValueId value, size_t rows,
                                                    ValueBuffers& buffers) const {
  LAMINA_CHECK(TypeOf(value) == DType::kBF16 && rows <= buffers.rows_max());
  return kernels::Packed(reinterpret_cast<BFloat16*>(buffers.data(value)), rows,
                         graph_.values[value].width);
}

kernels::ActivationView SliceExecutor::Activations(model::ValueId value, size_t rows,
                                                   ValueBuffers& buffers) const {
  LAMINA_CHECK(rows <= buffers.rows_max());
  return {.data = buffers.data(value),
          .rows = rows,
          .cols = graph_.values[value].width,
          .stride = graph_.values[value].width,
          .dtype = TypeOf(value)};
}

kernels::MatrixView<BFloat16> SliceExecutor::QkvRows(uint32_t slice, size_t rows,
                                                     ValueBuffers& buffers) const {
  return Halves(graph_.ops[split_.slices[slice].attention].inputs[0], rows, buffers);
}

kernels::MatrixView<BFloat16> SliceExecutor::AttentionRows(uint32_t slice, size_t rows,
                                                           ValueBuffers& buffers) const {
  return Halves(graph_.ops[split_.slices[slice].attention].output, rows, buffers);
}

absl::Span<std::byte> SliceExecutor::ContextRows(uint32_t slice, size_t index, size_t rows,
                                                 ValueBuffers& buffers) const {
  LAMINA_CHECK(rows <= buffers.rows_max());
  const model::ValueId value = split_.slices[slice].context[index];
  return {buffers.data(value), rows * RowBytes(value)};
}

size_t SliceExecutor::ContextRowBytesMax() const {
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

void SliceExecutor::RunBeforeSend(uint32_t slice, const RowInputs& rows, ValueBuffers& buffers) {
  const model::Slice& s = split_.slices[slice];
  RunOps(absl::MakeSpan(s.ops).first(s.ops_before_send), rows, buffers);
}

void SliceExecutor::RunAfterSend(uint32_t slice, const RowInputs& rows, ValueBuffers& buffers) {
  const model::Slice& s = split_.slices[slice];
  RunOps(absl::MakeSpan(s.ops).subspan(s.ops_before_send), rows, buffers);
}

size_t SliceExecutor::OpsEnd(uint32_t slice) const {
  return slice + 1 == slice_count() ? tail_begin_ : split_.slices[slice].ops_before_send;
}

size_t SliceExecutor::NextReduce(uint32_t slice, size_t from) const {
  const size_t end = OpsEnd(slice);
  while (from < end && !std::holds_alternative<model::ReduceOp>(OpAt(slice, from).body)) {
    ++from;
  }
  return from;
}

void SliceExecutor::Run(uint32_t slice, size_t from, size_t end, const RowInputs& rows,
                        ValueBuffers& buffers) {
  RunOps(absl::MakeSpan(split_.slices[slice].ops).subspan(from, end - from), rows, buffers);
}

void SliceExecutor::PlacePart(uint32_t slice, size_t reduce, std::byte* at,
                              ValueBuffers& buffers) const {
  buffers.placed_[OpAt(slice, reduce).inputs[0]] = at;
}

void SliceExecutor::Reduce(uint32_t slice, size_t reduce, absl::Span<const float* const> parts,
                           size_t rows, ValueBuffers& buffers) {
  const auto out = Floats(OpAt(slice, reduce).output, rows, buffers);
  const auto part = [&](size_t shard) { return kernels::Packed(parts[shard], rows, out.cols); };
  dense_.Add(part(0), part(1), out);
  for (size_t shard = 2; shard < parts.size(); ++shard) {
    dense_.Add(out, part(shard), out);
  }
}

size_t SliceExecutor::PartRowBytes(uint32_t slice, size_t reduce) const {
  return RowBytes(OpAt(slice, reduce).inputs[0]);
}

size_t SliceExecutor::PartRowBytesMax() const {
  size_t most = 0;
  for (model::ValueId value = 0; value < is_part_.size(); ++value) {
    most = std::max(most, is_part_[value] ? RowBytes(value) : 0);
  }
  return most;
}

void SliceExecutor::KeepRows(absl::Span<const uint32_t> kept, ValueBuffers& buffers) const {
  for (const model::ValueId value : last_inputs_) {
    const size_t bytes = RowBytes(value);
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] != i) {
        std::memcpy(buffers.data(value) + i * bytes, buffers.data(value) + kept[i] * bytes, bytes);
      }
    }
  }
}

void SliceExecutor::BeginTail(const RowInputs& rows, ValueBuffers& buffers,
                              absl::Span<const uint32_t> chosen, ValueBuffers& tail) {
  LAMINA_CHECK(chosen.size() <= kTailRows);
  for (const model::ValueId value : tail_inputs_) {
    const size_t bytes = RowBytes(value);
    for (size_t i = 0; i < chosen.size(); ++i) {
      std::memcpy(tail.data(value) + i * bytes, buffers.data(value) + chosen[i] * bytes, bytes);
    }
  }
  uint32_t positions[kTailRows];
  uint32_t ids[kTailRows];
  for (size_t i = 0; i < chosen.size(); ++i) {
    positions[i] = rows.positions[chosen[i]];
    ids[i] = rows.token_ids[chosen[i]];
  }
  const RowInputs gathered{.token_ids = {ids, chosen.size()},
                           .positions = {positions, chosen.size()}};
  const absl::Span<const model::OpId> ops = split_.slices.back().ops;
  RunOps(ops.subspan(tail_begin_, ops.size() - 1 - tail_begin_), gathered, tail);
}

size_t SliceExecutor::RunHead(size_t rows, size_t first, ValueBuffers& tail) {
  const model::OpId id = split_.slices.back().ops.back();
  const model::Op& head = graph_.ops[id];
  const kernels::MatrixView<float> logits = Floats(head.output, rows, tail);
  const size_t columns = std::min(head_columns_, logits.cols - first);
  dense_.Linear(*weights_.linear(id), Activations(head.inputs[0], rows, tail), first,
                logits.Cols(first, columns));
  return first + columns;
}

kernels::MatrixView<const float> SliceExecutor::Logits(size_t rows, ValueBuffers& tail) const {
  return Floats(graph_.logits, rows, tail);
}

void SliceExecutor::RunOps(absl::Span<const model::OpId> ops, const RowInputs& rows,
                           ValueBuffers& buffers) {
  for (const model::OpId op : ops) {
    RunOp(op, rows, buffers);
    if (between_ops_) {
      between_ops_();
    }
  }
}

void SliceExecutor::RunOp(model::OpId id, const RowInputs& rows, ValueBuffers& buffers) {
  const model::Op& op = graph_.ops[id];
  const size_t count = rows.positions.size();
  if (const auto* embed = std::get_if<model::EmbedOp>(&op.body)) {
    dense_.Embed(weights_.table(embed->table), weights_.table_type(),
                 graph_.values[op.output].width, rows.token_ids, Floats(op.output, count, buffers));
  } else if (const auto* learned = std::get_if<model::PositionEmbedOp>(&op.body)) {
    const auto out = Floats(op.output, count, buffers);
    dense_.Embed(weights_.table(learned->table), weights_.table_type(), out.cols, rows.positions,
                 out);
    dense_.Add(Floats(op.inputs[0], count, buffers), out, out);
  } else if (std::holds_alternative<model::NormOp>(op.body)) {
    RunNorm(op, count, buffers);
  } else if (std::holds_alternative<model::LinearOp>(op.body)) {
    RunLinear(id, count, buffers);
  } else if (std::holds_alternative<model::RopeOp>(op.body)) {
    RunRope(op, rows, buffers);
  } else if (std::holds_alternative<model::AddOp>(op.body)) {
    RunAdd(op, count, buffers);
  } else if (const auto* activation = std::get_if<model::ActivationOp>(&op.body)) {
    const auto in = Floats(op.inputs[0], count, buffers);
    const auto out = Activations(op.output, count, buffers);
    if (activation->gated) {
      dense_.GatedActivation(ToKernel(activation->kind), in, out);
    } else {
      dense_.Activate(ToKernel(activation->kind), in, out);
    }
  } else if (std::holds_alternative<model::ConvertOp>(op.body)) {
    dense_.Convert(Halves(op.inputs[0], count, buffers), Activations(op.output, count, buffers));
  } else {
    LAMINA_CHECK(false);  // Attention is never inside a slice, a reduction never run as an op.
  }
}

void SliceExecutor::RunLinear(model::OpId id, size_t rows, ValueBuffers& buffers) {
  const model::Op& op = graph_.ops[id];
  dense_.Linear(*weights_.linear(id), Activations(op.inputs[0], rows, buffers), 0,
                Floats(op.output, rows, buffers));
}

void SliceExecutor::RunNorm(const model::Op& op, size_t rows, ValueBuffers& buffers) {
  const auto& norm = std::get<model::NormOp>(op.body);
  const auto in = Floats(op.inputs[0], rows, buffers);
  const auto out = Activations(op.output, rows, buffers);
  if (norm.kind == model::NormKind::kRms) {
    dense_.RmsNorm(in, weights_.vector(norm.weight), norm.epsilon, out);
    return;
  }
  static const std::vector<float> kNoBias;
  dense_.LayerNorm(in, weights_.vector(norm.weight),
                   norm.bias == model::kNone ? kNoBias : weights_.vector(norm.bias), norm.epsilon,
                   out);
}

void SliceExecutor::RunAdd(const model::Op& op, size_t rows, ValueBuffers& buffers) {
  const auto out = Floats(op.output, rows, buffers);
  dense_.Add(Floats(op.inputs[0], rows, buffers), Floats(op.inputs[1], rows, buffers), out);
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    dense_.Add(out, Floats(op.inputs[i], rows, buffers), out);
  }
}

void SliceExecutor::RunRope(const model::Op& op, const RowInputs& rows, ValueBuffers& buffers) {
  const auto& rope = std::get<model::RopeOp>(op.body);
  const size_t count = rows.positions.size();
  const kernels::RopeTable table{.layout = ToKernel(rope.layout),
                                 .rotary_dim = rope.rotary_dim,
                                 .magnitude = rope.magnitude,
                                 .frequencies = rope.frequencies};
  dense_.RopeAndRound(Floats(op.inputs[0], count, buffers), rope.heads, rope.head_dim, table,
                      rows.positions, Halves(op.output, count, buffers));
}

}  // namespace lamina::compute_node
