// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_quantiser.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "kernels/int8_weights.h"
#include "model/model.h"

namespace lamina::compute_node {
namespace {

using kernels::kInt8Group;

bool IsFloatType(const std::string& type) {
  return type == "F32" || type == "F16" || type == "BF16";
}

// The weights of the op's matrices.
std::vector<model::WeightId> MatricesOf(const model::Op& op) {
  std::vector<model::WeightId> found;
  const auto add = [&found](const std::vector<model::LinearOp::Part>& parts) {
    for (const model::LinearOp::Part& part : parts) {
      found.push_back(part.weight);
    }
  };
  if (const auto* linear = std::get_if<model::LinearOp>(&op.body)) {
    add(linear->parts);
  } else if (const auto* experts = std::get_if<model::ExpertsOp>(&op.body)) {
    for (const model::ExpertsOp::Expert& expert : experts->experts) {
      add(expert.gate_up);
      found.push_back(expert.down.weight);
    }
  }
  return found;
}

// The weight with the groups around its columns; what lies before its own.
struct Widened {
  model::Weight weight;
  size_t first = 0;
  bool whole = true;
};

Widened WithWholeGroups(model::Weight weight) {
  if (!weight.slice.has_value()) {
    return {.weight = std::move(weight)};
  }
  constexpr auto kGroup = static_cast<uint32_t>(kInt8Group);
  constexpr auto kBlock = static_cast<uint32_t>(kernels::kInt8Block);
  const uint32_t weight_cols = weight.slice->whole_cols;
  model::WeightRange& cols = weight.slice->cols;
  const uint32_t end = cols.first + cols.count;
  const uint32_t first = cols.first % kGroup;
  const uint32_t groups_end = std::min(weight_cols, (end + kGroup - 1) / kGroup * kGroup);
  cols = {.first = cols.first - first, .count = groups_end - (cols.first - first)};
  weight.cols = cols.count;
  return {.weight = std::move(weight),
          .first = first,
          .whole = first % kBlock == 0 && (end % kBlock == 0 || end == weight_cols)};
}

}  // namespace

bool IsOfFloats(const model::Graph& graph, const model::WeightSource& source, model::WeightId id) {
  const model::TensorInfo* const tensor = source.Find(graph.weights[id].name);
  return tensor != nullptr && IsFloatType(tensor->type);
}

bool IsQuantisable(const model::Graph& graph, model::OpId op) {
  const model::ValueId output = graph.ops[op].output;
  return std::none_of(graph.ops.begin(), graph.ops.end(), [output](const model::Op& next) {
    return std::holds_alternative<model::RouteOp>(next.body) && next.inputs[0] == output;
  });
}

absl::Status CheckQuantises(const model::Graph& graph, const model::WeightSource& source) {
  std::set<std::string> types;
  for (model::OpId op = 0; op < graph.ops.size(); ++op) {
    for (const model::WeightId id : MatricesOf(graph.ops[op])) {
      const model::TensorInfo* const tensor = source.Find(graph.weights[id].name);
      if (tensor == nullptr || !IsQuantisable(graph, op)) {
        continue;
      }
      if (IsFloatType(tensor->type)) {
        return absl::OkStatus();
      }
      types.insert(tensor->type);
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "weights: int8 is for models of f32, f16 or bf16, and the matrices of this one are ",
      "quantised already: ", absl::StrJoin(types, ", "), "; say auto"));
}

std::vector<const uint8_t*> QuantisedWeight::Rows() const {
  std::vector<const uint8_t*> found;
  found.reserve(rows);
  for (size_t row = 0; row < rows; ++row) {
    found.push_back(blocks.data() + row * row_bytes +
                    first / kernels::kInt8Block * kernels::kInt8BlockBytes);
  }
  return found;
}

std::vector<float> QuantisedWeight::Values() const {
  std::vector<float> values(rows * cols);
  std::vector<float> with_groups(first + cols);
  auto to = values.begin();
  for (size_t row = 0; row < rows; ++row) {
    kernels::Int8Values(blocks.data() + row * row_bytes, absl::MakeSpan(with_groups));
    to = std::copy(with_groups.begin() + static_cast<std::ptrdiff_t>(first), with_groups.end(), to);
  }
  return values;
}

absl::StatusOr<QuantisedWeight> QuantiseWeight(const model::Graph& graph,
                                               const model::WeightSource& source,
                                               model::WeightId id) {
  const model::Weight& own = graph.weights[id];
  const Widened widened = WithWholeGroups(own);
  model::Graph one;
  one.weights.push_back(widened.weight);
  const size_t width = widened.weight.cols;
  std::vector<float> values(size_t{own.rows} * width);
  LAMINA_RETURN_IF_ERROR(model::ReadWeight(one, source, 0, absl::MakeSpan(values)));
  QuantisedWeight made{.rows = own.rows,
                       .row_bytes = kernels::Int8RowBytes(width),
                       .first = widened.first,
                       .cols = own.cols,
                       .whole = widened.whole};
  made.blocks.resize(made.rows * made.row_bytes);
  for (size_t row = 0; row < made.rows; ++row) {
    if (!kernels::QuantiseInt8(absl::MakeConstSpan(values).subspan(row * width, width),
                               made.blocks.data() + row * made.row_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight \"", own.name, "\", row ", row,
                       ": a value is not finite, or near the largest number, and has no form of 8 "
                       "bits; say weights: bf16"));
    }
  }
  return made;
}

}  // namespace lamina::compute_node
