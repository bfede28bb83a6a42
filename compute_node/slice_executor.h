// SPDX-License-Identifier: Apache-2.0
//
// SliceExecutor: runs the slices of a split graph on one device. It knows ops and buffers; nothing
// of requests, lanes' plans or the network.
//
// Parts: slice_program.h what slices are made of; value_buffers.h the memory of a batch, by
// liveness (slice_slots.h); op_runner.h an op on the device; captured_slices.h what one call does
// again; lm_head.h the end of the last slice; part_sums.h reductions over shards; weight_source.h
// whether a slice's weights are here.
//
// Rows that others see (q, k, v, attention outputs, contexts) are on the device and, once
// ...ToHost() has brought them, on the host; on the processor both are one. What returns rows
// without "Device" in its name returns the host's.
//
// On the processor ops run for a tile of rows after the other, so that what lives between ops of a
// slice takes memory of a tile (slice_slots.h). A row's bits are its own, whatever the tile.
//
// Threading: one thread.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "compute_node/lm_head.h"
#include "compute_node/op_runner.h"
#include "compute_node/part_sums.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_buffers.h"
#include "compute_node/weight_source.h"
#include "kernels/compute_device.h"
#include "kernels/matrix_view.h"
#include "model/graph.h"

namespace lamina::compute_node {

class SliceExecutor {
 public:
  // Each tile reads a slice's weights: so many rows that their products take far longer. Experts
  // see some of a tile's rows each, so that tiles of a model that has them are as much longer.
  static constexpr size_t kTileRows = 512;

  // References must outlive the executor; only slices whose weights are here may run, which
  // weight_source() is asked. `head_columns`: as LmHead says. `tile_rows`: at most, of a tile,
  // or that reach each expert where all get alike.
  // Errors: those of SliceProgram::Create(). Requires: tile_rows > 0.
  static absl::StatusOr<std::unique_ptr<SliceExecutor>> Create(const model::Graph& graph,
                                                               WeightSource& weights,
                                                               kernels::ComputeDevice& device,
                                                               size_t head_columns = 0,
                                                               size_t tile_rows = kTileRows);

  // Called after every op: the thread beats, and a transport that moves nothing by itself gets on
  // as long as slices do.
  void SetBetweenOps(std::function<void()> call) { runner_.SetBetweenOps(std::move(call)); }

  kernels::ComputeDevice& device() const { return device_; }
  WeightSource& weight_source() const { return weight_source_; }
  const SliceProgram& program() const { return program_; }
  const LmHead& head() const { return head_; }
  const PartSums& sums() const { return sums_; }
  uint32_t slice_count() const { return program_.slice_count(); }

  // How many rows an op sees at once where there are up to `rows_max`.
  size_t RowsAtOnce(size_t rows_max) const { return std::min(rows_max, tile_rows_); }

  // Makes primitives for up to `rows_max` rows, for the weights that are there.
  absl::Status Prepare(size_t rows_max);

  // For all slices up to the last one's body. Errors: those of the device.
  absl::StatusOr<ValueBuffers> MakeBuffers(size_t rows_max) const;

  // Captures what the slices whose weights are there do, for up to `rows_max` rows of these
  // buffers, as CapturedSlices says. Before the first SetRows(). Takes memory of the device.
  // Errors: those of the device. Nothing is captured then; everything runs op by op.
  absl::Status Capture(size_t rows_max, ValueBuffers& buffers);

  // This is what ValueBuffers::SetRows() says.
  absl::Status SetRows(const RowInputs& rows, ValueBuffers& buffers) const {
    return buffers.SetRows(rows);
  }

  // Runs the part of slice `slice` before its q, k, v are complete, or the part after. Whether
  // there was something to run that was captured.
  // Requires: slice < slice_count() - 1; before the send no reductions.
  bool RunBeforeSend(uint32_t slice, ValueBuffers& buffers) {
    return RunRange(program_.BeforeSend(slice), buffers);
  }
  bool RunAfterSend(uint32_t slice, ValueBuffers& buffers) {
    return RunRange(program_.AfterSend(slice), buffers);
  }

  // Runs a slice in steps, where there may be reductions: ops [from, end), which end before
  // NextReduce() or behind the last op, OpsEnd(). The last slice's are its body.
  bool reduces() const { return program_.reduces(); }
  size_t OpsEnd(uint32_t slice) const { return program_.OpsEnd(slice); }
  size_t NextReduce(uint32_t slice, size_t from) const { return program_.NextReduce(slice, from); }
  bool Run(uint32_t slice, size_t from, size_t end, ValueBuffers& buffers) {
    return RunRange({.slice = slice, .from = from, .end = end}, buffers);
  }
  // Brings the own part of a sum to its place. Errors: those of the device.
  absl::Status PartToHost(uint32_t slice, size_t reduce, size_t rows, ValueBuffers& buffers) const {
    return sums_.ToHost(slice, reduce, rows, buffers);
  }
  // Moves these rows of the inputs of the last slice, ascending, to the front.
  void KeepRows(absl::Span<const uint32_t> kept, ValueBuffers& buffers) const;

  const model::AttentionOp& attention(uint32_t slice) const { return program_.attention(slice); }
  // Rows [q | k | v] for the attention after `slice`, and its output.
  kernels::MatrixView<BFloat16> QkvRows(uint32_t slice, size_t rows, ValueBuffers& buffers) const {
    return buffers.HostHalves(program_.Qkv(slice), rows);
  }
  kernels::MatrixView<BFloat16> AttentionRows(uint32_t slice, size_t rows,
                                              ValueBuffers& buffers) const {
    return buffers.HostHalves(program_.AttentionOutput(slice), rows);
  }
  kernels::MatrixView<BFloat16> DeviceQkvRows(uint32_t slice, size_t rows,
                                              ValueBuffers& buffers) const {
    return buffers.Halves(program_.Qkv(slice), rows);
  }
  kernels::MatrixView<BFloat16> DeviceAttentionRows(uint32_t slice, size_t rows,
                                                    ValueBuffers& buffers) const {
    return buffers.Halves(program_.AttentionOutput(slice), rows);
  }
  // Makes columns from `first_column` on, a multiple of 64, of q, k and v of the rows again, whose
  // values of KvInputOf() and positions are there.
  void RunKvOps(uint32_t slice, size_t first_column, ValueBuffers& buffers) {
    buffers.InTiles([&] { runner_.RunColumns(program_.KvOps(slice), first_column, buffers); });
  }
  // Copies all of the first `whole_rows` rows, and of the others k and v alone: queries of prompts
  // stay where they attend. Errors: those of the device.
  absl::Status QkvToHost(uint32_t slice, size_t rows, size_t whole_rows,
                         ValueBuffers& buffers) const;
  // Copies rows [first, first + count) of the outputs.
  void AttentionToDevice(uint32_t slice, size_t first, size_t count, ValueBuffers& buffers) const {
    buffers.ToDevice(program_.AttentionOutput(slice), first, count);
  }

  // The values that must be carried across the attention after `slice`, besides its output: what
  // another executor of the same model needs to run slice + 1.
  size_t context_count(uint32_t slice) const { return program_.Context(slice).size(); }
  absl::Span<std::byte> ContextRows(uint32_t slice, size_t index, size_t rows,
                                    ValueBuffers& buffers) const;
  // All of them, and the attention's output from row `first_output` on. Errors: those of the
  // device.
  absl::Status ContextToHost(uint32_t slice, size_t rows, size_t first_output,
                             ValueBuffers& buffers) const;
  void ContextToDevice(uint32_t slice, size_t rows, size_t first_output,
                       ValueBuffers& buffers) const;

 private:
  SliceExecutor(SliceProgram program, WeightSource& weights, kernels::ComputeDevice& device,
                size_t head_columns, size_t tile_rows);
  bool RunRange(const OpRange& range, ValueBuffers& buffers);

  const SliceProgram program_;
  WeightSource& weight_source_;
  kernels::ComputeDevice& device_;
  const size_t tile_rows_;
  OpRunner runner_;
  const LmHead head_;
  const PartSums sums_;
};

// Bytes of the host that the executor's ops take besides values, for up to `rows_max` rows: of
// dense layers, and of experts whose weights are there. After SliceExecutor::Prepare() for as many.
uint64_t ScratchBytes(const SliceExecutor& executor, size_t rows_max);

}  // namespace lamina::compute_node
