// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_executor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// Token ids or positions, besides values.
bool ReadsRowInputs(const model::Op& op) {
  return std::holds_alternative<model::EmbedOp>(op.body) ||
         std::holds_alternative<model::PositionEmbedOp>(op.body) ||
         std::holds_alternative<model::RopeOp>(op.body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SliceExecutor>> SliceExecutor::Create(const model::Graph& graph,
                                                                     WeightSource& weights,
                                                                     kernels::ComputeDevice& device,
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
      new SliceExecutor(graph, weights, device, std::move(split), head_columns));
}

SliceExecutor::SliceExecutor(const model::Graph& graph, WeightSource& weights,
                             kernels::ComputeDevice& device, model::SplitModel split,
                             size_t head_columns)
    : graph_(graph),
      weight_source_(weights),
      weights_(weights.weights()),
      device_(device),
      dense_(device.dense()),
      split_(std::move(split)),
      head_columns_(head_columns != 0  ? head_columns
                    : device.is_host() ? HeadColumnsLikeASlice()
                                       : head_width()) {
  FindTail();
  FindRanges();
}

void SliceExecutor::FindTail() {
  is_part_.assign(graph_.values.size(), false);
  for (const model::Op& op : graph_.ops) {
    if (std::holds_alternative<model::ReduceOp>(op.body)) {
      is_part_[op.inputs[0]] = true;
    }
  }
  crosses_.assign(graph_.values.size(), false);
  crosses_[graph_.logits] = true;
  for (const model::Slice& slice : split_.slices) {
    if (slice.attention != model::kNone) {
      crosses_[graph_.ops[slice.attention].inputs[0]] = true;
      crosses_[graph_.ops[slice.attention].output] = true;
    }
    for (const model::ValueId value : slice.context) {
      crosses_[value] = true;
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
  for (size_t i = tail_begin_; i < ops.size(); ++i) {
    LAMINA_CHECK(!ReadsRowInputs(graph_.ops[ops[i]]) && "tail buffers have no ids nor positions");
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

const model::AttentionOp& SliceExecutor::attention(uint32_t slice) const {
  return std::get<model::AttentionOp>(graph_.ops[split_.slices[slice].attention].body);
}

bool SliceExecutor::RunBeforeSend(uint32_t slice, ValueBuffers& buffers) {
  return Run(slice, 0, split_.slices[slice].ops_before_send, buffers);
}

bool SliceExecutor::RunAfterSend(uint32_t slice, ValueBuffers& buffers) {
  const model::Slice& s = split_.slices[slice];
  return Run(slice, s.ops_before_send, s.ops.size(), buffers);
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

bool SliceExecutor::Run(uint32_t slice, size_t from, size_t end, ValueBuffers& buffers) {
  const OpRange range{.slice = slice, .from = from, .end = end};
  kernels::RecordedWork* const recorded = Recorded(range, buffers);
  if (recorded == nullptr) {
    RunOps(OpsIn(range), buffers);
    return false;
  }
  recorded->Replay();
  if (between_ops_) {
    between_ops_();
  }
  return true;
}

void SliceExecutor::PlacePart(uint32_t slice, size_t reduce, std::byte* at,
                              ValueBuffers& buffers) const {
  buffers.placed_[OpAt(slice, reduce).inputs[0]] = at;
}

void SliceExecutor::Reduce(uint32_t slice, size_t reduce, absl::Span<const float* const> parts,
                           size_t rows, ValueBuffers& buffers) {
  const auto out = Floats(OpAt(slice, reduce).output, rows, buffers);
  if (!device_.is_host()) {
    const size_t bytes = rows * RowBytes(OpAt(slice, reduce).output);
    auto* const other = reinterpret_cast<float*>(buffers.device_part_.data);
    device_.Copy(out.data, parts[0], bytes);
    for (size_t shard = 1; shard < parts.size(); ++shard) {
      device_.Copy(other, parts[shard], bytes);
      dense_.Add(out, kernels::Packed(other, rows, out.cols), out);
    }
    return;
  }
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

void SliceExecutor::GatherRows(absl::Span<const uint32_t> rows, size_t row_bytes,
                               const std::byte* from, std::byte* to) const {
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    // A place may be read and written: then as many as do not overlap.
    const size_t apart = from == to ? rows[i] - i : rows.size();
    end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1 && (apart == 0 || end - i < apart)) {
      ++end;
    }
    if (from != to || apart > 0) {
      device_.Copy(to + i * row_bytes, from + rows[i] * row_bytes, (end - i) * row_bytes);
    }
  }
}

void SliceExecutor::KeepRows(absl::Span<const uint32_t> kept, ValueBuffers& buffers) const {
  for (const model::ValueId value : last_inputs_) {
    GatherRows(kept, RowBytes(value), buffers.data(value), buffers.data(value));
  }
}

void SliceExecutor::BeginTail(ValueBuffers& buffers, absl::Span<const uint32_t> chosen,
                              ValueBuffers& tail) {
  LAMINA_CHECK(chosen.size() <= kTailRows);
  for (const model::ValueId value : tail_inputs_) {
    GatherRows(chosen, RowBytes(value), buffers.data(value), tail.data(value));
  }
  // How many; what they are is not read any more (FindTail()).
  const absl::Span<const uint32_t> unread(nullptr, chosen.size());
  tail.device_rows_ = {.token_ids = unread, .positions = unread};
  const absl::Span<const model::OpId> ops = split_.slices.back().ops;
  RunOps(ops.subspan(tail_begin_, ops.size() - 1 - tail_begin_), tail);
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

}  // namespace lamina::compute_node
