// SPDX-License-Identifier: Apache-2.0
#include "compute_node/model_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/weight_quantiser.h"
#include "kernels/int8_weights.h"
#include "model/stored_rows.h"

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
                                                const Progress& progress, const Packed& packed,
                                                WeightForms* forms) {
  const Origin model{.graph = graph,
                     .source = source,
                     .forms = forms != nullptr && forms->any() ? forms : nullptr};
  ModelWeights weights;
  weights.table_type_ = device.dense().compute_type();
  weights.linears_.resize(model.graph.ops.size());
  weights.experts_.resize(model.graph.ops.size());
  weights.frequencies_.resize(model.graph.ops.size());
  weights.vectors_.resize(model.graph.weights.size());
  weights.tables_.resize(model.graph.weights.size());
  weights.block_tables_.resize(model.graph.weights.size());
  weights.heads_.assign(model.graph.weights.size(), model::kNone);
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
  for (const model::OpId op : ops) {
    if (const auto* embed = std::get_if<model::EmbedOp>(&graph.ops[op].body)) {
      LAMINA_RETURN_IF_ERROR(weights.LoadTied(model, embed->table, ops, device));
    }
  }
  for (const auto& [why, count] : weights.widened_) {
    LogInfo("weights: ", count, " matrices are widened to ", DTypeName(weights.table_type_), ": ",
            why);
  }
  return weights;
}

absl::Status ModelWeights::LoadOp(const Origin& model, model::OpId op,
                                  kernels::ComputeDevice& device) {
  const model::OpBody& body = model.graph.ops[op].body;
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
    LAMINA_ASSIGN_OR_RETURN(linears_[op], Pack(model, op, linear->parts, device.dense()));
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

absl::Status ModelWeights::LoadTied(const Origin& model, model::WeightId weight,
                                    absl::Span<const model::OpId> ops,
                                    kernels::ComputeDevice& device) {
  for (const model::OpId op : ops) {
    const auto* linear = std::get_if<model::LinearOp>(&model.graph.ops[op].body);
    if (linear != nullptr && linear->parts.size() == 1 && linear->parts[0].weight == weight &&
        !model.Quantises(op, weight) && device.dense().LooksUp(*linears_[op])) {
      heads_[weight] = op;
      return absl::OkStatus();
    }
  }
  return LoadTable(model, weight, device);
}

absl::Status ModelWeights::LoadTable(const Origin& model, model::WeightId weight,
                                     kernels::ComputeDevice& device) {
  if (tables_[weight].bytes > 0) {
    return absl::OkStatus();
  }
  const bool stays = model.forms != nullptr &&
                     !(model.forms->quantises() && IsOfFloats(model.graph, model.source, weight));
  if (stays) {
    const absl::Status stored = LoadStoredTable(model, weight, device);
    if (!absl::IsUnimplemented(stored)) {
      return stored;
    }
    CountWidened(stored);
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<float> values, model.Read(weight));
  std::vector<std::byte> table(values.size() * DTypeBytes(table_type_));
  AppendAs(table_type_, values, table.data());
  LAMINA_ASSIGN_OR_RETURN(tables_[weight], kernels::MoveToDevice(std::move(table), device));
  Count(DTypeName(table_type_), tables_[weight].bytes);
  return absl::OkStatus();
}

absl::Status ModelWeights::LoadStoredTable(const Origin& model, model::WeightId weight,
                                           kernels::ComputeDevice& device) {
  LAMINA_ASSIGN_OR_RETURN(const StoredPart part, model.Stored(weight));
  const kernels::BlockTypeInfo& info = kernels::InfoOf(part.type);
  const size_t width = model.graph.weights[weight].cols;
  const size_t row_bytes = width / info.elements * info.bytes;
  std::vector<std::byte> rows(part.rows.size() * row_bytes);
  for (size_t row = 0; row < part.rows.size(); ++row) {
    std::memcpy(rows.data() + row * row_bytes, part.rows[row], row_bytes);
  }
  kernels::BlockTable table = {.type = part.type,
                               .data = reinterpret_cast<const uint8_t*>(rows.data()),
                               .rows = part.rows.size(),
                               .width = width};
  if (!device.dense().EmbedsBlocks(table)) {
    return absl::UnimplementedError(absl::StrCat("no look-up in tables of type ", info.name));
  }
  LAMINA_ASSIGN_OR_RETURN(tables_[weight], kernels::MoveToDevice(std::move(rows), device));
  table.data = reinterpret_cast<const uint8_t*>(tables_[weight].data);
  block_tables_[weight] = table;
  Count(info.name, tables_[weight].bytes);
  return absl::OkStatus();
}

ModelWeights::Table ModelWeights::table(model::WeightId weight) const {
  if (heads_[weight] != model::kNone) {
    return {.head = linears_[heads_[weight]].get()};
  }
  if (block_tables_[weight].has_value()) {
    return {.blocks = &*block_tables_[weight]};
  }
  return {.rows = tables_[weight].data};
}

void ModelWeights::Count(absl::string_view form, uint64_t bytes) {
  bytes_ += bytes;
  bytes_by_form_[std::string(form)] += bytes;
}

void ModelWeights::CountWidened(const absl::Status& why) {
  if (!why.message().empty()) {
    ++widened_[std::string(why.message())];
  }
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
    LAMINA_ASSIGN_OR_RETURN(packed.gate_up, Pack(model, op, expert.gate_up, device.dense()));
    LAMINA_ASSIGN_OR_RETURN(packed.down, Pack(model, op, {&expert.down, 1}, device.dense()));
    experts_[op].push_back(std::move(packed));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights::StoredPart> ModelWeights::Origin::Stored(model::WeightId id) const {
  LAMINA_ASSIGN_OR_RETURN(model::StoredRows stored, model::FindStoredRows(graph, source, id));
  const std::optional<kernels::BlockType> type = kernels::FindBlockType(stored.type);
  if (!type.has_value()) {
    return absl::UnimplementedError(absl::StrCat("type ", stored.type, " has no packed form"));
  }
  if (!forms->Packs(*type)) {
    return absl::UnimplementedError("");
  }
  return StoredPart{.type = *type, .rows = std::move(stored.rows)};
}

bool ModelWeights::Origin::Quantises(model::OpId op, model::WeightId id) const {
  return forms != nullptr && forms->quantises() && IsOfFloats(graph, source, id) &&
         IsQuantisable(graph, op);
}

absl::StatusOr<std::vector<float>> ModelWeights::Origin::ReadMatrix(model::OpId op,
                                                                    model::WeightId id) const {
  if (!Quantises(op, id)) {
    return Read(id);
  }
  LAMINA_ASSIGN_OR_RETURN(const QuantisedWeight quantised, QuantiseWeight(graph, source, id));
  return quantised.Values();
}

absl::StatusOr<ModelWeights::StoredPart> ModelWeights::Origin::MatrixBlocks(
    model::OpId op, model::WeightId id) const {
  if (!Quantises(op, id)) {
    return Stored(id);
  }
  LAMINA_ASSIGN_OR_RETURN(QuantisedWeight quantised, QuantiseWeight(graph, source, id));
  if (!quantised.whole) {
    return absl::UnimplementedError(
        absl::StrCat("a shard's columns begin or end inside a block of ", kernels::kInt8Block,
                     " inputs; the values are those of int8"));
  }
  return StoredPart{.type = kernels::BlockType::kInt8,
                    .rows = quantised.Rows(),
                    .made = std::move(quantised.blocks)};
}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> ModelWeights::Pack(
    const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
    kernels::Dense& dense) {
  if (model.forms != nullptr) {
    auto packed = PackBlocks(model, op, parts, dense);
    if (!absl::IsUnimplemented(packed.status())) {
      return packed;
    }
    CountWidened(packed.status());
  }
  LAMINA_ASSIGN_OR_RETURN(auto packed, PackWidened(model, op, parts, dense));
  const bool quantised = std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
    return model.Quantises(op, part.weight);
  });
  Count(absl::StrCat(quantised ? "int8 as " : "", DTypeName(dense.compute_type())),
        packed->bytes());
  return packed;
}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> ModelWeights::PackBlocks(
    const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
    kernels::Dense& dense) {
  std::vector<StoredPart> stored;
  std::vector<kernels::BlockRows> blocks;
  bool any_bias = false;
  for (const model::LinearOp::Part& part : parts) {
    LAMINA_ASSIGN_OR_RETURN(StoredPart found, model.MatrixBlocks(op, part.weight));
    stored.push_back(std::move(found));
    any_bias = any_bias || part.bias != model::kNone;
  }
  std::vector<float> bias;
  std::string types;
  for (size_t i = 0; i < parts.size(); ++i) {
    blocks.push_back({.type = stored[i].type, .rows = stored[i].rows});
    const absl::string_view name = kernels::InfoOf(stored[i].type).name;
    if (!absl::StrContains(types, name)) {
      absl::StrAppend(&types, types.empty() ? "" : "+", name);
    }
    if (any_bias && parts[i].bias != model::kNone) {
      LAMINA_ASSIGN_OR_RETURN(const std::vector<float> part_bias, model.Read(parts[i].bias));
      bias.insert(bias.end(), part_bias.begin(), part_bias.end());
    } else if (any_bias) {
      bias.resize(bias.size() + stored[i].rows.size(), 0.0f);
    }
  }
  LAMINA_ASSIGN_OR_RETURN(
      auto packed, dense.PackBlocks(blocks, model.graph.weights[parts[0].weight].cols, bias));
  Count(types, packed->bytes());
  return packed;
}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> ModelWeights::PackWidened(
    const Origin& model, model::OpId op, absl::Span<const model::LinearOp::Part> parts,
    kernels::Dense& dense) {
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
    LAMINA_ASSIGN_OR_RETURN(const std::vector<float> values, model.ReadMatrix(op, part.weight));
    AppendAs(dense.compute_type(), values, stacked.data() + row * cols * element);
    if (part.bias != model::kNone) {
      LAMINA_ASSIGN_OR_RETURN(const std::vector<float> part_bias, model.Read(part.bias));
      std::copy(part_bias.begin(), part_bias.end(),
                bias.begin() + static_cast<std::ptrdiff_t>(row));
    }
    row += model.graph.weights[part.weight].rows;
  }
  return dense.Pack(stacked.data(), dense.compute_type(), rows, cols, bias);
}

}  // namespace lamina::compute_node
