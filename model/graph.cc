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
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kCompute));
    LAMINA_RETURN_IF_ERROR(CheckSameWidth());
    LAMINA_RETURN_IF_ERROR(CheckVector("weight", body.weight, out().width));
    return body.bias == kNone ? absl::OkStatus() : CheckVector("bias", body.bias, out().width);
  }

  absl::Status operator()(const LinearOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kCompute, ValueType::kF32));
    uint64_t rows = 0;
    for (const LinearOp::Part& part : body.parts) {
      LAMINA_RETURN_IF_ERROR(CheckTable("weight", part.weight, in().width));
      const Weight& weight = graph_.weights[part.weight];
      rows += weight.rows;
      if (part.bias != kNone) {
        LAMINA_RETURN_IF_ERROR(CheckVector("bias", part.bias, weight.rows));
      }
    }
    return CheckWidth("output", out().width, rows);
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
    LAMINA_RETURN_IF_ERROR(CheckWidth("input", in().width, QkvWidth(d)));
    return CheckWidth("output", out().width, uint64_t{d.query_heads} * d.head_dim);
  }

  absl::Status operator()(const AddOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckSameWidth();
  }

  absl::Status operator()(const ActivationOp& body) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kCompute));
    return CheckWidth("input", in().width, uint64_t{out().width} * (body.gated ? 2 : 1));
  }

  absl::Status operator()(const ReduceOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kF32, ValueType::kF32));
    return CheckSameWidth();
  }

  absl::Status operator()(const ConvertOp&) const {
    LAMINA_RETURN_IF_ERROR(CheckTypes(ValueType::kBF16, ValueType::kCompute));
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

WeightId GraphBuilder::AddWeight(Weight weight) {
  for (WeightId id = 0; id < graph_.weights.size(); ++id) {
    const Weight& known = graph_.weights[id];
    if (known.name == weight.name && known.rows == weight.rows && known.cols == weight.cols &&
        known.first_row == weight.first_row && known.order == weight.order) {
      return id;
    }
  }
  graph_.weights.push_back(std::move(weight));
  return static_cast<WeightId>(graph_.weights.size() - 1);
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

ValueId GraphBuilder::Norm(absl::string_view name, ValueId in, NormOp norm) {
  return Append(name, {in}, WidthOf(in), ValueType::kCompute, norm);
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
