// SPDX-License-Identifier: Apache-2.0
//
// SliceExecutor: runs the ops of a split graph on one device. It knows ops and buffers; nothing of
// requests, lanes' plans or the network.
//
// A ValueBuffers holds the values of one batch of rows. Buffers are assigned once by liveness: a
// value's memory is reused after its last reader in execution order, so that a batch needs a
// handful of buffers, not one for each value. Values in the context of an attention stay until
// their last reader.
//
// They are in the device's memory (kernels/compute_device.h). What others see of them (q, k, v,
// attention outputs, contexts, parts, logits) has a copy in the host's, which is the same memory on
// the processor. ...ToHost() and ...ToDevice() bring one up to the other; the rest of the time they
// differ. What returns a view or a span without "Device" in its name returns the host's.
//
// The last slice (final norm, LM head) runs on few rows: those that are sampled or scored. Its
// inputs are gathered into TailBuffers. The LM head is much wider than any other layer, so it runs
// in chunks of the vocabulary, each about as long as a slice, between which other lanes can run.
//
// A shard's graph (model/shard.h) has reductions: a slice runs up to one, the caller exchanges
// parts with the other shards, sums, and goes on behind it. All are before q, k, v are complete;
// those of the last slice are its body, which runs on the rows that the rest of it needs,
// KeepRows().
//
// Where the device can (kernels/compute_device.h, Record()), what a slice does for few rows is
// recorded once for each buffers and some counts of rows, and is one call from then on. A run takes
// the next count that is recorded; rows behind its own are computed on whatever lies there, with
// token 0 at position 0, and nobody reads them: rows depend on themselves alone.
//
// Threading: one thread.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "compute_node/model_weights.h"
#include "compute_node/weight_source.h"
#include "kernels/compute_device.h"
#include "kernels/matrix_view.h"
#include "model/graph.h"
#include "model/splitter.h"

namespace lamina::compute_node {

// What rows are, apart from their values.
struct RowInputs {
  absl::Span<const uint32_t> token_ids;  // [rows]
  absl::Span<const uint32_t> positions;  // [rows]
};

// Memory for the values of up to `rows_max` rows.
class ValueBuffers {
 public:
  ValueBuffers() = default;
  ValueBuffers(ValueBuffers&&) = default;
  ValueBuffers& operator=(ValueBuffers&&) = default;
  ValueBuffers(const ValueBuffers&) = delete;  // It would share the memory.
  ValueBuffers& operator=(const ValueBuffers&) = delete;
  ~ValueBuffers() = default;

  // The device's.
  std::byte* data(model::ValueId value) {
    return slot_[value] != model::kNone ? device_[slot_[value]].data : placed_[value];
  }
  size_t rows_max() const { return rows_max_; }
  // Every allocation of the device, and of the host: these for registration with a transport.
  std::vector<absl::Span<std::byte>> DeviceAllocations() const;
  std::vector<absl::Span<std::byte>> Allocations() const;
  // Rows that runs are recorded for, ascending; empty: none are.
  absl::Span<const size_t> recorded_rows() const { return recorded_rows_; }
  size_t recordings() const;

 private:
  friend class SliceExecutor;
  std::byte* host(model::ValueId value) { return host_[slot_[value]].data; }

  size_t rows_max_ = 0;
  std::vector<uint32_t> slot_;           // [values]; kNone for values that do not live here.
  std::vector<kernels::Buffer> device_;  // [slots]
  std::vector<kernels::Buffer> host_;    // [slots]: the same, a copy, or none.
  std::vector<std::byte*>
      placed_;             // [values]: where the caller wants them, of the host; else null.
  RowInputs device_rows_;  // As the caller gave them, on the device.
  // [2][rows_max]: token ids, then positions; none where the device is the host.
  kernels::Buffer device_ids_;
  kernels::Buffer host_ids_;
  bool copying_ids_ = false;     // Perhaps still, from host_ids_.
  kernels::Buffer device_part_;  // Of another shard; the same.
  std::vector<size_t> recorded_rows_;
  // [runs of the executor][recorded_rows_]; null where the weights were not there.
  std::vector<std::unique_ptr<kernels::RecordedWork>> recorded_;
};

class SliceExecutor {
 public:
  // Rows that the last slice runs on at once: bounds the memory of the logits.
  static constexpr size_t kTailRows = 64;
  // Rows that runs are recorded for. Twice as many at first, where a slice takes as long as its
  // weights are read; then at most half as many again. All within the rows that a device's products
  // have one algorithm for (kernels/cuda/dense.h), so that a row keeps its bits.
  static constexpr std::array<size_t, 11> kRecordedRows = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};

  // References must outlive the executor; only slices whose weights are there may run, which
  // weight_source() is asked.
  // `head_columns`: of the LM head at once, a multiple of 64; 0 takes as many as have about the
  // weights of a slice, or all where a launch does not keep the caller.
  // Errors: kInvalidArgument  the graph does not split.
  //         kUnimplemented    a reduction in what runs beside the attention.
  static absl::StatusOr<std::unique_ptr<SliceExecutor>> Create(const model::Graph& graph,
                                                               WeightSource& weights,
                                                               kernels::ComputeDevice& device,
                                                               size_t head_columns = 0);

  // Called after every op: the thread beats, and a transport that moves nothing by itself gets on
  // beside long slices.
  void SetBetweenOps(std::function<void()> call) { between_ops_ = std::move(call); }

  kernels::ComputeDevice& device() const { return device_; }
  WeightSource& weight_source() const { return weight_source_; }

  // Makes primitives for up to `rows_max` rows, for the weights that are there.
  absl::Status Prepare(size_t rows_max);

  uint32_t slice_count() const { return static_cast<uint32_t>(split_.slices.size()); }
  const model::SplitModel& split() const { return split_; }
  // The ops of slices [first, end): what they need of the weights. Without `head` not those of the
  // last slice behind its last reduction.
  std::vector<model::OpId> OpsOf(uint32_t first, uint32_t end, bool head = true) const;

  // For slices 0 .. slice_count() - 2, and for the last one. Errors: those of the device.
  absl::StatusOr<ValueBuffers> MakeBuffers(size_t rows_max) const;
  absl::StatusOr<ValueBuffers> MakeTailBuffers() const;

  // Records what the slices whose weights are there do, for up to `rows_max` rows of these buffers
  // and at most the last of kRecordedRows; runs each once, on one row of token 0. Nothing if the
  // device records nothing. Before the first SetRows(). Takes memory of the device.
  // Errors: those of the device. Nothing is recorded then; everything runs op by op.
  absl::Status Record(size_t rows_max, ValueBuffers& buffers);

  // Says what the rows are from now on; the spans stay valid as long. Errors: those of the device.
  absl::Status SetRows(const RowInputs& rows, ValueBuffers& buffers) const;
  // Tells that slices of these rows have run to their end, which the caller knows: the next
  // SetRows() need not wait.
  void NoteRun(ValueBuffers& buffers) const { buffers.copying_ids_ = false; }

  // Runs the part of slice `slice` before its q, k, v are complete, or the part after. Whether
  // there was something to run that was recorded.
  // Requires: slice < slice_count() - 1; before the send no reductions.
  bool RunBeforeSend(uint32_t slice, ValueBuffers& buffers);
  bool RunAfterSend(uint32_t slice, ValueBuffers& buffers);

  // The same in steps, where there may be reductions: ops [from, end) of a slice, which end before
  // NextReduce() or behind the last op, OpsEnd(). Of the last slice these are its body.
  bool reduces() const { return tail_begin_ > 0; }
  size_t OpsEnd(uint32_t slice) const;
  // The first reduction from `from` on, or OpsEnd().
  size_t NextReduce(uint32_t slice, size_t from) const;
  bool Run(uint32_t slice, size_t from, size_t end, ValueBuffers& buffers);
  // Where the part goes that reduction `reduce` sums, [rows, width] f32; before what makes it runs.
  void PlacePart(uint32_t slice, size_t reduce, std::byte* at, ValueBuffers& buffers) const;
  // Brings it there. Errors: those of the device.
  absl::Status PartToHost(uint32_t slice, size_t reduce, size_t rows, ValueBuffers& buffers) const;
  // Sums the shards' parts, in their order. Shapes: parts  [shards][rows, width] f32.
  void Reduce(uint32_t slice, size_t reduce, absl::Span<const float* const> parts, size_t rows,
              ValueBuffers& buffers);
  size_t PartRowBytes(uint32_t slice, size_t reduce) const;
  size_t PartRowBytesMax() const;  // 0 without reductions.
  // Moves these rows of the inputs of the last slice, ascending, to the front.
  void KeepRows(absl::Span<const uint32_t> kept, ValueBuffers& buffers) const;

  // Gathers rows `chosen` (at most kTailRows) of the inputs of the last slice and runs it up to the
  // LM head.
  void BeginTail(ValueBuffers& buffers, absl::Span<const uint32_t> chosen, ValueBuffers& tail);
  // Runs the next chunk of the LM head on these `rows`, from column `first` (0 at first), and
  // returns the column after it, which is the vocabulary's size when all are done.
  size_t RunHead(size_t rows, size_t first, ValueBuffers& tail);
  size_t head_width() const { return graph_.values[graph_.logits].width; }  // Its columns.
  // [rows, vocabulary], when all chunks have run.
  kernels::MatrixView<const float> Logits(size_t rows, ValueBuffers& tail) const;
  kernels::MatrixView<const float> DeviceLogits(size_t rows, ValueBuffers& tail) const;
  // Of these rows, if any; waits for what runs on logits too. Errors: those of the device.
  absl::Status LogitsToHost(absl::Span<const uint32_t> rows, ValueBuffers& tail) const;

  // Rows [q | k | v] for the attention after `slice`, and its output.
  kernels::MatrixView<BFloat16> QkvRows(uint32_t slice, size_t rows, ValueBuffers& buffers) const;
  kernels::MatrixView<BFloat16> AttentionRows(uint32_t slice, size_t rows,
                                              ValueBuffers& buffers) const;
  kernels::MatrixView<BFloat16> DeviceQkvRows(uint32_t slice, size_t rows,
                                              ValueBuffers& buffers) const;
  kernels::MatrixView<BFloat16> DeviceAttentionRows(uint32_t slice, size_t rows,
                                                    ValueBuffers& buffers) const;
  // Of the first `whole_rows` rows everything, of the others k and v alone: queries of prompts stay
  // where they attend. Errors: those of the device.
  absl::Status QkvToHost(uint32_t slice, size_t rows, size_t whole_rows,
                         ValueBuffers& buffers) const;
  // Of outputs rows [first, first + count).
  void AttentionToDevice(uint32_t slice, size_t first, size_t count, ValueBuffers& buffers) const;
  const model::AttentionOp& attention(uint32_t slice) const;

  // The values that must be carried across the attention after `slice`, besides its output: what
  // another executor of the same model needs to run slice + 1.
  size_t context_count(uint32_t slice) const { return split_.slices[slice].context.size(); }
  absl::Span<std::byte> ContextRows(uint32_t slice, size_t index, size_t rows,
                                    ValueBuffers& buffers) const;
  // All of them, and the attention's output from row `first_output` on. Errors: those of the
  // device.
  absl::Status ContextToHost(uint32_t slice, size_t rows, size_t first_output,
                             ValueBuffers& buffers) const;
  void ContextToDevice(uint32_t slice, size_t rows, size_t first_output,
                       ValueBuffers& buffers) const;
  // Of the widest context.
  size_t ContextRowBytesMax() const;

 private:
  SliceExecutor(const model::Graph& graph, WeightSource& weights, kernels::ComputeDevice& device,
                model::SplitModel split, size_t head_columns);
  size_t HeadColumnsLikeASlice() const;
  void FindTail();
  const model::Op& OpAt(uint32_t slice, size_t op) const {
    return graph_.ops[split_.slices[slice].ops[op]];
  }

  // Ops [from, end) of a slice, which one call of Run() runs.
  struct OpRange {
    uint32_t slice = 0;
    size_t from = 0;
    size_t end = 0;
    friend bool operator==(const OpRange&, const OpRange&) = default;
  };
  void FindRanges();
  absl::Span<const model::OpId> OpsIn(const OpRange& range) const {
    return absl::MakeConstSpan(split_.slices[range.slice].ops)
        .subspan(range.from, range.end - range.from);
  }
  bool HasWeights(const OpRange& range) const;
  absl::Status RecordRanges(ValueBuffers& buffers);
  // Null: it was not recorded for so many rows.
  kernels::RecordedWork* Recorded(const OpRange& range, ValueBuffers& buffers) const;
  // Rows [0, count) of what lies on the device.
  RowInputs DeviceRows(size_t count, ValueBuffers& buffers) const;

  void RunOps(absl::Span<const model::OpId> ops, ValueBuffers& buffers);
  void RunOp(model::OpId id, ValueBuffers& buffers);
  void RunLinear(model::OpId id, size_t rows, ValueBuffers& buffers);
  void RunNorm(const model::Op& op, size_t rows, ValueBuffers& buffers);
  void RunAdd(const model::Op& op, size_t rows, ValueBuffers& buffers);
  void RunRope(model::OpId id, const RowInputs& rows, ValueBuffers& buffers);

  DType TypeOf(model::ValueId value) const;
  size_t RowBytes(model::ValueId value) const;
  kernels::MatrixView<float> Floats(model::ValueId value, size_t rows, ValueBuffers& buffers) const;
  kernels::MatrixView<BFloat16> Halves(model::ValueId value, size_t rows,
                                       ValueBuffers& buffers) const;
  kernels::ActivationView Activations(model::ValueId value, size_t rows,
                                      ValueBuffers& buffers) const;
  // Rows [first, first + count) of a value, to the host or from it.
  void CopyRows(model::ValueId value, size_t first, size_t count, bool to_host,
                ValueBuffers& buffers) const;
  // Rows `rows`, ascending, of `from` to the front of `to`, which may be `from`. Rows that follow
  // each other go in one copy.
  void GatherRows(absl::Span<const uint32_t> rows, size_t row_bytes, const std::byte* from,
                  std::byte* to) const;
  // Waits for all copies.
  absl::Status Settle(ValueBuffers& buffers) const;
  void CopyContext(uint32_t slice, size_t rows, size_t first_output, bool to_host,
                   ValueBuffers& buffers) const;
  kernels::MatrixView<BFloat16> HostHalves(model::ValueId value, size_t rows,
                                           ValueBuffers& buffers) const;
  // What happens to buffers, in order. An attention makes its output when q, k, v are sent, since
  // prompt chunks attend then and there, and reads its input until the slice has run to its end,
  // since the transport may.
  struct Step {
    model::OpId op = model::kNone;
    bool reads = true;
    bool makes = true;
  };
  absl::StatusOr<ValueBuffers> Assign(absl::Span<const Step> order,
                                      absl::Span<const model::ValueId> inputs,
                                      size_t rows_max) const;
  absl::Status Allocate(absl::Span<const size_t> row_bytes, ValueBuffers& buffers) const;
  // Whether the caller gives a value its place.
  bool IsPlaced(model::ValueId value) const { return device_.is_host() && is_part_[value]; }

  const model::Graph& graph_;
  WeightSource& weight_source_;
  const ModelWeights& weights_;  // The source's.
  kernels::ComputeDevice& device_;
  kernels::Dense& dense_;  // The device's.
  const model::SplitModel split_;
  // Of the last slice: where it goes on behind its last reduction; what crosses the last attention,
  // and what the ops from there on read.
  size_t tail_begin_ = 0;
  std::vector<OpRange> ranges_;  // That can be recorded, by slice.
  std::vector<model::ValueId> last_inputs_;
  std::vector<model::ValueId> tail_inputs_;
  std::vector<bool> is_part_;          // [values]: summed by a reduction.
  std::vector<bool> crosses_;          // [values]: the host sees them.
  size_t head_columns_;                // Of the LM head at once.
  std::function<void()> between_ops_;  // May be null.
};

}  // namespace lamina::compute_node
