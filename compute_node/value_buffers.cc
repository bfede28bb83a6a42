// SPDX-License-Identifier: Apache-2.0
#include "compute_node/value_buffers.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// Token ids, positions, slots.
constexpr size_t kIdTables = 3;

// Rows that products take together at best.
constexpr size_t kTileStep = 16;

// The first `count` rows of the tables in the device's memory, where it has any.
RowInputs DeviceRows(const kernels::Buffer& tables, size_t rows_max, size_t count) {
  const auto* const ids = reinterpret_cast<const uint32_t*>(tables.data);
  if (ids == nullptr) {
    return {.token_ids = {ids, count}, .positions = {ids, count}};
  }
  return {.token_ids = {ids, count},
          .positions = {ids + rows_max, count},
          .slots = {ids + 2 * rows_max, count}};
}

}  // namespace

absl::StatusOr<ValueBuffers> ValueBuffers::Make(const SliceProgram& program,
                                                const ValueSlots& slots, size_t rows_max,
                                                kernels::ComputeDevice& device, size_t tile_rows) {
  LAMINA_CHECK(tile_rows > 0);
  ValueBuffers buffers;
  buffers.program_ = &program;
  buffers.device_of_ = &device;
  buffers.rows_max_ = rows_max;
  buffers.tile_rows_ = std::min(tile_rows, rows_max);
  buffers.slot_ = slots.slot;
  buffers.slot_rows_ = slots.rows;
  buffers.placed_.assign(slots.slot.size(), nullptr);
  LAMINA_RETURN_IF_ERROR(buffers.Allocate(slots));
  return buffers;
}

absl::Status ValueBuffers::Allocate(const ValueSlots& slots) {
  kernels::ComputeDevice& device = *device_of_;
  for (size_t slot = 0; slot < slots.row_bytes.size(); ++slot) {
    const size_t rows = slot_rows_[slot] == SlotRows::kTile ? tile_rows_ : rows_max_;
    LAMINA_ASSIGN_OR_RETURN(kernels::Buffer buffer, device.Allocate(slots.row_bytes[slot] * rows));
    device_.push_back(std::move(buffer));
  }
  if (device.is_host()) {
    host_ = device_;
    return absl::OkStatus();
  }
  host_.resize(slots.row_bytes.size());
  for (model::ValueId value = 0; value < slot_.size(); ++value) {
    const uint32_t slot = slot_[value];
    if (program_->Crosses(value) && slot != model::kNone && host_[slot].data == nullptr) {
      LAMINA_ASSIGN_OR_RETURN(host_[slot], device.AllocateHost(device_[slot].bytes));
    }
  }
  const size_t ids_bytes = kIdTables * rows_max_ * sizeof(uint32_t);
  LAMINA_ASSIGN_OR_RETURN(device_ids_, device.Allocate(ids_bytes));
  LAMINA_ASSIGN_OR_RETURN(host_ids_, device.AllocateHost(ids_bytes));
  LAMINA_ASSIGN_OR_RETURN(device_part_, device.Allocate(program_->PartRowBytesMax() * rows_max_));
  return absl::OkStatus();
}

std::vector<absl::Span<std::byte>> ValueBuffers::DeviceAllocations() const {
  std::vector<absl::Span<std::byte>> all;
  for (const kernels::Buffer& buffer : device_) {
    all.push_back(buffer.span());
  }
  return all;
}

uint64_t ValueBuffers::bytes() const {
  uint64_t bytes = device_ids_.bytes + device_part_.bytes;
  for (const kernels::Buffer& buffer : device_) {
    bytes += buffer.bytes;
  }
  return bytes;
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

void ValueBuffers::SetRowCount(size_t count) {
  device_rows_ = DeviceRows(device_ids_, rows_max_, count);
}

size_t ValueBuffers::RowsOf(model::ValueId value) const {
  const uint32_t slot = slot_[value];
  return slot != model::kNone && slot_rows_[slot] == SlotRows::kTile ? tile_rows_ : rows_max_;
}

// Tiles are about as long as each other: each reads the weights.
void ValueBuffers::InTiles(absl::FunctionRef<void()> run) {
  const RowInputs all = device_rows_;
  const size_t count = all.positions.size();
  if (count <= tile_rows_) {
    run();
    return;
  }
  const size_t tiles = (count + tile_rows_ - 1) / tile_rows_;
  const size_t share = (count + tiles - 1) / tiles;
  const size_t each = std::min(tile_rows_, (share + kTileStep - 1) / kTileStep * kTileStep);
  for (size_t first = 0; first < count; first += each) {
    first_row_ = first;
    device_rows_ = {.token_ids = all.token_ids.subspan(first, each),
                    .positions = all.positions.subspan(first, each),
                    .slots = all.slots.empty() ? all.slots : all.slots.subspan(first, each)};
    run();
  }
  first_row_ = 0;
  device_rows_ = all;
}

std::byte* ValueBuffers::data(model::ValueId value) {
  const uint32_t slot = slot_[value];
  std::byte* const begin = slot != model::kNone ? device_[slot].data : placed_[value];
  const bool of_tile = slot != model::kNone && slot_rows_[slot] == SlotRows::kTile;
  return first_row_ == 0 || of_tile ? begin : begin + first_row_ * program_->RowBytes(value);
}

void ValueBuffers::StoreInto(absl::Span<const ValueStore> stores) {
  LAMINA_CHECK(!device_of_->is_host() && captured_.count() == 0 && !copying_ids_);
  stores_.assign(stores.begin(), stores.end());
  auto* const ids = reinterpret_cast<uint32_t*>(host_ids_.data);
  std::fill(ids + 2 * rows_max_, ids + kIdTables * rows_max_, kernels::kNoSlot);
  device_of_->Copy(device_ids_.data + 2 * rows_max_ * sizeof(uint32_t), ids + 2 * rows_max_,
                   rows_max_ * sizeof(uint32_t));
  copying_ids_ = true;
}

const kernels::KvRowStore* ValueBuffers::StoreOf(model::ValueId value) {
  const auto found = std::find_if(stores_.begin(), stores_.end(),
                                  [&](const ValueStore& store) { return store.value == value; });
  if (found == stores_.end()) {
    return nullptr;
  }
  store_ = {.kv_heads = found->kv_heads,
            .k = found->planes.k,
            .v = found->planes.v,
            .head_stride = found->planes.head_stride,
            .slots = device_rows_.slots};
  return &store_;
}

absl::Status ValueBuffers::SetRows(const RowInputs& rows) {
  const size_t count = rows.positions.size();
  LAMINA_CHECK(count <= rows_max_ && rows.token_ids.size() == count);
  LAMINA_CHECK(rows.slots.empty() || rows.slots.size() == count);
  device_rows_ = rows;
  if (device_of_->is_host()) {
    return absl::OkStatus();
  }
  if (copying_ids_) {
    LAMINA_RETURN_IF_ERROR(Settle());
  }
  auto* const ids = reinterpret_cast<uint32_t*>(host_ids_.data);
  uint32_t* const positions = ids + rows_max_;
  std::copy(rows.token_ids.begin(), rows.token_ids.end(), ids);
  std::copy(rows.positions.begin(), rows.positions.end(), positions);
  const size_t computed = captured_.RowsComputed(count);
  std::fill(ids + count, ids + computed, 0);  // Every table has id 0.
  std::fill(positions + count, positions + computed, 0);
  uint32_t* const slots = positions + rows_max_;
  std::copy(rows.slots.begin(), rows.slots.end(), slots);
  std::fill(slots + rows.slots.size(), slots + computed, kernels::kNoSlot);
  const size_t stride = rows_max_ * sizeof(uint32_t);
  device_of_->CopyRows({.to = device_ids_.data,
                        .to_stride = stride,
                        .from = ids,
                        .from_stride = stride,
                        .row_bytes = computed * sizeof(uint32_t),
                        .rows = stores_.empty() ? kIdTables - 1 : kIdTables});
  copying_ids_ = true;
  device_rows_ = DeviceRows(device_ids_, rows_max_, count);
  return absl::OkStatus();
}

kernels::MatrixView<float> ValueBuffers::Floats(model::ValueId value, size_t rows) {
  LAMINA_CHECK(program_->TypeOf(value) == DType::kF32 && rows <= RowsOf(value));
  return kernels::Packed(reinterpret_cast<float*>(data(value)), rows, program_->Width(value));
}

kernels::MatrixView<BFloat16> ValueBuffers::Halves(model::ValueId value, size_t rows) {
  LAMINA_CHECK(program_->TypeOf(value) == DType::kBF16 && rows <= RowsOf(value));
  return kernels::Packed(reinterpret_cast<BFloat16*>(data(value)), rows, program_->Width(value));
}

kernels::ActivationView ValueBuffers::Activations(model::ValueId value, size_t rows) {
  LAMINA_CHECK(rows <= RowsOf(value));
  const size_t width = program_->Width(value);
  return {.data = data(value),
          .rows = rows,
          .cols = width,
          .stride = width,
          .dtype = program_->TypeOf(value)};
}

kernels::MatrixView<BFloat16> ValueBuffers::HostHalves(model::ValueId value, size_t rows) {
  LAMINA_CHECK(program_->Crosses(value) && rows <= rows_max_);
  return kernels::Packed(reinterpret_cast<BFloat16*>(host(value)), rows, program_->Width(value));
}

void ValueBuffers::ToHost(model::ValueId value, size_t first, size_t count) {
  const size_t row_bytes = program_->RowBytes(value);
  device_of_->Copy(host(value) + first * row_bytes, data(value) + first * row_bytes,
                   count * row_bytes);
}

void ValueBuffers::ToDevice(model::ValueId value, size_t first, size_t count) {
  const size_t row_bytes = program_->RowBytes(value);
  device_of_->Copy(data(value) + first * row_bytes, host(value) + first * row_bytes,
                   count * row_bytes);
}

void ValueBuffers::ColumnsToHost(model::ValueId value, size_t from, size_t first, size_t count) {
  const size_t stride = program_->RowBytes(value);
  const size_t begin = first * stride + from;
  device_of_->CopyRows({.to = host(value) + begin,
                        .to_stride = stride,
                        .from = data(value) + begin,
                        .from_stride = stride,
                        .row_bytes = stride - from,
                        .rows = count});
}

absl::Status ValueBuffers::Settle() {
  copying_ids_ = false;
  return device_of_->Synchronize();
}

void ValueBuffers::Gather(model::ValueId value, absl::Span<const uint32_t> rows, ValueBuffers& to) {
  const size_t row_bytes = program_->RowBytes(value);
  const std::byte* const source = data(value);
  std::byte* const target = to.data(value);
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    // A place may be read and written: then as many as do not overlap.
    const size_t apart = source == target ? rows[i] - i : rows.size();
    end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1 && (apart == 0 || end - i < apart)) {
      ++end;
    }
    if (source != target || apart > 0) {
      device_of_->Copy(target + i * row_bytes, source + rows[i] * row_bytes, (end - i) * row_bytes);
    }
  }
}

}  // namespace lamina::compute_node
