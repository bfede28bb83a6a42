// SPDX-License-Identifier: Apache-2.0
//
// One function for each op, written from its comment in model/graph.h. Shares no code with
// kernels/.

#include "tests/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>
#include <variant>

#include "common/check.h"
#include "common/dtype.h"
#include "common/status_macros.h"

namespace lamina::test_support {
namespace {

using namespace lamina::model;  // NOLINT(google-build-using-namespace): the ops are its subject.

using Row = std::vector<float>;
using Rows = std::vector<Row>;  // [tokens][width]

double Activate(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
    case ActivationKind::kSilu:
      return x / (1.0 + std::exp(-x));
    case ActivationKind::kGeluErf:
      return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    case ActivationKind::kGeluTanh:
      return 0.5 * x *
             (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case ActivationKind::kClampedSwiglu: {
      const double gate = std::min(x, 7.0);
      return gate / (1.0 + std::exp(-1.702 * gate));
    }
  }
  LAMINA_CHECK(false);
}

// What a gated activation multiplies by.
double Up(ActivationKind kind, double up) {
  return kind == ActivationKind::kClampedSwiglu ? std::clamp(up, -7.0, 7.0) + 1.0 : up;
}

// Runs ops over `values`, the rows of every value made so far.
class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::vector<Row>& weights, bool round_compute,
              absl::Span<const TokenId> tokens)
      : graph_(graph),
        weights_(weights),
        round_compute_(round_compute),
        tokens_(tokens),
        values_(graph.values.size()) {}

  void Run(const Op& op) {
    op_ = &op;
    Rows& out = values_[op.output];
    out.assign(tokens_.size(), Row(graph_.values[op.output].width, 0.0f));
    std::visit([&](const auto& body) { Run(body, out); }, op.body);
  }

  Rows& value(ValueId id) { return values_[id]; }

 private:
  const Rows& In(size_t i = 0) const { return values_[op_->inputs[i]]; }

  void Run(const EmbedOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const size_t width = out[t].size();
      for (size_t i = 0; i < width; ++i) {
        out[t][i] = weights_[body.table][static_cast<size_t>(tokens_[t]) * width + i];
      }
    }
  }

  void Run(const PositionEmbedOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      for (size_t i = 0; i < out[t].size(); ++i) {
        out[t][i] = In()[t][i] + weights_[body.table][t * out[t].size() + i];
      }
    }
  }

  void Run(const NormOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const Row& in = In()[t];
      const auto n = static_cast<double>(in.size());
      double mean = 0.0;
      if (body.kind == NormKind::kLayer) {
        for (const float x : in) {
          mean += x / n;
        }
      }
      double square = 0.0;
      for (const float x : in) {
        square += (x - mean) * (x - mean) / n;
      }
      const double scale = 1.0 / std::sqrt(square + double{body.epsilon});
      for (size_t i = 0; i < in.size(); ++i) {
        const double bias = body.bias == kNone ? 0.0 : weights_[body.bias][i];
        out[t][i] = static_cast<float>((in[i] - mean) * scale * weights_[body.weight][i] + bias);
      }
    }
  }

  void Run(const HeadNormOp& body, Rows& out) const {
    const size_t q = size_t{body.query_heads} * body.head_dim;
    const size_t k = size_t{body.kv_heads} * body.head_dim;
    for (size_t t = 0; t < out.size(); ++t) {
      out[t] = In()[t];
      const auto norm = [&](size_t first, size_t count, WeightId weight) {
        double square = 0.0;
        for (size_t i = first; i < first + count; ++i) {
          square += double{out[t][i]} * out[t][i] / static_cast<double>(count);
        }
        const double scale = 1.0 / std::sqrt(square + double{body.epsilon});
        for (size_t i = 0; i < count; ++i) {
          out[t][first + i] = static_cast<float>(out[t][first + i] * scale * weights_[weight][i]);
        }
      };
      for (size_t at = 0; at < q; at += body.whole ? q : body.head_dim) {
        norm(at, body.whole ? q : body.head_dim, body.q_weight);
      }
      for (size_t at = q; at < q + k; at += body.whole ? k : body.head_dim) {
        norm(at, body.whole ? k : body.head_dim, body.k_weight);
      }
    }
  }

  void Run(const ScaleOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      for (size_t i = 0; i < out[t].size(); ++i) {
        out[t][i] = body.factor * In()[t][i];
      }
    }
  }

  void Run(const RouteOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const Row& scores = In()[t];
      std::vector<size_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return scores[a] > scores[b]; });
      const float largest = scores[order[0]];
      order.resize(body.chosen);
      double all = 0.0;
      double chosen = 0.0;
      for (const float score : scores) {
        all += std::exp(double{score} - largest);
      }
      for (const size_t expert : order) {
        chosen += std::exp(double{scores[expert]} - largest);
      }
      std::sort(order.begin(), order.end());
      for (size_t i = 0; i < order.size(); ++i) {
        out[t][i] = static_cast<float>(order[i]);
        out[t][body.chosen + i] =
            static_cast<float>(std::exp(double{scores[order[i]]} - largest) /
                               (body.kind == RouterKind::kSoftmax ? all : chosen));
      }
    }
  }

  void Run(const ExpertsOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const Row& route = In(1)[t];
      for (size_t i = 0; i < body.chosen; ++i) {
        const ExpertsOp::Expert& expert = body.experts[static_cast<size_t>(route[i])];
        const Row gate_up = Product(expert.gate_up, In()[t]);
        Row activated(body.hidden);
        for (size_t h = 0; h < body.hidden; ++h) {
          activated[h] = static_cast<float>(Activate(body.kind, gate_up[h]) *
                                            Up(body.kind, gate_up[body.hidden + h]));
          if (round_compute_) {
            activated[h] = ToFloat(ToBFloat16(activated[h]));
          }
        }
        const Row down = Product({expert.down}, activated);
        for (size_t c = 0; c < out[t].size(); ++c) {
          out[t][c] += route[body.chosen + i] * down[c];
        }
      }
    }
  }

  // in W^T + b of the parts, one behind the other.
  Row Product(const std::vector<LinearOp::Part>& parts, const Row& in) const {
    Row out;
    for (const LinearOp::Part& part : parts) {
      const float* row = weights_[part.weight].data();
      for (uint32_t r = 0; r < graph_.weights[part.weight].rows; ++r, row += in.size()) {
        double sum = part.bias == kNone ? 0.0 : weights_[part.bias][r];
        for (size_t i = 0; i < in.size(); ++i) {
          sum += double{row[i]} * in[i];
        }
        out.push_back(static_cast<float>(sum));
      }
    }
    return out;
  }

  void Run(const LinearOp& body, Rows& out) const {
    const bool logits = op_->output == graph_.logits;
    for (size_t t = 0; t < out.size(); ++t) {
      out[t] = Product(body.parts, In()[t]);
      for (float& x : out[t]) {
        x = logits ? Shaped(x) : x;
      }
    }
  }

  float Shaped(float x) const {
    const Graph::LogitShape& shape = graph_.logit_shape;
    x *= shape.scale;
    return shape.soft_cap == 0.0f
               ? x
               : static_cast<float>(shape.soft_cap * std::tanh(double{x} / shape.soft_cap));
  }

  void Run(const RopeOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      out[t] = In()[t];
      const size_t half = body.rotary_dim / 2;
      for (uint32_t head = 0; head < body.heads; ++head) {
        float* x = out[t].data() + size_t{head} * body.head_dim;
        for (size_t i = 0; i < half; ++i) {
          // The angle is a float product, as in the reference implementations.
          const double angle = static_cast<float>(t) * body.frequencies[i];
          const double c = std::cos(angle) * body.magnitude;
          const double s = std::sin(angle) * body.magnitude;
          const bool halves = body.layout == RopeLayout::kHalves;
          float& a = x[halves ? i : 2 * i];
          float& b = x[halves ? i + half : 2 * i + 1];
          const double rotated = a * c - b * s;
          b = static_cast<float>(b * c + a * s);
          a = static_cast<float>(rotated);
        }
      }
    }
  }

  void Run(const AttentionOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      for (uint32_t head = 0; head < body.descriptor.query_heads; ++head) {
        Attend(body.descriptor, t, head, out[t].data() + size_t{head} * body.descriptor.head_dim);
      }
    }
  }

  // One head of one position.
  void Attend(const AttentionDescriptor& d, size_t t, uint32_t head, float* out) const {
    const Rows& in = In();
    const size_t dh = d.head_dim;
    const size_t k_at = d.q_width() + size_t{head / d.group()} * dh;
    const size_t v_at = k_at + d.kv_width();
    const size_t first = d.window != 0 && t + 1 > d.window ? t + 1 - d.window : 0;
    std::vector<double> scores;
    double largest = -INFINITY;
    for (size_t s = first; s <= t; ++s) {
      double score = 0.0;
      for (size_t i = 0; i < dh; ++i) {
        score += double{in[t][head * dh + i]} * in[s][k_at + i];
      }
      score *= d.scale;
      score = d.soft_cap == 0.0f ? score : d.soft_cap * std::tanh(score / d.soft_cap);
      scores.push_back(score);
      largest = std::max(largest, score);
    }
    if (!d.sinks.empty()) {
      largest = std::max(largest, double{d.sinks[head]});
    }
    std::vector<double> sum(dh, 0.0);
    double total = d.sinks.empty() ? 0.0 : std::exp(double{d.sinks[head]} - largest);
    for (size_t s = first; s <= t; ++s) {
      const double p = std::exp(scores[s - first] - largest);
      total += p;
      for (size_t i = 0; i < dh; ++i) {
        sum[i] += p * in[s][v_at + i];
      }
    }
    for (size_t i = 0; i < dh; ++i) {
      out[i] = static_cast<float>(sum[i] / total);
    }
  }

  void Run(const AddOp&, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      out[t] = In()[t];
      for (size_t input = 1; input < op_->inputs.size(); ++input) {
        for (size_t i = 0; i < out[t].size(); ++i) {
          out[t][i] += In(input)[t][i];
        }
      }
    }
  }

  void Run(const ActivationOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const Row& in = In()[t];
      for (size_t i = 0; i < out[t].size(); ++i) {
        const double gate = body.gated ? Up(body.kind, in[out[t].size() + i]) : 1.0;
        out[t][i] = static_cast<float>(Activate(body.kind, in[i]) * gate);
      }
    }
  }

  void Run(const ConvertOp&, Rows& out) const { out = In(); }

  void Run(const ReduceOp&, Rows& out) const { out = In(); }  // Summed by the caller.

  const Graph& graph_;
  const std::vector<Row>& weights_;
  const bool round_compute_;  // Values inside ops are rounded.
  const absl::Span<const TokenId> tokens_;
  std::vector<Rows> values_;
  const Op* op_ = nullptr;
};

void RoundToBFloat16(Row& row) {
  for (float& x : row) {
    x = ToFloat(ToBFloat16(x));
  }
}

}  // namespace

absl::StatusOr<ReferenceModel> ReferenceModel::Load(const Model& model,
                                                    const ReferenceOptions& options) {
  ReferenceModel reference(model, options);
  for (WeightId id = 0; id < model.graph.weights.size(); ++id) {
    const Weight& weight = model.graph.weights[id];
    Row values(size_t{weight.rows} * weight.cols);
    LAMINA_RETURN_IF_ERROR(ReadWeight(model, id, absl::MakeSpan(values)));
    if (options.round_compute && weight.rows > 1) {
      RoundToBFloat16(values);
    }
    reference.weights_.push_back(std::move(values));
  }
  return reference;
}

std::vector<std::vector<float>> ReferenceModel::Logits(absl::Span<const TokenId> tokens) const {
  return Logits({this, 1}, tokens);
}

std::vector<std::vector<float>> ReferenceModel::Logits(absl::Span<const ReferenceModel> shards,
                                                       absl::Span<const TokenId> tokens) {
  std::vector<Interpreter> interpreters;
  interpreters.reserve(shards.size());
  for (const ReferenceModel& shard : shards) {
    interpreters.emplace_back(shard.model_->graph, shard.weights_, shard.options_.round_compute,
                              tokens);
  }
  std::vector<size_t> next(shards.size(), 0);  // Op of each.
  while (next[0] < shards[0].model_->graph.ops.size()) {
    std::vector<Rows*> parts;
    for (size_t i = 0; i < shards.size(); ++i) {
      const Graph& graph = shards[i].model_->graph;
      bool reduces = false;
      while (!reduces && next[i] < graph.ops.size()) {
        const Op& op = graph.ops[next[i]++];
        Interpreter& interpreter = interpreters[i];
        interpreter.Run(op);
        const ValueType type = graph.values[op.output].type;
        if ((type == ValueType::kBF16 && shards[i].options_.round_bf16) ||
            (type == ValueType::kCompute && shards[i].options_.round_compute)) {
          for (Row& row : interpreter.value(op.output)) {
            RoundToBFloat16(row);
          }
        }
        reduces = std::holds_alternative<ReduceOp>(op.body);
        if (reduces) {
          parts.push_back(&interpreter.value(op.output));
        }
      }
    }
    Rows sum;
    for (const Rows* part : parts) {
      sum.resize(tokens.size(), Row(part->front().size(), 0.0f));
      for (size_t t = 0; t < tokens.size(); ++t) {
        for (size_t c = 0; c < sum[t].size(); ++c) {
          sum[t][c] += (*part)[t][c];
        }
      }
    }
    for (Rows* part : parts) {
      *part = sum;
    }
  }
  return interpreters[0].value(shards[0].model_->graph.logits);
}

}  // namespace lamina::test_support
