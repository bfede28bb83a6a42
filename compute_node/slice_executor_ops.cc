// SPDX-License-Identifier: Apache-2.0
//
// From ops of the graph to calls of the dense layers.

#include <variant>

#include "common/check.h"
#include "compute_node/slice_executor.h"

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

void SliceExecutor::RunOps(absl::Span<const model::OpId> ops, ValueBuffers& buffers) {
  for (const model::OpId op : ops) {
    RunOp(op, buffers);
    if (between_ops_) {
      between_ops_();
    }
  }
}

void SliceExecutor::RunOp(model::OpId id, ValueBuffers& buffers) {
  const model::Op& op = graph_.ops[id];
  const RowInputs& rows = buffers.device_rows_;
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
    RunRope(id, rows, buffers);
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
  const absl::Span<const float> bias =
      norm.bias == model::kNone ? absl::Span<const float>() : weights_.vector(norm.bias);
  dense_.LayerNorm(in, weights_.vector(norm.weight), bias, norm.epsilon, out);
}

void SliceExecutor::RunAdd(const model::Op& op, size_t rows, ValueBuffers& buffers) {
  const auto out = Floats(op.output, rows, buffers);
  dense_.Add(Floats(op.inputs[0], rows, buffers), Floats(op.inputs[1], rows, buffers), out);
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    dense_.Add(out, Floats(op.inputs[i], rows, buffers), out);
  }
}

void SliceExecutor::RunRope(model::OpId id, const RowInputs& rows, ValueBuffers& buffers) {
  const model::Op& op = graph_.ops[id];
  const auto& rope = std::get<model::RopeOp>(op.body);
  const size_t count = rows.positions.size();
  const kernels::RopeTable table{.layout = ToKernel(rope.layout),
                                 .rotary_dim = rope.rotary_dim,
                                 .magnitude = rope.magnitude,
                                 .frequencies = weights_.frequencies(id)};
  dense_.RopeAndRound(Floats(op.inputs[0], count, buffers), rope.heads, rope.head_dim, table,
                      rows.positions, Halves(op.output, count, buffers));
}

}  // namespace lamina::compute_node
