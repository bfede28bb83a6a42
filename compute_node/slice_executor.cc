// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_executor.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/slice_slots.h"
#include "kernels/experts.h"

namespace lamina::compute_node {
namespace {

bool HasWeights(const SliceProgram& program, const ModelWeights& weights, const OpRange& range) {
  const auto ops = program.OpsIn(range);
  return std::all_of(ops.begin(), ops.end(), [&](const model::OpId op) {
    const model::OpBody& body = program.graph().ops[op].body;
    return std::holds_alternative<model::LinearOp>(body)    ? weights.linear(op) != nullptr
           : std::holds_alternative<model::ExpertsOp>(body) ? !weights.experts(op).empty()
                                                            : true;
  });
}

// Rows of a tile of which so many reach each expert, where all get alike.
size_t RowsOfTile(const model::Graph& graph, size_t rows_each) {
  size_t experts_each = 1;  // For each that a row chooses.
  for (const model::Op& op : graph.ops) {
    if (const auto* const experts = std::get_if<model::ExpertsOp>(&op.body)) {
      const size_t chosen = experts->chosen;
      experts_each = std::max(experts_each, (experts->experts.size() + chosen - 1) / chosen);
    }
  }
  return rows_each * experts_each;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SliceExecutor>> SliceExecutor::Create(const model::Graph& graph,
                                                                     WeightSource& weights,
                                                                     kernels::ComputeDevice& device,
                                                                     size_t head_columns,
                                                                     size_t tile_rows) {
  LAMINA_CHECK(tile_rows > 0);
  LAMINA_ASSIGN_OR_RETURN(SliceProgram program,
                          SliceProgram::Create(graph, device.dense().compute_type()));
  return std::unique_ptr<SliceExecutor>(
      new SliceExecutor(std::move(program), weights, device, head_columns, tile_rows));
}

SliceExecutor::SliceExecutor(SliceProgram program, WeightSource& weights,
                             kernels::ComputeDevice& device, size_t head_columns, size_t tile_rows)
    : program_(std::move(program)),
      weight_source_(weights),
      device_(device),
      tile_rows_(device.is_host() ? RowsOfTile(program_.graph(), tile_rows) : SIZE_MAX),
      runner_(program_, weights.weights(), device.dense()),
      head_(program_, weights.weights(), runner_, device, head_columns),
      sums_(program_, device) {}

absl::Status SliceExecutor::Prepare(size_t rows_max) {
  const size_t body_rows = RowsAtOnce(rows_max);
  const size_t tail_rows = std::min(rows_max, LmHead::kRows);
  const auto prepare = [this](const OpRange& range, size_t rows) -> absl::Status {
    for (const model::OpId op : program_.OpsIn(range)) {
      if (const kernels::PackedLinear* linear = weight_source_.weights().linear(op)) {
        LAMINA_RETURN_IF_ERROR(device_.dense().Prepare(*linear, rows));
      }
      for (const kernels::Expert& expert : weight_source_.weights().experts(op)) {
        const size_t together = kernels::ExpertLayers::RowsTogetherMax(
            rows, std::get<model::ExpertsOp>(program_.graph().ops[op].body).chosen);
        LAMINA_RETURN_IF_ERROR(device_.dense().Prepare(*expert.gate_up, together));
        LAMINA_RETURN_IF_ERROR(device_.dense().Prepare(*expert.down, together));
      }
    }
    return absl::OkStatus();
  };
  for (uint32_t slice = 0; slice < slice_count(); ++slice) {
    LAMINA_RETURN_IF_ERROR(prepare(program_.BeforeSend(slice), body_rows));
    const bool last = slice + 1 == slice_count();
    LAMINA_RETURN_IF_ERROR(prepare(program_.AfterSend(slice), last ? tail_rows : body_rows));
  }
  return absl::OkStatus();
}

absl::StatusOr<ValueBuffers> SliceExecutor::MakeBuffers(size_t rows_max) const {
  const size_t tile_rows = RowsAtOnce(rows_max);
  // Where all rows are one tile, values of tiles share memory with the others.
  const std::vector<SlotRows> rows =
      tile_rows < rows_max ? RowsOfValues(program_) : std::vector<SlotRows>();
  // On the processor parts are made where they are put from.
  return ValueBuffers::Make(program_,
                            BodySlots(program_, /*parts_elsewhere=*/device_.is_host(), rows),
                            rows_max, device_, std::max<size_t>(1, tile_rows));
}

absl::Status SliceExecutor::Capture(size_t rows_max, ValueBuffers& buffers) {
  const absl::Status status = buffers.captured().Capture(
      {.ranges = program_.Ranges(),
       .rows_max = rows_max,
       .rows_limit = buffers.rows_max(),
       .has_weights =
           [this](const OpRange& range) {
             return HasWeights(program_, weight_source_.weights(), range);
           },
       .run =
           [this, &buffers](const OpRange& range, size_t rows) {
             buffers.SetRowCount(rows);
             runner_.Run(program_.OpsIn(range), buffers);
           }},
      device_);
  buffers.SetRowCount(0);
  return status;
}

bool SliceExecutor::RunRange(const OpRange& range, ValueBuffers& buffers) {
  kernels::CapturedGraph* const captured =
      buffers.captured().Find(range, buffers.rows().positions.size());
  if (captured == nullptr) {
    buffers.InTiles([&] { runner_.Run(program_.OpsIn(range), buffers); });
    return false;
  }
  captured->Replay();
  runner_.BetweenOps();
  return true;
}

void SliceExecutor::KeepRows(absl::Span<const uint32_t> kept, ValueBuffers& buffers) const {
  for (const model::ValueId value : program_.last_inputs()) {
    buffers.Gather(value, kept, buffers);
  }
}

absl::Status SliceExecutor::QkvToHost(uint32_t slice, size_t rows, size_t whole_rows,
                                      ValueBuffers& buffers) const {
  const model::ValueId qkv = program_.Qkv(slice);
  const size_t q_bytes = attention(slice).descriptor.q_width() * sizeof(BFloat16);
  buffers.ToHost(qkv, 0, whole_rows);
  buffers.ColumnsToHost(qkv, q_bytes, whole_rows, rows - whole_rows);
  return buffers.Settle();
}

absl::Span<std::byte> SliceExecutor::ContextRows(uint32_t slice, size_t index, size_t rows,
                                                 ValueBuffers& buffers) const {
  LAMINA_CHECK(rows <= buffers.rows_max());
  const model::ValueId value = program_.Context(slice)[index];
  return {buffers.host(value), rows * program_.RowBytes(value)};
}

absl::Status SliceExecutor::ContextToHost(uint32_t slice, size_t rows, size_t first_output,
                                          ValueBuffers& buffers) const {
  for (const model::ValueId value : program_.Context(slice)) {
    buffers.ToHost(value, 0, rows);
  }
  buffers.ToHost(program_.AttentionOutput(slice), first_output, rows - first_output);
  return buffers.Settle();
}

void SliceExecutor::ContextToDevice(uint32_t slice, size_t rows, size_t first_output,
                                    ValueBuffers& buffers) const {
  for (const model::ValueId value : program_.Context(slice)) {
    buffers.ToDevice(value, 0, rows);
  }
  buffers.ToDevice(program_.AttentionOutput(slice), first_output, rows - first_output);
}

// Layers take turns with one memory for their experts, and these are alike.
uint64_t ScratchBytes(const SliceExecutor& executor, size_t rows_max) {
  const kernels::Dense& dense = executor.device().dense();
  const model::Graph& graph = executor.program().graph();
  // The tail has few rows, and is no tile.
  const size_t rows = std::max(executor.RowsAtOnce(rows_max), std::min(rows_max, LmHead::kRows));
  uint64_t of_experts = 0;
  for (model::OpId op = 0; op < graph.ops.size(); ++op) {
    const auto weights = executor.weight_source().weights().experts(op);
    if (weights.empty()) {
      continue;
    }
    const auto& experts = std::get<model::ExpertsOp>(graph.ops[op].body);
    const kernels::ExpertsShape shape = {.in = weights[0].gate_up->in_features(),
                                         .hidden = experts.hidden,
                                         .out = weights[0].down->out_features(),
                                         .chosen = experts.chosen,
                                         .dtype = dense.compute_type()};
    of_experts = std::max(of_experts, kernels::ExpertLayers::BytesMax(shape, rows));
  }
  return dense.scratch_bytes() + of_experts;
}

}  // namespace lamina::compute_node
