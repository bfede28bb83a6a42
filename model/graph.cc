// SPDX-License-Identifier: Apache-2.0
//
// GraphBuilder appends without judging; Graph::Validate judges everything at once, so that a
// description that comes from a damaged file ends in a Status and never in a bad index.

#include "model/graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

absl::Status OpError(const Op& op, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("op ", op.name, ": ", problem));
}

uint64_t QkvWidth(const AttentionDescriptor& descriptor) {
  return uint64_t{descriptor.head_dim} *
         (uint64_t{descriptor.query_heads} + 2 * uint64_t{descriptor.kv_heads});
}

// Checks one op's body against its values. The ids of inputs and output are known to be in range
// and their number to be right.
class BodyChecker {
 public:
  BodyChecker(const Graph& graph, const Op& op) : graph_(graph), op_(op) {}

  absl::Status operator()(const EmbedOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckTable("table", body.table, out().width);
  }

  absl::Status operator()(const PositionEmbedOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    LAMINA_RETURN_IF_ERROR(CheckSameWidth());
    return CheckTable("table", body.table, out().width);
  }

  absl::Status operator()(const NormOp& body) const {
    const bool f32 = out().type == ValueType::kF32;
    LAMINA_RETURN_IF_ERROR(
        CheckTypes(ValueType::kF32, f32 ? ValueType::kF32 : ValueType::kCompute));
    LAMINA_RETURN_IF_ERROR(CheckSameWidth());
    LAMINA_RETURN_IF_ERROR(CheckVector("weight", body.weight, out().width));
    return body.bias == kNone ? absl::OkStatus() : CheckVector("bias", body.bias, out().width);
  }

  absl::Status operator()(const HeadNormOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    LAMINA_RETURN_IF_ERROR(CheckSameWidth());
    const uint64_t heads = uint64_t{body.query_heads} + 2 * uint64_t{body.kv_heads};
    LAMINA_RETURN_IF_ERROR(CheckWidth("input", in().width, heads * body.head_dim));
    const uint64_t q = body.whole ? body.query_heads : 1;
    const uint64_t k = body.whole ? body.kv_heads : 1;
    LAMINA_RETURN_IF_ERROR(CheckVector("q_weight", body.q_weight, q * body.head_dim));
    return CheckVector("k_weight", body.k_weight, k * body.head_dim);
  }

  absl::Status operator()(const ScaleOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckSameWidth();
  }

  absl::Status operator()(const LinearOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kCompute, ValueType::kF32));
    return CheckParts(body.parts, in().width, "output", out().width);
  }

  absl::Status operator()(const RouteOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    LAMINA_RETURN_IF_ERROR(CheckWidth("input", in().width, body.experts));
    if (body.chosen == 0 || body.chosen > body.experts) {
      return OpError(op_, absl::StrCat(body.chosen, " experts of a row, of ", body.experts));
    }
    return CheckWidth("output", out().width, uint64_t{2} * body.chosen);
  }

  absl::Status operator()(const ExpertsOp& body) const {
    const Value& route = graph_.values[op_.inputs[1]];
    if (in().type != ValueType::kCompute || route.type != ValueType::kF32 ||
        out().type != ValueType::kF32) {
      return OpError(op_, "takes a row in the compute type and a route, and makes f32");
    }
    LAMINA_RETURN_IF_ERROR(CheckWidth("route", route.width, uint64_t{2} * body.chosen));
    if (body.chosen == 0 || body.chosen > body.experts.size()) {
      return OpError(op_, absl::StrCat(body.chosen, " experts of a row, of ", body.experts.size()));
    }
    for (const ExpertsOp::Expert& expert : body.experts) {
      LAMINA_RETURN_IF_ERROR(
          CheckParts(expert.gate_up, in().width, "gate_up", uint64_t{2} * body.hidden));
      LAMINA_RETURN_IF_ERROR(CheckParts({expert.down}, body.hidden, "output", out().width));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const RopeOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kBF16));
    LAMINA_RETURN_IF_ERROR(CheckSameWidth());
    if (body.rotary_dim % 2 != 0 || body.rotary_dim > body.head_dim) {
      return OpError(op_, absl::StrCat("rotary_dim ", body.rotary_dim,
                                       " must be even and at most head_dim ", body.head_dim));
    }
    if (body.frequencies.size() != body.rotary_dim / 2) {
      return OpError(op_, absl::StrCat(body.frequencies.size(), " frequencies, but rotary_dim ",
                                       body.rotary_dim, " needs ", body.rotary_dim / 2));
    }
    if (uint64_t{body.heads} * body.head_dim > in().width) {
      return OpError(op_, absl::StrCat(body.heads, " heads of ", body.head_dim,
                                       " do not fit a row of ", in().width));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const AttentionOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kBF16, ValueType::kBF16));
    const AttentionDescriptor& d = body.descriptor;
    if (d.kv_heads == 0 || d.query_heads == 0 || d.query_heads % d.kv_heads != 0) {
      return OpError(op_, absl::StrCat(d.query_heads, " query heads must be a multiple of ",
                                       d.kv_heads, " KV heads"));
    }
    if (d.head_dim % 16 != 0 || d.head_dim < 16 || d.head_dim > 256) {
      return OpError(
          op_, absl::StrCat("head_dim ", d.head_dim, " must be a multiple of 16 in [16, 256]"));
    }
    if (!d.sinks.empty() && d.sinks.size() != d.query_heads) {
      return OpError(op_,
                     absl::StrCat(d.sinks.size(), " sinks for ", d.query_heads, " query heads"));
    }
    LAMINA_RETURN_IF_ERROR(CheckWidth("input", in().width, QkvWidth(d)));
    return CheckWidth("output", out().width, uint64_t{d.query_heads} * d.head_dim);
  }

  absl::Status operator()(const AddOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckSameWidth();
  }

  absl::Status operator()(const ActivationOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kCompute));
    if (body.kind == ActivationKind::kClampedSwiglu && !body.gated) {
      return OpError(op_, "this activation takes a gate");
    }
    return CheckWidth("input", in().width, uint64_t{out().width} * (body.gated ? 2 : 1));
  }

  absl::Status operator()(const ReduceOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckSameWidth();
  }

  absl::Status operator()(const ConvertOp&) const {
    const bool f32 = in().type == ValueType::kF32;
    LAMINA_RETURN_IF_ERROR(
        CheckTypes(f32 ? ValueType::kF32 : ValueType::kBF16, ValueType::kCompute));
    return CheckSameWidth();
  }

 private:
  const Value& in() const { return graph_.values[op_.inputs.front()]; }
  const Value& out() const { return graph_.values[op_.output]; }

  absl::Status CheckTypes(ValueType inputs, ValueType output) const {
    for (const ValueId input : op_.inputs) {
      if (graph_.values[input].type != inputs) {
        return OpError(op_, absl::StrCat("input ", graph_.values[input].name,
                                         " has a type that this op does not take"));
      }
    }
    return out().type == output ? absl::OkStatus()
                                : OpError(op_, "its output has a type that this op does not make");
  }

  absl::Status CheckSameWidth() const {
    for (const ValueId input : op_.inputs) {
      LAMINA_RETURN_IF_ERROR(CheckWidth("input", graph_.values[input].width, out().width));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWidth(absl::string_view what, uint64_t found, uint64_t expected) const {
    if (found == expected) {
      return absl::OkStatus();
    }
    return OpError(op_, absl::StrCat(what, " is ", found, " wide, expected ", expected));
  }

  // Parts stacked, from rows of `in` elements to rows of `out`.
  absl::Status CheckParts(const std::vector<LinearOp::Part>& parts, uint64_t in,
                          absl::string_view what, uint64_t out) const {
    uint64_t rows = 0;
    for (const LinearOp::Part& part : parts) {
      LAMINA_RETURN_IF_ERROR(CheckTable("weight", part.weight, in));
      const Weight& weight = graph_.weights[part.weight];
      rows += weight.rows;
      if (part.bias != kNone) {
        LAMINA_RETURN_IF_ERROR(CheckVector("bias", part.bias, weight.rows));
      }
    }
    return CheckWidth(what, out, rows);
  }

  absl::Status CheckTable(absl::string_view what, WeightId id, uint64_t cols) const {
    if (id >= graph_.weights.size()) {
      return OpError(op_, absl::StrCat(what, " is not a weight of the graph"));
    }
    const Weight& weight = graph_.weights[id];
    if (weight.cols != cols) {
      return OpError(op_, absl::StrCat(what, " ", weight.name, " has rows of ", weight.cols,
                                       ", expected ", cols));
    }
    return absl::OkStatus();
  }

  absl::Status CheckVector(absl::string_view what, WeightId id, uint64_t cols) const {
    LAMINA_RETURN_IF_ERROR(CheckTable(what, id, cols));
    const Weight& weight = graph_.weights[id];
    if (weight.rows != 1) {
      return OpError(op_, absl::StrCat(what, " ", weight.name, " has ", weight.rows,
                                       " rows, expected a vector"));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const Op& op_;
};

absl::Status CheckInputCount(const Op& op) {
  if (std::holds_alternative<EmbedOp>(op.body)) {
    return op.inputs.empty() ? absl::OkStatus() : OpError(op, "an embedding takes no inputs");
  }
  if (std::holds_alternative<AddOp>(op.body)) {
    return op.inputs.size() >= 2 ? absl::OkStatus() : OpError(op, "a sum takes two inputs or more");
  }
  if (std::holds_alternative<ExpertsOp>(op.body)) {
    return op.inputs.size() == 2 ? absl::OkStatus() : OpError(op, "takes a row and its route");
  }
  return op.inputs.size() == 1 ? absl::OkStatus() : OpError(op, "takes exactly one input");
}

// Requires: all ops before `id` have been checked.
absl::Status CheckOrder(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  for (const ValueId input : op.inputs) {
    if (input >= graph.values.size()) {
      return OpError(op, absl::StrCat("input ", input, " is not a value of the graph"));
    }
    if (graph.values[input].producer >= id) {
      return OpError(op,
                     absl::StrCat("input ", graph.values[input].name, " is not made before it"));
    }
  }
  if (op.output >= graph.values.size()) {
    return OpError(op, "its output is not a value of the graph");
  }
  if (graph.values[op.output].producer != id) {
    return OpError(
        op, absl::StrCat("its output ", graph.values[op.output].name, " has another producer"));
  }
  return absl::OkStatus();
}

// Every value is the output of the op that it names. CheckOrder has seen the other direction.
absl::Status CheckProducers(const Graph& graph) {
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.producer >= graph.ops.size() || graph.ops[value.producer].output != id) {
      return absl::InvalidArgumentError(absl::StrCat("value ", value.name, ": no op makes it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const Graph& graph) {
  for (const Weight& weight : graph.weights) {
    const uint64_t rows = weight.rows == 1 ? weight.cols : weight.rows;
    const uint64_t length = weight.slice.has_value() ? weight.slice->whole_rows : rows;
    if (weight.row_step == 0 ||
        (weight.stack.count != 0 && weight.stack.index >= weight.stack.count)) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight.name, ": number ",
                                                     weight.stack.index, " of ", weight.stack.count,
                                                     ", every ", weight.row_step, "-th row"));
    }
    if (weight.order == WeightRows::kSplitFusedQkv &&
        (weight.heads == 0 || length % (uint64_t{3} * weight.heads) != 0)) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight.name, ": ", length,
                                                     " rows are not q, k and v of ", weight.heads,
                                                     " heads"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogits(const Graph& graph) {
  if (graph.logits >= graph.values.size()) {
    return absl::InvalidArgumentError("logits: not a value of the graph");
  }
  const Op& op = graph.ops[graph.values[graph.logits].producer];
  return std::holds_alternative<LinearOp>(op.body)
             ? absl::OkStatus()
             : OpError(op, "the logits must come from a linear op");
}

}  // namespace

uint32_t Graph::attention_count() const {
  uint32_t count = 0;
  for (const Op& op : ops) {
    count += std::holds_alternative<AttentionOp>(op.body) ? 1 : 0;
  }
  return count;
}

absl::Status Graph::Validate() const {
  LAMINA_RETURN_IF_ERROR(CheckProducers(*this));
  LAMINA_RETURN_IF_ERROR(CheckWeights(*this));
  uint32_t layer = 0;
  for (OpId id = 0; id < ops.size(); ++id) {
    LAMINA_RETURN_IF_ERROR(CheckInputCount(ops[id]));
    LAMINA_RETURN_IF_ERROR(CheckOrder(*this, id));
    LAMINA_RETURN_IF_ERROR(std::visit(BodyChecker(*this, ops[id]), ops[id].body));
    if (const auto* attention = std::get_if<AttentionOp>(&ops[id].body)) {
      if (attention->layer != layer) {
        return OpError(ops[id], absl::StrCat("attention of layer ", attention->layer,
                                             " where layer ", layer, " is due"));
      }
      ++layer;
    }
  }
  return CheckLogits(*this);
}

uint64_t MatrixWeights(const Graph& graph, const Op& op) {
  if (const auto* experts = std::get_if<ExpertsOp>(&op.body)) {
    return MatrixWeightsOfRow(graph, op) / experts->chosen * experts->experts.size();
  }
  return MatrixWeightsOfRow(graph, op);
}

uint64_t MatrixWeightsOfRow(const Graph& graph, const Op& op) {
  if (const auto* experts = std::get_if<ExpertsOp>(&op.body)) {
    const uint64_t width =
        uint64_t{2} * graph.values[op.inputs[0]].width + graph.values[op.output].width;
    return width * experts->hidden * experts->chosen;
  }
  if (std::holds_alternative<LinearOp>(op.body)) {
    return uint64_t{graph.values[op.inputs[0]].width} * graph.values[op.output].width;
  }
  return 0;
}

WeightId GraphBuilder::AddWeight(Weight weight) {
  const auto named = weights_by_name_.equal_range(weight.name);
  for (auto at = named.first; at != named.second; ++at) {
    const Weight& known = graph_.weights[at->second];
    if (known.rows == weight.rows && known.cols == weight.cols &&
        known.first_row == weight.first_row && known.order == weight.order &&
        known.stack == weight.stack && known.row_step == weight.row_step &&
        known.offset == weight.offset) {
      return at->second;
    }
  }
  const auto id = static_cast<WeightId>(graph_.weights.size());
  weights_by_name_.emplace(weight.name, id);
  graph_.weights.push_back(std::move(weight));
  return id;
}

uint32_t GraphBuilder::WidthOf(ValueId id) const {
  return id < graph_.values.size() ? graph_.values[id].width : 0;
}

ValueId GraphBuilder::Append(absl::string_view name, std::vector<ValueId> inputs, uint32_t width,
                             ValueType type, OpBody body) {
  const ValueId value = static_cast<ValueId>(graph_.values.size());
  const OpId op = static_cast<OpId>(graph_.ops.size());
  const std::string full_name = absl::StrCat(scope_, name);
  graph_.values.push_back({.name = full_name, .width = width, .type = type, .producer = op});
  graph_.ops.push_back(
      {.name = full_name, .inputs = std::move(inputs), .output = value, .body = std::move(body)});
  return value;
}

ValueId GraphBuilder::Embed(absl::string_view name, WeightId table, uint32_t width) {
  return Append(name, {}, width, ValueType::kF32, EmbedOp{table});
}

ValueId GraphBuilder::PositionEmbed(absl::string_view name, ValueId in, WeightId table) {
  return Append(name, {in}, WidthOf(in), ValueType::kF32, PositionEmbedOp{table});
}

ValueId GraphBuilder::Norm(absl::string_view name, ValueId in, NormOp norm, ValueType type) {
  return Append(name, {in}, WidthOf(in), type, norm);
}

ValueId GraphBuilder::HeadNorm(absl::string_view name, ValueId qkv, HeadNormOp norm) {
  return Append(name, {qkv}, WidthOf(qkv), ValueType::kF32, norm);
}

ValueId GraphBuilder::Scale(absl::string_view name, ValueId in, float factor) {
  return Append(name, {in}, WidthOf(in), ValueType::kF32, ScaleOp{factor});
}

ValueId GraphBuilder::Route(absl::string_view name, ValueId scores, RouteOp route) {
  return Append(name, {scores}, 2 * route.chosen, ValueType::kF32, route);
}

ValueId GraphBuilder::Experts(absl::string_view name, ValueId in, ValueId route, uint32_t width,
                              ExpertsOp experts) {
  return Append(name, {in, route}, width, ValueType::kF32, std::move(experts));
}

ValueId GraphBuilder::Linear(absl::string_view name, ValueId in,
                             std::vector<LinearOp::Part> parts) {
  uint32_t width = 0;  // Validate() adds up in 64 bits and refuses a sum that wrapped.
  for (const LinearOp::Part& part : parts) {
    width += part.weight < graph_.weights.size() ? graph_.weights[part.weight].rows : 0;
  }
  return Append(name, {in}, width, ValueType::kF32, LinearOp{std::move(parts)});
}

ValueId GraphBuilder::Rope(absl::string_view name, ValueId in, RopeOp rope) {
  return Append(name, {in}, WidthOf(in), ValueType::kBF16, std::move(rope));
}

ValueId GraphBuilder::Attention(absl::string_view name, ValueId qkv, AttentionOp attention) {
  return Append(name, {qkv}, attention.descriptor.q_width(), ValueType::kBF16, attention);
}

ValueId GraphBuilder::Add(absl::string_view name, std::vector<ValueId> in) {
  const uint32_t width = in.empty() ? 0 : WidthOf(in.front());
  return Append(name, std::move(in), width, ValueType::kF32, AddOp{});
}

ValueId GraphBuilder::Activation(absl::string_view name, ValueId in, ActivationOp activation) {
  const uint32_t width = WidthOf(in) / (activation.gated ? 2 : 1);
  return Append(name, {in}, width, ValueType::kCompute, activation);
}

ValueId GraphBuilder::Convert(absl::string_view name, ValueId in) {
  return Append(name, {in}, WidthOf(in), ValueType::kCompute, ConvertOp{});
}

absl::StatusOr<Graph> GraphBuilder::Finish(ValueId logits) && {
  graph_.logits = logits;
  LAMINA_RETURN_IF_ERROR(graph_.Validate());
  return std::move(graph_);
}

}  // namespace lamina::model
