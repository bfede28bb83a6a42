// SPDX-License-Identifier: Apache-2.0
//
// Graph: a model as ops with named edges. An architecture file builds it; the splitter, the
// executor and the cost model know only this.
//
// A Value is an edge: a tensor [tokens, width] with one producer and any number of consumers. Token
// ids and positions of the rows are known everywhere and are not values. Weights are named, not
// values. Ops are stored in an order in which they can run.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"

namespace lamina::model {

using ValueId = uint32_t;
using OpId = uint32_t;
using WeightId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;

// What a value is stored as. kCompute is the deployment's compute type (bf16 or f32).
enum class ValueType : uint8_t { kF32, kBF16, kCompute };

struct Value {
  std::string name;    // "layers.3.residual"
  uint32_t width = 0;  // Elements per token.
  ValueType type = ValueType::kF32;
  OpId producer = kNone;

  // With kCompute counted as two bytes.
  uint64_t bytes_per_token() const { return uint64_t{width} * (type == ValueType::kF32 ? 4 : 2); }
};

// How rows of a stored tensor become rows of the weight we compute with.
enum class WeightRows : uint8_t {
  kAsStored,
  // Stored [heads, 3, head_dim, in] (GPT-NeoX in Hugging Face files): becomes all q, then k, then
  // v.
  kSplitFusedQkv,
  // Stored [cols, rows] (the experts of gpt-oss in Hugging Face files).
  kTransposed,
};

struct WeightRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// Which piece of a weight is meant (model/shard.h): rows of these ranges, one behind the other, and
// of each row these columns. A vector of n counts as n rows of one.
struct WeightSlice {
  uint32_t whole_rows = 0;  // Shape of the whole weight, after `order`.
  uint32_t whole_cols = 0;
  std::vector<WeightRange> rows;
  WeightRange cols;
};

struct Weight {
  std::string name;   // The tensor's name in the file.
  uint32_t rows = 0;  // out_features, or the vocabulary of an embedding, or 1 for a vector.
  uint32_t cols = 0;  // in_features, or the width.
  WeightRows order = WeightRows::kAsStored;
  uint32_t heads = 0;  // For kSplitFusedQkv.
  // Rows of the stored tensor to leave out at the front (OPT's learned positions start at 2).
  uint32_t first_row = 0;
  // Number `index` of `count` matrices (or vectors) of this shape in one tensor, the experts of a
  // layer; count 0: the tensor is this one alone.
  struct Stack {
    uint32_t count = 0;
    uint32_t index = 0;
    friend bool operator==(const Stack&, const Stack&) = default;
  };
  Stack stack = {};
  // Rows first, first + step, ... of the stored ones: gate and up of gpt-oss take turns. Step 1:
  // the stored rows are these, behind first_row.
  uint32_t row_step = 1;
  // Added to every element: Gemma's files hold the weights of norms less one.
  float offset = 0.0f;
  std::optional<WeightSlice> slice = {};  // Then `rows` and `cols` are the piece's.
};

enum class NormKind : uint8_t { kRms, kLayer };
enum class RopeLayout : uint8_t { kHalves, kInterleaved };
// kClampedSwiglu is gpt-oss': with gate at most 7 and up in [-7, 7],
// gate * sigmoid(1.702 gate) * (up + 1). It is always gated.
enum class ActivationKind : uint8_t { kRelu, kSilu, kGeluErf, kGeluTanh, kClampedSwiglu };

// out[t] = table[id[t]], f32.
struct EmbedOp {
  WeightId table = kNone;
};

// out[t] = in[t] + table[position[t]]: learned positions.
struct PositionEmbedOp {
  WeightId table = kNone;
};

// Output in the compute type, or f32 where a sum follows.
struct NormOp {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
  WeightId weight = kNone;
  WeightId bias = kNone;  // kNone for none.
};

// out = in W^T + b with W the parts stacked by rows: q, k and v of one layer are one op, and so are
// gate and up. Output f32.
struct LinearOp {
  struct Part {
    WeightId weight = kNone;
    WeightId bias = kNone;
  };
  std::vector<Part> parts;
};

// In and out: a row [q | k | v] f32. RMS norms of q and k, v as it is: of each head by itself, with
// weights [head_dim] that all heads share; or with `whole` of all heads together, with weights
// [heads * head_dim].
struct HeadNormOp {
  float epsilon = 1e-6f;
  WeightId q_weight = kNone;
  WeightId k_weight = kNone;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  bool whole = false;
};

// out = factor * in, f32.
struct ScaleOp {
  float factor = 1.0f;
};

// Rounds a row [q | k | v] to bf16 after rotating the q and k heads. rotary_dim 0 rotates nothing.
struct RopeOp {
  RopeLayout layout = RopeLayout::kHalves;
  uint32_t rotary_dim = 0;
  uint32_t heads = 0;  // Leading heads that are rotated: Hq + Hkv.
  uint32_t head_dim = 0;
  float magnitude = 1.0f;
  std::vector<float> frequencies;  // [rotary_dim / 2], radians per position, after scaling.
};

// In: a row [q | k | v] bf16. Out: [query_heads * head_dim] bf16.
struct AttentionOp {
  uint32_t layer = 0;
  AttentionDescriptor descriptor;
};

// out = in[0] + in[1] (+ in[2] ...), left to right, f32.
struct AddOp {};

// out = act(in), or with `gated` act(in[:, :n]) * in[:, n:]; compute type.
struct ActivationOp {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = false;
};

// bf16 or f32 to the compute type.
struct ConvertOp {};

// How the scores of a router become the weights of the experts that it chooses.
enum class RouterKind : uint8_t {
  kSoftmax,            // Softmax over all experts; the chosen ones keep their shares,
  kSoftmaxNormalised,  // divided by their sum.
  // Softmax over the chosen ones alone: the same in mathematics, another rounding.
  kChosenSoftmax,
};

// In: scores of the experts, f32. Out: [2 * chosen] f32: the ids of the chosen experts, ascending,
// then their weights in the same order. The highest scores are chosen; of equal ones the lower id.
struct RouteOp {
  RouterKind kind = RouterKind::kSoftmaxNormalised;
  uint32_t experts = 0;
  uint32_t chosen = 0;
};

// In: a row in the compute type, and what a RouteOp made of it. Out: the sum over the chosen
// experts, in ascending order, of weight * (down act(gate_up in)), f32.
struct ExpertsOp {
  struct Expert {
    std::vector<LinearOp::Part> gate_up;  // Stacked by rows: all of gate, then all of up.
    LinearOp::Part down;
  };
  std::vector<Expert> experts;
  uint32_t chosen = 0;  // Experts that a row chooses.
  uint32_t hidden = 0;  // Columns of an expert's `down`.
  ActivationKind kind = ActivationKind::kSilu;
};

// In a shard's graph (model/shard.h): out = in of shard 0 + in of shard 1 + ..., in that order,
// f32. What runs the graph exchanges them.
struct ReduceOp {};

using OpBody =
    std::variant<EmbedOp, PositionEmbedOp, NormOp, HeadNormOp, LinearOp, ScaleOp, RopeOp,
                 AttentionOp, AddOp, ActivationOp, ConvertOp, RouteOp, ExpertsOp, ReduceOp>;

struct Op {
  std::string name;  // "layers.3.attention"
  std::vector<ValueId> inputs;
  ValueId output = kNone;
  OpBody body;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Weight> weights;
  ValueId logits =
      kNone;  // The output, [tokens, vocabulary] f32; its producer is the LM head, a LinearOp.
  // What the LM head's output goes through, element by element: x = scale * x, then, where
  // soft_cap is not 0, x = soft_cap * tanh(x / soft_cap).
  struct LogitShape {
    float scale = 1.0f;
    float soft_cap = 0.0f;
    bool plain() const { return scale == 1.0f && soft_cap == 0.0f; }
  };
  LogitShape logit_shape;

  uint32_t attention_count() const;

  // Every op's inputs are made before it, ids are in range, widths agree, one attention per layer
  // in order. Errors: kInvalidArgument naming the op.
  absl::Status Validate() const;
};

// How many elements the matrices of an op have: of a LinearOp, and of all experts of an ExpertsOp.
uint64_t MatrixWeights(const Graph& graph, const Op& op);
// Counts only the experts that one row takes part in, for an ExpertsOp.
uint64_t MatrixWeightsOfRow(const Graph& graph, const Op& op);

// Appends ops and values to a graph; architecture files are written with it. Names get the current
// scope ("layers.3.") in front.
class GraphBuilder {
 public:
  void SetScope(absl::string_view scope) { scope_ = std::string(scope); }

  WeightId AddWeight(Weight weight);  // Returns the earlier id if name and rows are known.
  ValueId Embed(absl::string_view name, WeightId table, uint32_t width);
  ValueId PositionEmbed(absl::string_view name, ValueId in, WeightId table);
  ValueId Norm(absl::string_view name, ValueId in, NormOp norm,
               ValueType type = ValueType::kCompute);
  ValueId HeadNorm(absl::string_view name, ValueId qkv, HeadNormOp norm);
  ValueId Scale(absl::string_view name, ValueId in, float factor);
  ValueId Linear(absl::string_view name, ValueId in, std::vector<LinearOp::Part> parts);
  ValueId Rope(absl::string_view name, ValueId in, RopeOp rope);
  ValueId Attention(absl::string_view name, ValueId qkv, AttentionOp attention);
  ValueId Add(absl::string_view name, std::vector<ValueId> in);
  ValueId Activation(absl::string_view name, ValueId in, ActivationOp activation);
  ValueId Convert(absl::string_view name, ValueId in);
  ValueId Route(absl::string_view name, ValueId scores, RouteOp route);
  ValueId Experts(absl::string_view name, ValueId in, ValueId route, uint32_t width,
                  ExpertsOp experts);
  void SetLogitShape(Graph::LogitShape shape) { graph_.logit_shape = shape; }

  const Graph& graph() const { return graph_; }
  // Sets the output and validates.
  absl::StatusOr<Graph> Finish(ValueId logits) &&;

 private:
  ValueId Append(absl::string_view name, std::vector<ValueId> inputs, uint32_t width,
                 ValueType type, OpBody body);
  uint32_t WidthOf(ValueId id) const;  // 0 for an id that is no value; Finish() refuses it.

  std::string scope_;
  Graph graph_;
  std::multimap<std::string, WeightId> weights_by_name_;
};

}  // namespace lamina::model
