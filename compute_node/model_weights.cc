// SPDX-License-Identifier: Apache-2.0
#include "compute_node/model_weights.h"

#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// Appends f32 values in the compute type.
void AppendAs(DType type, const std::vector<float>& values, std::byte* out) {
  if (type == DType::kF32) {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  auto* target = reinterpret_cast<BFloat16*>(out);
  for (size_t i = 0; i < values.size(); ++i) {
    target[i] = ToBFloat16(values[i]);
  }
}

}  // namespace

uint64_t PackedElementsOf(const model::Graph& graph, model::OpId id) {
  return model::MatrixWeights(graph, graph.ops[id]);
}

uint64_t ElementsOf(const model::Graph& graph, model::OpId id) {
  const model::Op& op = graph.ops[id];
  uint64_t elements = 1 + model::MatrixWeights(graph, op);
  if (const auto* embed = std::get_if<model::EmbedOp>(&op.body)) {
    elements += uint64_t{graph.weights[embed->table].rows} * graph.weights[embed->table].cols;
  }
  return elements;
}

absl::StatusOr<std::vector<float>> ModelWeights::Origin::Read(model::WeightId id) const {
  const model::Weight& weight = graph.weights[id];
  std::vector<float> values(size_t{weight.rows} * weight.cols);
  LAMINA_RETURN_IF_ERROR(model::ReadWeight(graph, source, id, absl::MakeSpan(values)));
  return values;
}

absl::StatusOr<ModelWeights> ModelWeights::Load(const model::Graph& graph,
                                                const model::WeightSource& source,
                                                kernels::ComputeDevice& device,
                                                absl::Span<const model::OpId> ops,
                                                const Progress& progress, const Packed& packed) {
  const Origin model{.graph = graph, .source = source};
  ModelWeights weights;
  weights.table_type_ = device.dense().compute_type();
  weights.linears_.resize(model.graph.ops.size());
  weights.experts_.resize(model.graph.ops.size());
  weights.frequencies_.resize(model.graph.ops.size());
  weights.vectors_.resize(model.graph.weights.size());
  weights.tables_.resize(model.graph.weights.size());
  double all = 0;
  for (const model::OpId op : ops) {
    all += static_cast<double>(ElementsOf(graph, op));
  }
  progress(0);
  double done = 0;
  for (const model::OpId op : ops) {
    LAMINA_RETURN_IF_ERROR(weights.LoadOp(model, op, device));
    LAMINA_RETURN_IF_ERROR(weights.TellPacked(op, packed));
    done += static_cast<double>(ElementsOf(graph, op));
    progress(done / all);
  }
  return weights;
}

absl::Status ModelWeights::LoadOp(const Origin& model, model::OpId op,
                                  kernels::ComputeDevice& device) {
  const model::OpBody& body = model.graph.ops[op].body;
  if (const auto* embed = std::get_if<model::EmbedOp>(&body)) {
    return LoadTable(model, embed->table, device);
  }
  if (const auto* positions = std::get_if<model::PositionEmbedOp>(&body)) {
    return LoadTable(model, positions->table, device);
  }
  if (const auto* norm = std::get_if<model::NormOp>(&body)) {
    LAMINA_RETURN_IF_ERROR(LoadVector(model, norm->weight, device));
    return norm->bias == model::kNone ? absl::OkStatus() : LoadVector(model, norm->bias, device);
  }
  if (const auto* norm = std::get_if<model::HeadNormOp>(&body)) {
    LAMINA_RETURN_IF_ERROR(LoadVector(model, norm->q_weight, device));
    return LoadVector(model, norm->k_weight, device);
  }
  if (const auto* linear = std::get_if<model::LinearOp>(&body)) {
    LAMINA_ASSIGN_OR_RETURN(linears_[op], Pack(model, linear->parts, device.dense()));
    return absl::OkStatus();
  }
  if (std::holds_alternative<model::ExpertsOp>(body)) {
    return LoadExperts(model, op, device);
  }
  if (const auto* rope = std::get_if<model::RopeOp>(&body)) {
    LAMINA_ASSIGN_OR_RETURN(frequencies_[op], kernels::MoveToDevice(rope->frequencies, device));
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::TellPacked(model::OpId op, const Packed& packed) {
  if (!packed) {
    return absl::OkStatus();
  }
  if (linears_[op] != nullptr) {
    LAMINA_RETURN_IF_ERROR(packed(op, *linears_[op]));
  }
  for (const kernels::Expert& expert : experts_[op]) {
    LAMINA_RETURN_IF_ERROR(packed(op, *expert.gate_up));
    LAMINA_RETURN_IF_ERROR(packed(op, *expert.down));
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::LoadTable(const Origin& model, model::WeightId weight,
                                     kernels::ComputeDevice& device) {
  if (tables_[weight].bytes > 0) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<float> values, model.Read(weight));
  std::vector<std::byte> table(values.size() * DTypeBytes(table_type_));
  AppendAs(table_type_, values, table.data());
  LAMINA_ASSIGN_OR_RETURN(tables_[weight], kernels::MoveToDevice(std::move(table), device));
  bytes_ += tables_[weight].bytes;
  return absl::OkStatus();
}

absl::Status ModelWeights::LoadVector(const Origin& model, model::WeightId weight,
                                      kernels::ComputeDevice& device) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<float> values, model.Read(weight));
  LAMINA_ASSIGN_OR_RETURN(vectors_[weight], kernels::MoveToDevice(std::move(values), device));
  bytes_ += vectors_[weight].bytes;
  return absl::OkStatus();
}

absl::Status ModelWeights::LoadExperts(const Origin& model, model::OpId op,
                                       kernels::ComputeDevice& device) {
  if (!device.is_host()) {
    return absl::UnimplementedError(
        absl::StrCat(model.graph.ops[op].name, ": experts run on the processor alone, not on ",
                     device.name(), "; give the compute node no device"));
  }
  for (const auto& expert : std::get<model::ExpertsOp>(model.graph.ops[op].body).experts) {
    kernels::Expert packed;
    LAMINA_ASSIGN_OR_RETURN(packed.gate_up, Pack(model, expert.gate_up, device.dense()));
    LAMINA_ASSIGN_OR_RETURN(packed.down, Pack(model, {&expert.down, 1}, device.dense()));
    experts_[op].push_back(std::move(packed));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> ModelWeights::Pack(
    const Origin& model, absl::Span<const model::LinearOp::Part> parts, kernels::Dense& dense) {
  size_t rows = 0;
  bool any_bias = false;
  for (const model::LinearOp::Part& part : parts) {
    rows += model.graph.weights[part.weight].rows;
    any_bias = any_bias || part.bias != model::kNone;
  }
  const size_t cols = model.graph.weights[parts[0].weight].cols;
  const size_t element = DTypeBytes(dense.compute_type());
  std::vector<std::byte> stacked(rows * cols * element);
  std::vector<float> bias(any_bias ? rows : 0, 0.0f);
  size_t row = 0;
  for (const model::LinearOp::Part& part : parts) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<float> values, model.Read(part.weight));
    AppendAs(dense.compute_type(), values, stacked.data() + row * cols * element);
    if (part.bias != model::kNone) {
      LAMINA_ASSIGN_OR_RETURN(const std::vector<float> part_bias, model.Read(part.bias));
      std::copy(part_bias.begin(), part_bias.end(),
                bias.begin() + static_cast<std::ptrdiff_t>(row));
    }
    row += model.graph.weights[part.weight].rows;
  }
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<kernels::PackedLinear> packed,
                          dense.Pack(stacked.data(), dense.compute_type(), rows, cols, bias));
  bytes_ += packed->bytes();
  return packed;
}

}  // namespace lamina::compute_node
