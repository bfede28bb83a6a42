// SPDX-License-Identifier: Apache-2.0
//
// Where values lie, on the device and on the host, and how they come from one to the other.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/slice_executor.h"

namespace lamina::compute_node {
namespace {

// Of `count` rows the next number that is recorded, or that many.
size_t RowsComputed(size_t count, absl::Span<const size_t> recorded) {
  const auto next = std::lower_bound(recorded.begin(), recorded.end(), count);
  return next == recorded.end() ? count : *next;
}

}  // namespace

std::vector<absl::Span<std::byte>> ValueBuffers::DeviceAllocations() const {
  std::vector<absl::Span<std::byte>> all;
  for (const kernels::Buffer& buffer : device_) {
    all.push_back(buffer.span());
  }
  return all;
}

std::vector<absl::Span<std::byte>> ValueBuffers::Allocations() const {
  std::vector<absl::Span<std::byte>> all;
  for (const kernels::Buffer& buffer : host_) {
    if (buffer.bytes > 0) {
      all.push_back(buffer.span());
    }
  }
  return all;
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
absl::StatusOr<ValueBuffers> SliceExecutor::Assign(absl::Span<const Step> order,
                                                   absl::Span<const model::ValueId> inputs,
                                                   size_t rows_max) const {
  ValueBuffers buffers;
  std::vector<size_t> row_bytes;  // [slots]
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
    if (IsPlaced(value)) {
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
    buffers.slot_[value] = static_cast<uint32_t>(row_bytes.size());
    row_bytes.push_back(bytes);
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
      if (last_use[value] == i && !IsPlaced(value)) {
        free.emplace_back(RowBytes(value), buffers.slot_[value]);
      }
    }
  }
  LAMINA_RETURN_IF_ERROR(Allocate(row_bytes, buffers));
  return buffers;
}

absl::Status SliceExecutor::Allocate(absl::Span<const size_t> row_bytes,
                                     ValueBuffers& buffers) const {
  for (const size_t bytes : row_bytes) {
    LAMINA_ASSIGN_OR_RETURN(kernels::Buffer buffer, device_.Allocate(bytes * buffers.rows_max_));
    buffers.device_.push_back(std::move(buffer));
  }
  if (device_.is_host()) {
    buffers.host_ = buffers.device_;
    return absl::OkStatus();
  }
  buffers.host_.resize(row_bytes.size());
  for (model::ValueId value = 0; value < crosses_.size(); ++value) {
    const uint32_t slot = buffers.slot_[value];
    if (crosses_[value] && slot != model::kNone && buffers.host_[slot].data == nullptr) {
      LAMINA_ASSIGN_OR_RETURN(buffers.host_[slot],
                              device_.AllocateHost(buffers.device_[slot].bytes));
    }
  }
  const size_t ids_bytes = 2 * buffers.rows_max_ * sizeof(uint32_t);
  LAMINA_ASSIGN_OR_RETURN(buffers.device_ids_, device_.Allocate(ids_bytes));
  LAMINA_ASSIGN_OR_RETURN(buffers.host_ids_, device_.AllocateHost(ids_bytes));
  LAMINA_ASSIGN_OR_RETURN(buffers.device_part_,
                          device_.Allocate(PartRowBytesMax() * buffers.rows_max_));
  return absl::OkStatus();
}

absl::Status SliceExecutor::SetRows(const RowInputs& rows, ValueBuffers& buffers) const {
  const size_t count = rows.positions.size();
  LAMINA_CHECK(count <= buffers.rows_max() && rows.token_ids.size() == count);
  buffers.device_rows_ = rows;
  if (device_.is_host()) {
    return absl::OkStatus();
  }
  if (buffers.copying_ids_) {
    LAMINA_RETURN_IF_ERROR(Settle(buffers));
  }
  auto* const ids = reinterpret_cast<uint32_t*>(buffers.host_ids_.data);
  uint32_t* const positions = ids + buffers.rows_max_;
  std::copy(rows.token_ids.begin(), rows.token_ids.end(), ids);
  std::copy(rows.positions.begin(), rows.positions.end(), positions);
  const size_t computed = RowsComputed(count, buffers.recorded_rows_);
  std::fill(ids + count, ids + computed, 0);  // Of every table.
  std::fill(positions + count, positions + computed, 0);
  const size_t stride = buffers.rows_max_ * sizeof(uint32_t);
  device_.CopyRows({.to = buffers.device_ids_.data,
                    .to_stride = stride,
                    .from = ids,
                    .from_stride = stride,
                    .row_bytes = computed * sizeof(uint32_t),
                    .rows = 2});
  buffers.copying_ids_ = true;
  buffers.device_rows_ = DeviceRows(count, buffers);
  return absl::OkStatus();
}

absl::Status SliceExecutor::Settle(ValueBuffers& buffers) const {
  buffers.copying_ids_ = false;
  return device_.Synchronize();
}

absl::StatusOr<ValueBuffers> SliceExecutor::MakeBuffers(size_t rows_max) const {
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

absl::StatusOr<ValueBuffers> SliceExecutor::MakeTailBuffers() const {
  std::vector<Step> order;
  for (const model::OpId op : absl::MakeConstSpan(split_.slices.back().ops).subspan(tail_begin_)) {
    order.push_back({.op = op});
  }
  return Assign(order, tail_inputs_, kTailRows);
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

kernels::MatrixView<BFloat16> SliceExecutor::HostHalves(model::ValueId value, size_t rows,
                                                        ValueBuffers& buffers) const {
  LAMINA_CHECK(crosses_[value] && rows <= buffers.rows_max());
  return kernels::Packed(reinterpret_cast<BFloat16*>(buffers.host(value)), rows,
                         graph_.values[value].width);
}

kernels::MatrixView<BFloat16> SliceExecutor::QkvRows(uint32_t slice, size_t rows,
                                                     ValueBuffers& buffers) const {
  return HostHalves(graph_.ops[split_.slices[slice].attention].inputs[0], rows, buffers);
}

kernels::MatrixView<BFloat16> SliceExecutor::AttentionRows(uint32_t slice, size_t rows,
                                                           ValueBuffers& buffers) const {
  return HostHalves(graph_.ops[split_.slices[slice].attention].output, rows, buffers);
}

kernels::MatrixView<BFloat16> SliceExecutor::DeviceQkvRows(uint32_t slice, size_t rows,
                                                           ValueBuffers& buffers) const {
  return Halves(graph_.ops[split_.slices[slice].attention].inputs[0], rows, buffers);
}

kernels::MatrixView<BFloat16> SliceExecutor::DeviceAttentionRows(uint32_t slice, size_t rows,
                                                                 ValueBuffers& buffers) const {
  return Halves(graph_.ops[split_.slices[slice].attention].output, rows, buffers);
}

void SliceExecutor::CopyRows(model::ValueId value, size_t first, size_t count, bool to_host,
                             ValueBuffers& buffers) const {
  const size_t row_bytes = RowBytes(value);
  std::byte* const device = buffers.data(value) + first * row_bytes;
  std::byte* const host = buffers.host(value) + first * row_bytes;
  device_.Copy(to_host ? host : device, to_host ? device : host, count * row_bytes);
}

absl::Status SliceExecutor::QkvToHost(uint32_t slice, size_t rows, size_t whole_rows,
                                      ValueBuffers& buffers) const {
  const model::ValueId value = graph_.ops[split_.slices[slice].attention].inputs[0];
  CopyRows(value, 0, whole_rows, /*to_host=*/true, buffers);
  const size_t stride = RowBytes(value);
  const size_t q_bytes = attention(slice).descriptor.q_width() * sizeof(BFloat16);
  const size_t first = whole_rows * stride + q_bytes;
  device_.CopyRows({.to = buffers.host(value) + first,
                    .to_stride = stride,
                    .from = buffers.data(value) + first,
                    .from_stride = stride,
                    .row_bytes = stride - q_bytes,
                    .rows = rows - whole_rows});
  return Settle(buffers);
}

void SliceExecutor::AttentionToDevice(uint32_t slice, size_t first, size_t count,
                                      ValueBuffers& buffers) const {
  CopyRows(graph_.ops[split_.slices[slice].attention].output, first, count, /*to_host=*/false,
           buffers);
}

void SliceExecutor::CopyContext(uint32_t slice, size_t rows, size_t first_output, bool to_host,
                                ValueBuffers& buffers) const {
  for (const model::ValueId value : split_.slices[slice].context) {
    CopyRows(value, 0, rows, to_host, buffers);
  }
  CopyRows(graph_.ops[split_.slices[slice].attention].output, first_output, rows - first_output,
           to_host, buffers);
}

absl::Status SliceExecutor::ContextToHost(uint32_t slice, size_t rows, size_t first_output,
                                          ValueBuffers& buffers) const {
  CopyContext(slice, rows, first_output, /*to_host=*/true, buffers);
  return Settle(buffers);
}

void SliceExecutor::ContextToDevice(uint32_t slice, size_t rows, size_t first_output,
                                    ValueBuffers& buffers) const {
  CopyContext(slice, rows, first_output, /*to_host=*/false, buffers);
}

absl::Span<std::byte> SliceExecutor::ContextRows(uint32_t slice, size_t index, size_t rows,
                                                 ValueBuffers& buffers) const {
  LAMINA_CHECK(rows <= buffers.rows_max());
  const model::ValueId value = split_.slices[slice].context[index];
  return {buffers.host(value), rows * RowBytes(value)};
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

absl::Status SliceExecutor::PartToHost(uint32_t slice, size_t reduce, size_t rows,
                                       ValueBuffers& buffers) const {
  const model::ValueId part = OpAt(slice, reduce).inputs[0];
  device_.Copy(buffers.placed_[part], buffers.data(part), rows * RowBytes(part));
  return Settle(buffers);
}

kernels::MatrixView<const float> SliceExecutor::Logits(size_t rows, ValueBuffers& tail) const {
  LAMINA_CHECK(rows <= tail.rows_max());
  return kernels::Packed(reinterpret_cast<const float*>(tail.host(graph_.logits)), rows,
                         head_width());
}

kernels::MatrixView<const float> SliceExecutor::DeviceLogits(size_t rows,
                                                             ValueBuffers& tail) const {
  return Floats(graph_.logits, rows, tail);
}

absl::Status SliceExecutor::LogitsToHost(absl::Span<const uint32_t> rows,
                                         ValueBuffers& tail) const {
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) {
      ++end;
    }
    CopyRows(graph_.logits, rows[i], end - i, /*to_host=*/true, tail);
  }
  return Settle(tail);
}

}  // namespace lamina::compute_node
