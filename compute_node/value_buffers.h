// SPDX-License-Identifier: Apache-2.0
//
// ValueBuffers: the memory of one batch of rows: its values, in the slots that AssignSlots() gave
// them, the token ids and positions of its rows, and what has been captured for this memory.
//
// Values are in the device's memory (kernels/compute_device.h). Those that others see (q, k, v,
// attention outputs, contexts, logits) have a copy in the host's, which is the same memory on the
// processor. ...ToHost() and ...ToDevice() bring one up to the other; the rest of the time they
// differ. Copies run in order with what the device does; Settle() waits for them.
//
// Values that are there for a tile of rows alone (SlotRows::kTile) have memory for no more. What
// makes and reads them runs in InTiles(), within which a value's rows begin with the tile's first.
//
// Threading:  one thread.
// Ownership:  the program and the device outlive the buffers.
// Allocation: when they are made.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "compute_node/captured_slices.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_slots.h"
#include "kernels/compute_device.h"
#include "kernels/dense.h"
#include "kernels/kv_device.h"
#include "kernels/matrix_view.h"

namespace lamina::compute_node {

// What rows are, apart from their values.
struct RowInputs {
  absl::Span<const uint32_t> token_ids;  // [rows]
  absl::Span<const uint32_t> positions;  // [rows]
  // [rows] slots that k and v go to where a value is stored as it is made (StoreInto()), or
  // kernels::kNoSlot; empty: no row has one.
  absl::Span<const uint32_t> slots;
};

// Where k and v of a value's rows go besides, which are its last columns.
struct ValueStore {
  model::ValueId value = model::kNone;
  uint32_t kv_heads = 0;
  kernels::KvPlanes planes;
};

class ValueBuffers {
 public:
  // Memory for up to `rows_max` rows, in slots of tiles for `tile_rows` of them.
  // Errors: those of the device. Requires: tile_rows > 0.
  static absl::StatusOr<ValueBuffers> Make(const SliceProgram& program, const ValueSlots& slots,
                                           size_t rows_max, kernels::ComputeDevice& device,
                                           size_t tile_rows = SIZE_MAX);

  ValueBuffers() = default;
  ValueBuffers(ValueBuffers&&) = default;
  ValueBuffers& operator=(ValueBuffers&&) = default;
  ValueBuffers(const ValueBuffers&) = delete;  // It would share the memory.
  ValueBuffers& operator=(const ValueBuffers&) = delete;
  ~ValueBuffers() = default;

  size_t rows_max() const { return rows_max_; }
  // Bytes of all allocations on the device.
  uint64_t bytes() const;
  // Every allocation of the device, and of the host: these for registration with a transport.
  std::vector<absl::Span<std::byte>> DeviceAllocations() const;
  std::vector<absl::Span<std::byte>> Allocations() const;

  // From now on rows of these values go to slots too, in the calls that make them. What runs before
  // the next SetRows() stores none. Before anything is captured. Requires: no memory of the host.
  void StoreInto(absl::Span<const ValueStore> stores);
  // Null: the value goes nowhere else. Valid until the next call.
  const kernels::KvRowStore* StoreOf(model::ValueId value);

  // Says what the rows are from now on, for Rows(); the spans stay valid as long.
  // Errors: those of the device. Requires: at most rows_max() rows.
  absl::Status SetRows(const RowInputs& rows);
  // Only how many: for ops that read no ids nor positions, or what lies there.
  void SetRowCount(size_t count);
  // Tells that the device has taken what SetRows() copies: the next call need not wait for it.
  void NoteRun() { copying_ids_ = false; }
  // The ids and positions as ops read them, where the device has them; within InTiles() a tile's.
  const RowInputs& rows() const { return device_rows_; }

  // Calls `run` for the rows tile by tile; once where all are one tile.
  void InTiles(absl::FunctionRef<void()> run);

  // A value's rows on the device, within InTiles() from the tile's first on.
  std::byte* data(model::ValueId value);
  // The rows as matrices. Requires: the value is of that type, and has room for so many rows.
  kernels::MatrixView<float> Floats(model::ValueId value, size_t rows);
  kernels::MatrixView<BFloat16> Halves(model::ValueId value, size_t rows);
  // Takes values of any type.
  kernels::ActivationView Activations(model::ValueId value, size_t rows);

  // The host's copy of a value. Requires: it has one (SliceProgram::Crosses()).
  std::byte* host(model::ValueId value) { return host_[slot_[value]].data; }
  kernels::MatrixView<BFloat16> HostHalves(model::ValueId value, size_t rows);

  // Copies rows [first, first + count) of a value. On the processor nothing is to do.
  void ToHost(model::ValueId value, size_t first, size_t count);
  void ToDevice(model::ValueId value, size_t first, size_t count);
  // Copies what lies from byte `from` on in these rows.
  void ColumnsToHost(model::ValueId value, size_t from, size_t first, size_t count);
  // Waits for everything that the device was given. Errors: the device's.
  absl::Status Settle();

  // Copies rows `rows`, ascending, of a value to the front of the same value of `to`, which may be
  // these buffers. Rows that follow each other go in one copy.
  void Gather(model::ValueId value, absl::Span<const uint32_t> rows, ValueBuffers& to);

  // Where a part for the other shards goes on the host; before what makes it runs.
  void Place(model::ValueId value, std::byte* at) { placed_[value] = at; }
  std::byte* placed(model::ValueId value) const { return placed_[value]; }
  // Memory of the device for another shard's part; none on the processor.
  std::byte* part_scratch() { return device_part_.data; }

  CapturedSlices& captured() { return captured_; }

 private:
  absl::Status Allocate(const ValueSlots& slots);
  // How many rows of a value there is memory for.
  size_t RowsOf(model::ValueId value) const;

  const SliceProgram* program_ = nullptr;
  kernels::ComputeDevice* device_of_ = nullptr;
  size_t rows_max_ = 0;
  size_t tile_rows_ = 0;
  size_t first_row_ = 0;                 // The tile's.
  std::vector<uint32_t> slot_;           // [values]; kNone for values that do not live here.
  std::vector<SlotRows> slot_rows_;      // [slots]
  std::vector<kernels::Buffer> device_;  // [slots]
  std::vector<kernels::Buffer> host_;    // [slots]: the same, a copy, or none.
  std::vector<std::byte*> placed_;       // [values]: where the caller wants them, of the host.
  RowInputs device_rows_;                // As the caller gave them, on the device.
  // [3][rows_max]: token ids, then positions, then slots; none where the device is the host.
  kernels::Buffer device_ids_;
  kernels::Buffer host_ids_;
  bool copying_ids_ = false;  // The device may still copy from host_ids_.
  std::vector<ValueStore> stores_;
  kernels::KvRowStore store_;    // The last one that was asked for.
  kernels::Buffer device_part_;  // Holds another shard's part; none where the device is the host.
  CapturedSlices captured_;      // Last: it names the others' memory.
};

}  // namespace lamina::compute_node
