// SPDX-License-Identifier: Apache-2.0
#include "model/shard.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

// How the shards' values of one name belong together.
enum class Spread : uint8_t {
  kWhole,    // All shards have the same value.
  kHeads,    // Each shard has the columns of its heads.
  kColumns,  // Each shard has some of the columns.
  kPart,     // The sum over shards is the value.
};

template <typename Body>
bool Is(const Op& op) {
  return std::holds_alternative<Body>(op.body);
}

// What the whole graph says about its ops, value by value.
class Anatomy {
 public:
  explicit Anatomy(const Graph& graph)
      : graph_(graph), consumers_(graph.values.size()), spread_(graph.values.size()) {
    for (OpId id = 0; id < graph.ops.size(); ++id) {
      for (const ValueId input : graph.ops[id].inputs) {
        consumers_[input].push_back(id);
      }
    }
    for (const Op& op : graph.ops) {
      spread_[op.output] = SpreadOf(op);
    }
  }

  // How the value is spread where it is read: behind its ReduceOp, if one follows.
  Spread spread(ValueId value) const {
    return spread_[value] == Spread::kPart && IsReduced(value) ? Spread::kWhole : spread_[value];
  }
  // Whether it is a part, and read by something that wants the sum.
  bool IsReduced(ValueId value) const {
    return spread_[value] == Spread::kPart &&
           (value == graph_.logits ||
            std::any_of(consumers_[value].begin(), consumers_[value].end(),
                        [this](OpId op) { return !Is<AddOp>(graph_.ops[op]); }));
  }
  // The attention behind a row [q | k | v], or the activation behind an MLP's first layer.
  template <typename Body>
  const Body* Behind(ValueId value) const {
    for (const OpId id : consumers_[value]) {
      const Op& op = graph_.ops[id];
      if (const Body* body = std::get_if<Body>(&op.body); body != nullptr) {
        return body;
      }
      if (Is<RopeOp>(op) || Is<HeadNormOp>(op)) {
        return Behind<Body>(op.output);
      }
    }
    return nullptr;
  }

 private:
  Spread SpreadOf(const Op& op) const {
    if (Is<EmbedOp>(op) || Is<NormOp>(op) || Is<PositionEmbedOp>(op)) {
      return Spread::kWhole;
    }
    if (Is<LinearOp>(op)) {
      if (spread(op.inputs[0]) != Spread::kWhole) {
        return Spread::kPart;
      }
      return Behind<AttentionOp>(op.output) != nullptr    ? Spread::kHeads
             : Behind<ActivationOp>(op.output) != nullptr ? Spread::kColumns
                                                          : Spread::kWhole;
    }
    if (Is<ExpertsOp>(op)) {
      return Spread::kPart;
    }
    if (Is<AddOp>(op)) {
      const bool any_part = std::any_of(op.inputs.begin(), op.inputs.end(), [this](ValueId value) {
        return spread(value) == Spread::kPart;
      });
      return any_part ? Spread::kPart : Spread::kWhole;
    }
    return spread(op.inputs[0]);  // Rope, norms of heads, attention, activation, conversion, ...
  }

  const Graph& graph_;
  std::vector<std::vector<OpId>> consumers_;
  std::vector<Spread> spread_;
};

class Sharder {
 public:
  Sharder(const Graph& whole, const ShardPart& part)
      : whole_(whole), anatomy_(whole), part_(part), value_(whole.values.size(), kNone) {
    shard_.weights = whole.weights;
  }

  absl::StatusOr<Graph> Build() && {
    for (const Op& op : whole_.ops) {
      Append(op);
    }
    shard_.logits = value_[whole_.logits];
    shard_.logit_shape = whole_.logit_shape;
    LAMINA_RETURN_IF_ERROR(shard_.Validate());
    return std::move(shard_);
  }

 private:
  void Append(const Op& op) {
    const ValueId made = op.output;
    Op added{.name = op.name, .body = op.body};
    for (const ValueId input : op.inputs) {
      const bool skipped = Is<AddOp>(op) && anatomy_spread(made) == Spread::kPart &&
                           anatomy_.spread(input) == Spread::kWhole && part_.index != 0;
      if (!skipped) {
        added.inputs.push_back(value_[input]);
      }
    }
    if (Is<AddOp>(op) && added.inputs.size() == 1) {
      value_[made] = added.inputs[0];  // A sum of one.
    } else {
      uint32_t width = whole_.values[made].width;
      Narrow(op, added, width);
      value_[made] =
          Add(std::move(added), whole_.values[made].name, width, whole_.values[made].type);
    }
    if (anatomy_.IsReduced(made)) {
      const std::string name = absl::StrCat(op.name, "_over_shards");
      value_[made] = Add({.name = name, .inputs = {value_[made]}, .body = ReduceOp{}}, name,
                         whole_.values[made].width, ValueType::kF32);
    }
  }

  // How a sum is spread before its reduction.
  Spread anatomy_spread(ValueId value) const {
    return anatomy_.IsReduced(value) ? Spread::kPart : anatomy_.spread(value);
  }

  ValueId Add(Op op, const std::string& name, uint32_t width, ValueType type) {
    const auto value = static_cast<ValueId>(shard_.values.size());
    op.output = value;
    shard_.values.push_back({.name = name,
                             .width = width,
                             .type = type,
                             .producer = static_cast<OpId>(shard_.ops.size())});
    shard_.ops.push_back(std::move(op));
    return value;
  }

  // The body and the output's width, for this shard's heads and columns.
  void Narrow(const Op& op, Op& added, uint32_t& width) {
    if (auto* linear = std::get_if<LinearOp>(&added.body)) {
      const Spread in = anatomy_.spread(op.inputs[0]);
      if (in != Spread::kWhole) {
        return TakeColumns(*linear, in, op);
      }
      const std::vector<WeightRange> rows = RowsOf(op);
      return rows.empty() ? void() : TakeRows(linear->parts, rows, width);
    }
    if (auto* experts = std::get_if<ExpertsOp>(&added.body)) {
      return NarrowExperts(*experts);
    }
    if (auto* norm = std::get_if<HeadNormOp>(&added.body)) {
      const AttentionDescriptor layer = LayerBehind(op.output);
      norm->query_heads = layer.query_heads;
      norm->kv_heads = layer.kv_heads;
      width = layer.qkv_width();
    } else if (auto* rope = std::get_if<RopeOp>(&added.body)) {
      const AttentionDescriptor layer = LayerBehind(op.output);
      rope->heads = layer.query_heads + layer.kv_heads;
      width = layer.qkv_width();
    } else if (auto* attention = std::get_if<AttentionOp>(&added.body)) {
      attention->descriptor = Narrowed(attention->descriptor);
      width = attention->descriptor.q_width();
    } else if (Is<ActivationOp>(op) || Is<ConvertOp>(op)) {
      width = shard_.values[added.inputs[0]].width;
      if (const auto* activation = std::get_if<ActivationOp>(&op.body)) {
        width /= activation->gated ? 2 : 1;
      }
    }
  }

  AttentionDescriptor Narrowed(const AttentionDescriptor& layer) const {
    return PartOf(layer, {.first = part_.first_head, .count = part_.heads});
  }

  // Every shard has the same columns of all experts.
  void NarrowExperts(ExpertsOp& experts) {
    const std::vector<WeightRange> rows = {
        {.first = part_.first_column, .count = part_.columns},
        {.first = experts.hidden + part_.first_column, .count = part_.columns}};
    for (ExpertsOp::Expert& expert : experts.experts) {
      uint32_t width = 0;
      TakeRows(expert.gate_up, rows, width);
      TakeColumns(expert.down, {.first = part_.first_column, .count = part_.columns});
    }
    experts.hidden = part_.columns;
  }

  AttentionDescriptor LayerBehind(ValueId value) const {
    return Narrowed(anatomy_.Behind<AttentionOp>(value)->descriptor);
  }

  // This shard's rows of a layer's stacked rows; none where it has them all.
  std::vector<WeightRange> RowsOf(const Op& op) const {
    if (const auto* attention = anatomy_.Behind<AttentionOp>(op.output)) {
      const AttentionDescriptor& layer = attention->descriptor;
      const AttentionDescriptor own = Narrowed(layer);
      const uint32_t first = part_.first_head * layer.head_dim;
      return {{.first = first * layer.group(), .count = own.q_width()},
              {.first = layer.q_width() + first, .count = own.kv_width()},
              {.first = layer.q_width() + layer.kv_width() + first, .count = own.kv_width()}};
    }
    if (const auto* activation = anatomy_.Behind<ActivationOp>(op.output)) {
      std::vector<WeightRange> rows = {{.first = part_.first_column, .count = part_.columns}};
      if (activation->gated) {
        rows.push_back({.first = whole_.values[op.output].width / 2 + part_.first_column,
                        .count = part_.columns});
      }
      return rows;
    }
    return {};
  }

  // Rows of the parts stacked, which may end inside a range.
  void TakeRows(std::vector<LinearOp::Part>& whole, const std::vector<WeightRange>& rows,
                uint32_t& width) {
    uint32_t begin = 0;  // First row of the part.
    width = 0;
    std::vector<LinearOp::Part> parts;
    for (const LinearOp::Part& part : whole) {
      const uint32_t end = begin + whole_.weights[part.weight].rows;
      std::vector<WeightRange> own;
      uint32_t count = 0;
      for (const WeightRange& range : rows) {
        const uint32_t from = std::max(range.first, begin);
        const uint32_t to = std::min(range.first + range.count, end);
        if (from < to) {
          own.push_back({.first = from - begin, .count = to - from});
          count += to - from;
        }
      }
      if (count > 0) {
        parts.push_back({.weight = RowsOfWeight(part.weight, own, count),
                         .bias = part.bias == kNone ? kNone : RowsOfWeight(part.bias, own, count)});
      }
      width += count;
      begin = end;
    }
    whole = std::move(parts);
  }

  // Rows of a matrix, or elements of a bias.
  WeightId RowsOfWeight(WeightId id, const std::vector<WeightRange>& rows, uint32_t count) {
    Weight piece = whole_.weights[id];
    const bool vector = piece.rows == 1;
    const uint32_t cols = vector ? 1 : piece.cols;
    piece.slice = WeightSlice{.whole_rows = vector ? piece.cols : piece.rows,
                              .whole_cols = cols,
                              .rows = rows,
                              .cols = {.first = 0, .count = cols}};
    (vector ? piece.cols : piece.rows) = count;
    return AddWeight(std::move(piece));
  }

  void TakeColumns(LinearOp& linear, Spread in, const Op& op) {
    WeightRange cols{.first = part_.first_column, .count = part_.columns};
    if (in == Spread::kHeads) {
      const AttentionDescriptor layer = LayerOf(op.inputs[0]);
      const uint32_t head_width = layer.group() * layer.head_dim;
      cols = {.first = part_.first_head * head_width, .count = part_.heads * head_width};
    }
    for (LinearOp::Part& part : linear.parts) {
      TakeColumns(part, cols);
    }
  }

  void TakeColumns(LinearOp::Part& part, const WeightRange& cols) {
    Weight piece = whole_.weights[part.weight];
    piece.slice = WeightSlice{.whole_rows = piece.rows,
                              .whole_cols = piece.cols,
                              .rows = {{.first = 0, .count = piece.rows}},
                              .cols = cols};
    piece.cols = cols.count;
    part.weight = AddWeight(std::move(piece));
    part.bias = part_.index == 0 ? part.bias : kNone;
  }

  // The attention that made the value, or what it was converted from.
  const AttentionDescriptor& LayerOf(ValueId value) const {
    const Op* op = &whole_.ops[whole_.values[value].producer];
    while (!Is<AttentionOp>(*op)) {
      op = &whole_.ops[whole_.values[op->inputs[0]].producer];
    }
    return std::get<AttentionOp>(op->body).descriptor;
  }

  WeightId AddWeight(Weight weight) {
    shard_.weights.push_back(std::move(weight));
    return static_cast<WeightId>(shard_.weights.size() - 1);
  }

  const Graph& whole_;
  const Anatomy anatomy_;
  const ShardPart part_;
  Graph shard_;
  std::vector<ValueId> value_;  // [whole's values]: the shard's, behind its reduction.
};

double WeightsOf(const Graph& graph, const Op& op) {
  return static_cast<double>(MatrixWeights(graph, op));
}

}  // namespace

absl::StatusOr<ShardWidths> ShardWidthsOf(const Graph& graph) {
  const Anatomy anatomy(graph);
  ShardWidths widths;
  const auto settle = [](uint32_t& width, uint32_t found, const Op& op) {
    const bool same = width == 0 || width == found;
    width = found;
    return same ? absl::OkStatus()
                : absl::UnimplementedError(absl::StrCat(
                      op.name, ": layers of unlike widths are not split into shards; use stages"));
  };
  double heads = 0;
  double columns = 0;
  for (const Op& op : graph.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      LAMINA_RETURN_IF_ERROR(settle(widths.heads, attention->descriptor.kv_heads, op));
    } else if (const auto* norm = std::get_if<HeadNormOp>(&op.body);
               norm != nullptr && norm->whole) {
      return absl::UnimplementedError(absl::StrCat(
          op.name, ": norms over all heads at once are not split into shards; use stages"));
    } else if (const auto* experts = std::get_if<ExpertsOp>(&op.body)) {
      LAMINA_RETURN_IF_ERROR(settle(widths.columns, experts->hidden, op));
      columns += WeightsOf(graph, op);
    } else if (Is<ActivationOp>(op)) {
      LAMINA_RETURN_IF_ERROR(settle(widths.columns, graph.values[op.output].width, op));
    } else if (Is<LinearOp>(op)) {
      const Spread in = anatomy.spread(op.inputs[0]);
      const Spread spread = in == Spread::kWhole ? anatomy.spread(op.output) : in;
      heads += spread == Spread::kHeads ? WeightsOf(graph, op) : 0;
      columns += spread == Spread::kColumns ? WeightsOf(graph, op) : 0;
    }
  }
  if (widths.heads == 0 || widths.columns == 0) {
    return absl::UnimplementedError("a model without attention or MLP is not split into shards");
  }
  widths.head_weights = heads / widths.heads;
  widths.column_weights = columns / widths.columns;
  return widths;
}

absl::StatusOr<Graph> ShardGraph(const Graph& whole, const ShardPart& part) {
  if (part.count == 1) {
    return whole;
  }
  LAMINA_ASSIGN_OR_RETURN(const ShardWidths widths, ShardWidthsOf(whole));
  if (part.index >= part.count || part.heads == 0 || part.heads > widths.heads ||
      part.first_head > widths.heads - part.heads || part.columns == 0 ||
      part.columns > widths.columns || part.first_column > widths.columns - part.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", part.index, " of ", part.count, " has KV heads [", part.first_head,
                     ", +", part.heads, ") of ", widths.heads, " and MLP columns [",
                     part.first_column, ", +", part.columns, ") of ", widths.columns));
  }
  return Sharder(whole, part).Build();
}

uint64_t LinearBytes(const Graph& graph, bool head) {
  uint64_t bytes = 0;
  for (const Op& op : graph.ops) {
    if (head || op.output != graph.logits) {
      bytes += MatrixWeights(graph, op) * 2;
    }
  }
  return bytes;
}

}  // namespace lamina::model
