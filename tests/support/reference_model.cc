// SPDX-License-Identifier: Apache-2.0
//
// One function for each op, written from its comment in model/graph.h. Shares no code with
// kernels/.

#include "tests/support/reference_model.h"

#include <cmath>
#include <numbers>
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
  }
  LAMINA_CHECK(false);
}

// Runs ops over `values`, the rows of every value made so far.
class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::vector<Row>& weights, absl::Span<const TokenId> tokens)
      : graph_(graph), weights_(weights), tokens_(tokens), values_(graph.values.size()) {}

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

  void Run(const LinearOp& body, Rows& out) const {
    for (size_t t = 0; t < out.size(); ++t) {
      const Row& in = In()[t];
      size_t to = 0;
      for (const LinearOp::Part& part : body.parts) {
        const float* row = weights_[part.weight].data();
        for (uint32_t r = 0; r < graph_.weights[part.weight].rows; ++r, row += in.size()) {
          double sum = part.bias == kNone ? 0.0 : weights_[part.bias][r];
          for (size_t i = 0; i < in.size(); ++i) {
            sum += double{row[i]} * in[i];
          }
          out[t][to++] = static_cast<float>(sum);
        }
      }
    }
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
    std::vector<double> sum(dh, 0.0);
    double total = 0.0;
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
        const double gate = body.gated ? in[out[t].size() + i] : 1.0;
        out[t][i] = static_cast<float>(Activate(body.kind, in[i]) * gate);
      }
    }
  }

  void Run(const ConvertOp&, Rows& out) const { out = In(); }

  void Run(const ReduceOp&, Rows& out) const { out = In(); }  // Summed by the caller.

  const Graph& graph_;
  const std::vector<Row>& weights_;
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
    interpreters.emplace_back(shard.model_->graph, shard.weights_, tokens);
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
