// SPDX-License-Identifier: Apache-2.0
#include "compute_node/lm_head.h"

#include <algorithm>

#include "common/check.h"
#include "compute_node/slice_slots.h"

namespace lamina::compute_node {

LmHead::LmHead(const SliceProgram& program, const ModelWeights& weights, const OpRunner& runner,
               kernels::ComputeDevice& device, size_t columns)
    : program_(program),
      weights_(weights),
      runner_(runner),
      device_(device),
      columns_(columns != 0       ? columns
               : device.is_host() ? ColumnsLikeASlice()
                                  : width()) {}

size_t LmHead::ColumnsLikeASlice() const {
  // Whole blocks of oneDNN's weights; fewer columns would run a block more than once.
  constexpr size_t kStep = 2048;
  const auto& slices = program_.split().slices;
  const size_t slice_weights = program_.LinearWeights(slices[slices.size() / 2].ops);
  const model::Op& head = program_.graph().ops[program_.head()];
  const size_t columns = slice_weights / program_.Width(head.inputs[0]);
  return std::max<size_t>(1, (columns + kStep / 2) / kStep) * kStep;
}

absl::StatusOr<ValueBuffers> LmHead::MakeBuffers() const {
  return ValueBuffers::Make(program_, TailSlots(program_), kRows, device_);
}

void LmHead::Begin(ValueBuffers& body, absl::Span<const uint32_t> chosen,
                   ValueBuffers& tail) const {
  LAMINA_CHECK(chosen.size() <= kRows);
  for (const model::ValueId value : program_.tail_inputs()) {
    body.Gather(value, chosen, tail);
  }
  tail.SetRowCount(chosen.size());
  const absl::Span<const model::OpId> ops = program_.OpsIn(program_.Tail());
  runner_.Run(ops.first(ops.size() - 1), tail);
}

size_t LmHead::Run(size_t rows, size_t first, ValueBuffers& tail) const {
  const model::OpId id = program_.head();
  const model::Op& head = program_.graph().ops[id];
  const kernels::MatrixView<float> logits = tail.Floats(head.output, rows);
  const size_t columns = std::min(columns_, logits.cols - first);
  device_.dense().Linear(*weights_.linear(id), tail.Activations(head.inputs[0], rows), first,
                         logits.Cols(first, columns));
  if (const model::Graph::LogitShape& shape = program_.graph().logit_shape; !shape.plain()) {
    const kernels::MatrixView<float> made = logits.Cols(first, columns);
    device_.dense().Scale(made, shape.scale, shape.soft_cap, made);
  }
  return first + columns;
}

kernels::MatrixView<const float> LmHead::Logits(size_t rows, ValueBuffers& tail) const {
  LAMINA_CHECK(rows <= tail.rows_max());
  return kernels::Packed(reinterpret_cast<const float*>(tail.host(program_.graph().logits)), rows,
                         width());
}

kernels::MatrixView<const float> LmHead::DeviceLogits(size_t rows, ValueBuffers& tail) const {
  return tail.Floats(program_.graph().logits, rows);
}

absl::Status LmHead::LogitsToHost(absl::Span<const uint32_t> rows, ValueBuffers& tail) const {
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) {
      ++end;
    }
    tail.ToHost(program_.graph().logits, rows[i], end - i);
  }
  return tail.Settle();
}

}  // namespace lamina::compute_node
