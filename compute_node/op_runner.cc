// SPDX-License-Identifier: Apache-2.0
#include "compute_node/op_runner.h"

#include <variant>

#include "common/check.h"

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
    case model::ActivationKind::kClampedSwiglu:
      return kernels::Activation::kClampedSwiglu;
  }
  return kernels::Activation::kRelu;
}

kernels::RouteKind ToKernel(model::RouterKind kind) {
  switch (kind) {
    case model::RouterKind::kSoftmax:
      return kernels::RouteKind::kSoftmax;
    case model::RouterKind::kSoftmaxNormalised:
      return kernels::RouteKind::kSoftmaxNormalised;
    case model::RouterKind::kChosenSoftmax:
      return kernels::RouteKind::kChosenSoftmax;
  }
  return kernels::RouteKind::kSoftmax;
}

}  // namespace

OpRunner::OpRunner(const SliceProgram& program, const ModelWeights& weights, kernels::Dense& dense)
    : program_(program),
      weights_(weights),
      dense_(dense),
      readers_(program.graph().values.size(), 0) {
  for (const model::Op& op : program.graph().ops) {
    for (const model::ValueId input : op.inputs) {
      ++readers_[input];
    }
  }
}

void OpRunner::Run(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const {
  while (!ops.empty()) {
    if (RunAddNorm(ops, buffers) || RunLinearGated(ops, buffers) || RunNormRope(ops, buffers)) {
      ops.remove_prefix(2);
    } else {
      RunOp(ops.front(), buffers);
      ops.remove_prefix(1);
    }
    BetweenOps();
  }
}

bool OpRunner::RunAddNorm(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const {
  if (ops.size() < 2) {
    return false;
  }
  const model::Op& add = program_.graph().ops[ops[0]];
  const model::Op& next = program_.graph().ops[ops[1]];
  const auto* const norm = std::get_if<model::NormOp>(&next.body);
  if (!std::holds_alternative<model::AddOp>(add.body) || add.inputs.size() != 2 ||
      norm == nullptr || norm->kind != model::NormKind::kRms || next.inputs[0] != add.output) {
    return false;
  }
  const size_t rows = buffers.rows().positions.size();
  dense_.AddRmsNorm(buffers.Floats(add.inputs[0], rows), buffers.Floats(add.inputs[1], rows),
                    buffers.Floats(add.output, rows), weights_.vector(norm->weight), norm->epsilon,
                    buffers.Activations(next.output, rows));
  return true;
}

bool OpRunner::RunLinearGated(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const {
  if (ops.size() < 2) {
    return false;
  }
  const model::Op& linear = program_.graph().ops[ops[0]];
  const model::Op& next = program_.graph().ops[ops[1]];
  const auto* const activation = std::get_if<model::ActivationOp>(&next.body);
  if (!std::holds_alternative<model::LinearOp>(linear.body) || activation == nullptr ||
      !activation->gated || next.inputs[0] != linear.output || readers_[linear.output] != 1 ||
      // One call reads the first while it writes the last.
      buffers.data(linear.inputs[0]) == buffers.data(next.output)) {
    return false;
  }
  const size_t rows = buffers.rows().positions.size();
  dense_.LinearGated(*weights_.linear(ops[0]), buffers.Activations(linear.inputs[0], rows),
                     ToKernel(activation->kind), buffers.Floats(linear.output, rows),
                     buffers.Activations(next.output, rows));
  return true;
}

bool OpRunner::RunNormRope(absl::Span<const model::OpId> ops, ValueBuffers& buffers) const {
  if (ops.size() < 2) {
    return false;
  }
  const model::Op& norms = program_.graph().ops[ops[0]];
  const model::Op& rope = program_.graph().ops[ops[1]];
  if (!std::holds_alternative<model::HeadNormOp>(norms.body) ||
      !std::holds_alternative<model::RopeOp>(rope.body) || rope.inputs[0] != norms.output ||
      readers_[norms.output] != 1 ||
      std::get<model::HeadNormOp>(norms.body).head_dim !=
          std::get<model::RopeOp>(rope.body).head_dim ||
      // One call reads the first while it writes the last.
      buffers.data(norms.inputs[0]) == buffers.data(rope.output)) {
    return false;
  }
  RunRope(ops[1], &norms, buffers);
  return true;
}

void OpRunner::RunColumns(absl::Span<const model::OpId> ops, size_t first_column,
                          ValueBuffers& buffers) const {
  RunLinear(ops.front(), buffers.rows().positions.size(), first_column, buffers);
  BetweenOps();
  Run(ops.subspan(1), buffers);
}

void OpRunner::RunOp(model::OpId id, ValueBuffers& buffers) const {
  const model::Op& op = program_.graph().ops[id];
  const RowInputs& rows = buffers.rows();
  const size_t count = rows.positions.size();
  if (const auto* embed = std::get_if<model::EmbedOp>(&op.body)) {
    Embed(embed->table, rows.token_ids, buffers.Floats(op.output, count));
  } else if (const auto* learned = std::get_if<model::PositionEmbedOp>(&op.body)) {
    const auto out = buffers.Floats(op.output, count);
    Embed(learned->table, rows.positions, out);
    dense_.Add(buffers.Floats(op.inputs[0], count), out, out);
  } else if (std::holds_alternative<model::NormOp>(op.body)) {
    RunNorm(op, count, buffers);
  } else if (std::holds_alternative<model::LinearOp>(op.body)) {
    RunLinear(id, count, /*first_column=*/0, buffers);
  } else if (std::holds_alternative<model::RopeOp>(op.body)) {
    RunRope(id, /*norms=*/nullptr, buffers);
  } else if (std::holds_alternative<model::AddOp>(op.body)) {
    RunAdd(op, count, buffers);
  } else if (const auto* activation = std::get_if<model::ActivationOp>(&op.body)) {
    const auto in = buffers.Floats(op.inputs[0], count);
    const auto out = buffers.Activations(op.output, count);
    if (activation->gated) {
      dense_.GatedActivation(ToKernel(activation->kind), in, out);
    } else {
      dense_.Activate(ToKernel(activation->kind), in, out);
    }
  } else if (const auto* scale = std::get_if<model::ScaleOp>(&op.body)) {
    dense_.Scale(buffers.Floats(op.inputs[0], count), scale->factor, /*soft_cap=*/0.0f,
                 buffers.Floats(op.output, count));
  } else if (std::holds_alternative<model::HeadNormOp>(op.body)) {
    RunHeadNorm(op, count, buffers);
  } else if (const auto* route = std::get_if<model::RouteOp>(&op.body)) {
    kernels::RouteRows(ToKernel(route->kind), buffers.Floats(op.inputs[0], count), route->chosen,
                       buffers.Floats(op.output, count));
  } else if (std::holds_alternative<model::ExpertsOp>(op.body)) {
    RunExperts(id, count, buffers);
  } else if (std::holds_alternative<model::ConvertOp>(op.body)) {
    RunConvert(op, count, buffers);
  } else {
    LAMINA_CHECK(false);  // Attention is never inside a slice, a reduction never run as an op.
  }
}

void OpRunner::RunConvert(const model::Op& op, size_t rows, ValueBuffers& buffers) const {
  if (buffers.data(op.inputs[0]) == buffers.data(op.output)) {
    return;  // It is of that type, and read where it lies (slice_slots.h).
  }
  if (program_.TypeOf(op.inputs[0]) == DType::kF32) {
    dense_.Round(buffers.Floats(op.inputs[0], rows), buffers.Activations(op.output, rows));
  } else {
    dense_.Convert(buffers.Halves(op.inputs[0], rows), buffers.Activations(op.output, rows));
  }
}

void OpRunner::RunLinear(model::OpId id, size_t rows, size_t first_column,
                         ValueBuffers& buffers) const {
  const model::Op& op = program_.graph().ops[id];
  kernels::MatrixView<float> out = buffers.Floats(op.output, rows);
  out.data += first_column;
  out.cols -= first_column;
  dense_.Linear(*weights_.linear(id), buffers.Activations(op.inputs[0], rows), first_column, out);
}

void OpRunner::Embed(model::WeightId table, absl::Span<const uint32_t> ids,
                     kernels::MatrixView<float> out) const {
  const ModelWeights::Table held = weights_.table(table);
  if (held.head != nullptr) {
    dense_.LookUp(*held.head, ids, out);
  } else if (held.blocks != nullptr) {
    dense_.EmbedBlocks(*held.blocks, ids, out);
  } else {
    dense_.Embed(held.rows, weights_.table_type(), out.cols, ids, out);
  }
}

void OpRunner::RunNorm(const model::Op& op, size_t rows, ValueBuffers& buffers) const {
  const auto& norm = std::get<model::NormOp>(op.body);
  const auto in = buffers.Floats(op.inputs[0], rows);
  const auto out = buffers.Activations(op.output, rows);
  if (norm.kind == model::NormKind::kRms) {
    dense_.RmsNorm(in, weights_.vector(norm.weight), norm.epsilon, out);
    return;
  }
  const absl::Span<const float> bias =
      norm.bias == model::kNone ? absl::Span<const float>() : weights_.vector(norm.bias);
  dense_.LayerNorm(in, weights_.vector(norm.weight), bias, norm.epsilon, out);
}

kernels::HeadNorms OpRunner::HeadNormsOf(const model::Op& op) const {
  const auto& norm = std::get<model::HeadNormOp>(op.body);
  return {.query_heads = norm.query_heads,
          .kv_heads = norm.kv_heads,
          .head_dim = norm.head_dim,
          .whole = norm.whole,
          .epsilon = norm.epsilon,
          .q_weight = weights_.vector(norm.q_weight),
          .k_weight = weights_.vector(norm.k_weight)};
}

void OpRunner::RunHeadNorm(const model::Op& op, size_t rows, ValueBuffers& buffers) const {
  dense_.NormHeads(buffers.Floats(op.inputs[0], rows), HeadNormsOf(op),
                   buffers.Floats(op.output, rows));
}

void OpRunner::RunExperts(model::OpId id, size_t rows, ValueBuffers& buffers) const {
  const model::Op& op = program_.graph().ops[id];
  const auto& experts = std::get<model::ExpertsOp>(op.body);
  expert_layers_.Run({.experts = weights_.experts(id),
                      .chosen = experts.chosen,
                      .hidden = experts.hidden,
                      .activation = ToKernel(experts.kind),
                      .in = buffers.Activations(op.inputs[0], rows),
                      .route = buffers.Floats(op.inputs[1], rows),
                      .out = buffers.Floats(op.output, rows)},
                     dense_);
}

void OpRunner::RunAdd(const model::Op& op, size_t rows, ValueBuffers& buffers) const {
  const auto out = buffers.Floats(op.output, rows);
  dense_.Add(buffers.Floats(op.inputs[0], rows), buffers.Floats(op.inputs[1], rows), out);
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    dense_.Add(out, buffers.Floats(op.inputs[i], rows), out);
  }
}

void OpRunner::RunRope(model::OpId id, const model::Op* norms, ValueBuffers& buffers) const {
  const model::Op& op = program_.graph().ops[id];
  const auto& rope = std::get<model::RopeOp>(op.body);
  const RowInputs& rows = buffers.rows();
  const size_t count = rows.positions.size();
  kernels::QkvFinish finish{.heads = rope.heads,
                            .head_dim = rope.head_dim,
                            .table = {.layout = ToKernel(rope.layout),
                                      .rotary_dim = rope.rotary_dim,
                                      .magnitude = rope.magnitude,
                                      .frequencies = weights_.frequencies(id)},
                            .positions = rows.positions,
                            .store = buffers.StoreOf(op.output)};
  kernels::HeadNorms head_norms;
  kernels::MatrixView<float> normed;
  if (norms != nullptr) {
    head_norms = HeadNormsOf(*norms);
    normed = buffers.Floats(norms->output, count);
    finish.norms = &head_norms;
  }
  dense_.FinishQkv(buffers.Floats(norms != nullptr ? norms->inputs[0] : op.inputs[0], count),
                   finish, normed, buffers.Halves(op.output, count));
}

}  // namespace lamina::compute_node
