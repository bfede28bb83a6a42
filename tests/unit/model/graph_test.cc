// SPDX-License-Identifier: Apache-2.0
#include "model/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace lamina::model {
namespace {

using ::testing::HasSubstr;

constexpr AttentionDescriptor kHeads = {
    .query_heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 0.25f};
constexpr uint32_t kWidth = 32;
constexpr uint32_t kVocabulary = 40;

RopeOp PlainRope() {
  return {.rotary_dim = 4, .heads = 3, .head_dim = 16, .frequencies = {1.0f, 0.1f}};
}

// One attention between an embedding and an LM head; tests break it in one place each.
GraphBuilder OneLayer(ValueId* logits) {
  GraphBuilder b;
  const WeightId table = b.AddWeight({.name = "embed", .rows = kVocabulary, .cols = kWidth});
  const WeightId gain = b.AddWeight({.name = "gain", .rows = 1, .cols = kWidth});
  const WeightId qkv = b.AddWeight({.name = "qkv", .rows = 64, .cols = kWidth});
  const WeightId out = b.AddWeight({.name = "out", .rows = kWidth, .cols = 32});
  const WeightId up = b.AddWeight({.name = "up", .rows = 96, .cols = kWidth});
  const WeightId down = b.AddWeight({.name = "down", .rows = kWidth, .cols = 48});
  const ValueId x = b.Embed("embed", table, kWidth);
  b.SetScope("layers.0.");
  const ValueId normed = b.Norm("norm", x, {.weight = gain});
  const ValueId projected = b.Linear("qkv", normed, {{.weight = qkv}});
  const ValueId rotated = b.Rope("rope", projected, PlainRope());
  const ValueId attended = b.Attention("attention", rotated, {.layer = 0, .descriptor = kHeads});
  const ValueId converted = b.Convert("convert", attended);
  const ValueId projected_out = b.Linear("out", converted, {{.weight = out}});
  const ValueId middle = b.Add("middle", {x, projected_out});
  const ValueId gate = b.Linear("up", b.Norm("norm2", middle, {.weight = gain}), {{.weight = up}});
  const ValueId active = b.Activation("activation", gate, {.gated = true});
  const ValueId end = b.Add("residual", {middle, b.Linear("down", active, {{.weight = down}})});
  b.SetScope("");
  *logits = b.Linear("head", b.Norm("final", end, {.weight = gain}), {{.weight = table}});
  return b;
}

Graph ValidGraph() {
  ValueId logits = kNone;
  GraphBuilder builder = OneLayer(&logits);
  absl::StatusOr<Graph> graph = std::move(builder).Finish(logits);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

OpId Find(const Graph& graph, absl::string_view name) {
  for (OpId id = 0; id < graph.ops.size(); ++id) {
    if (graph.ops[id].name == name) {
      return id;
    }
  }
  ADD_FAILURE() << "no op " << name;
  return 0;
}

void ExpectInvalid(const Graph& graph, const std::string& message) {
  const absl::Status status = graph.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(GraphBuilderTest, NamesCarryTheScopeAndTypesFollowTheOps) {
  const Graph graph = ValidGraph();

  const Value& rotated = graph.values[graph.ops[Find(graph, "layers.0.rope")].output];
  const Value& normed = graph.values[graph.ops[Find(graph, "layers.0.norm")].output];

  EXPECT_EQ(graph.attention_count(), 1u);
  EXPECT_EQ(rotated.name, "layers.0.rope");
  EXPECT_EQ(rotated.type, ValueType::kBF16);
  EXPECT_EQ(rotated.bytes_per_token(), 128u);
  EXPECT_EQ(normed.type, ValueType::kCompute);
  EXPECT_EQ(graph.values[graph.logits].width, kVocabulary);
  EXPECT_EQ(graph.values[graph.logits].bytes_per_token(), 160u);
}

TEST(GraphBuilderTest, GivesOneIdToAWeightThatIsUsedTwice) {
  GraphBuilder b;
  const WeightId first = b.AddWeight({.name = "embed", .rows = 8, .cols = 4});
  const WeightId again = b.AddWeight({.name = "embed", .rows = 8, .cols = 4});
  const WeightId fewer = b.AddWeight({.name = "embed", .rows = 6, .cols = 4, .first_row = 2});

  EXPECT_EQ(first, again);
  EXPECT_NE(first, fewer);
  EXPECT_EQ(b.graph().weights.size(), 2u);
}

TEST(GraphBuilderTest, FinishRefusesAnInputThatIsNoValue) {
  GraphBuilder b;
  const WeightId table = b.AddWeight({.name = "embed", .rows = 8, .cols = 4});
  const ValueId x = b.Embed("embed", table, 4);
  const ValueId sum = b.Add("sum", {x, kNone});

  const absl::StatusOr<Graph> graph = std::move(b).Finish(sum);

  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("op sum: input 4294967295"));
}

TEST(GraphValidateTest, RefusesAnInputThatIsMadeLater) {
  Graph graph = ValidGraph();
  graph.ops[Find(graph, "layers.0.middle")].inputs[0] =
      graph.ops[Find(graph, "layers.0.residual")].output;
  ExpectInvalid(graph, "op layers.0.middle: input layers.0.residual is not made before it");
}

TEST(GraphValidateTest, RefusesAWrongNumberOfInputs) {
  Graph graph = ValidGraph();
  graph.ops[Find(graph, "layers.0.middle")].inputs.pop_back();
  ExpectInvalid(graph, "op layers.0.middle: a sum takes two");

  graph = ValidGraph();
  graph.ops[Find(graph, "layers.0.rope")].inputs.clear();
  ExpectInvalid(graph, "op layers.0.rope: takes exactly one input");

  graph = ValidGraph();
  graph.ops[Find(graph, "embed")].inputs.push_back(0);
  ExpectInvalid(graph, "op embed: an embedding takes no inputs");
}

TEST(GraphValidateTest, RefusesTwoProducersOfOneValue) {
  Graph graph = ValidGraph();
  graph.ops[Find(graph, "layers.0.norm2")].output = graph.ops[Find(graph, "layers.0.norm")].output;
  ExpectInvalid(graph, "value layers.0.norm2: no op makes it");
}

TEST(GraphValidateTest, RefusesAnOutputThatIsNoValue) {
  Graph graph = ValidGraph();
  graph.values.pop_back();
  ExpectInvalid(graph, "op head: its output is not a value");
}

TEST(GraphValidateTest, RefusesWidthsThatDisagree) {
  Graph graph = ValidGraph();
  graph.values[graph.ops[Find(graph, "layers.0.out")].output].width = 31;
  ExpectInvalid(graph, "op layers.0.out: output is 31 wide, expected 32");

  graph = ValidGraph();
  std::get<AttentionOp>(graph.ops[Find(graph, "layers.0.attention")].body).descriptor.kv_heads = 2;
  ExpectInvalid(graph, "op layers.0.attention: input is 64 wide, expected 96");

  graph = ValidGraph();
  std::get<ActivationOp>(graph.ops[Find(graph, "layers.0.activation")].body).gated = false;
  ExpectInvalid(graph, "op layers.0.activation: input is 96 wide, expected 48");
}

TEST(GraphValidateTest, RefusesTypesThatDisagree) {
  Graph graph = ValidGraph();
  graph.ops[Find(graph, "layers.0.out")].inputs[0] =
      graph.ops[Find(graph, "layers.0.attention")].output;
  ExpectInvalid(graph, "op layers.0.out: input layers.0.attention has a type");

  graph = ValidGraph();
  graph.values[graph.ops[Find(graph, "layers.0.norm")].output].type = ValueType::kBF16;
  ExpectInvalid(graph, "op layers.0.norm: its output has a type");
}

TEST(GraphValidateTest, RefusesWeightsOfTheWrongShape) {
  Graph graph = ValidGraph();
  graph.weights[std::get<EmbedOp>(graph.ops[0].body).table].cols = 16;
  ExpectInvalid(graph, "op embed: table embed has rows of 16, expected 32");

  graph = ValidGraph();
  std::get<NormOp>(graph.ops[Find(graph, "layers.0.norm")].body).bias = 99;
  ExpectInvalid(graph, "op layers.0.norm: bias is not a weight");

  graph = ValidGraph();
  graph.weights.push_back({.name = "tall", .rows = 2, .cols = kWidth});
  std::get<NormOp>(graph.ops[Find(graph, "layers.0.norm")].body).weight =
      static_cast<WeightId>(graph.weights.size() - 1);
  ExpectInvalid(graph, "op layers.0.norm: weight tall has 2 rows, expected a vector");
}

TEST(GraphValidateTest, RefusesASumOfRowsThatWrapsAround32Bits) {
  GraphBuilder b;
  const WeightId table = b.AddWeight({.name = "embed", .rows = 8, .cols = 4});
  const WeightId gain = b.AddWeight({.name = "gain", .rows = 1, .cols = 4});
  const WeightId huge = b.AddWeight({.name = "huge", .rows = 0x80000000u, .cols = 4});
  const ValueId x = b.Norm("norm", b.Embed("embed", table, 4), {.weight = gain});
  const ValueId logits = b.Linear("head", x, {{.weight = huge}, {.weight = huge}});

  const absl::StatusOr<Graph> graph = std::move(b).Finish(logits);

  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("output is 0 wide"));
}

TEST(GraphValidateTest, RefusesFusedRowsThatAreNotThreeTimesTheHeads) {
  Graph graph = ValidGraph();
  graph.weights[2].order = WeightRows::kSplitFusedQkv;
  graph.weights[2].heads = 5;
  ExpectInvalid(graph, "weight qkv: 64 rows are not q, k and v of 5 heads");
}

TEST(GraphValidateTest, RefusesRopesThatDoNotFitTheirHeads) {
  Graph graph = ValidGraph();
  RopeOp& rope = std::get<RopeOp>(graph.ops[Find(graph, "layers.0.rope")].body);

  rope.rotary_dim = 5;
  ExpectInvalid(graph, "rotary_dim 5 must be even");
  rope.rotary_dim = 6;
  ExpectInvalid(graph, "2 frequencies, but rotary_dim 6 needs 3");
  rope.rotary_dim = 4;
  rope.heads = 5;
  ExpectInvalid(graph, "5 heads of 16 do not fit a row of 64");
}

TEST(GraphValidateTest, RefusesHeadsThatAttentionCannotCompute) {
  Graph graph = ValidGraph();
  AttentionDescriptor& descriptor =
      std::get<AttentionOp>(graph.ops[Find(graph, "layers.0.attention")].body).descriptor;

  descriptor.kv_heads = 0;
  ExpectInvalid(graph, "2 query heads must be a multiple of 0 KV heads");
  descriptor.kv_heads = 1;
  descriptor.head_dim = 24;
  ExpectInvalid(graph, "head_dim 24 must be a multiple of 16");
}

// A router and two experts behind a row of the compute type.
Graph Mixture() {
  GraphBuilder b;
  const WeightId table = b.AddWeight({.name = "embed", .rows = kVocabulary, .cols = kWidth});
  const WeightId gain = b.AddWeight({.name = "gain", .rows = 1, .cols = kWidth});
  const WeightId router = b.AddWeight({.name = "router", .rows = 2, .cols = kWidth});
  const ValueId normed = b.Norm("norm", b.Embed("embed", table, kWidth), {.weight = gain});
  ExpertsOp experts{.chosen = 1, .hidden = 24};
  for (uint32_t i = 0; i < 2; ++i) {
    const Weight::Stack stack = {.count = 2, .index = i};
    experts.experts.push_back(
        {.gate_up = {{.weight =
                          b.AddWeight({.name = "up", .rows = 48, .cols = kWidth, .stack = stack})}},
         .down = {.weight =
                      b.AddWeight({.name = "down", .rows = kWidth, .cols = 24, .stack = stack})}});
  }
  const ValueId route = b.Route("route", b.Linear("router", normed, {{.weight = router}}),
                                {.experts = 2, .chosen = 1});
  const ValueId out = b.Experts("experts", normed, route, kWidth, std::move(experts));
  const ValueId logits =
      b.Linear("head", b.Norm("final", out, {.weight = gain}), {{.weight = table}});
  absl::StatusOr<Graph> graph = std::move(b).Finish(logits);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(GraphValidateTest, RefusesExpertsThatDoNotFit) {
  Graph graph = Mixture();
  EXPECT_EQ(graph.weights.size(), 7u) << "experts of one tensor are weights of their own";
  EXPECT_EQ(MatrixWeights(graph, graph.ops[Find(graph, "experts")]), 2u * 3 * kWidth * 24);
  EXPECT_EQ(MatrixWeightsOfRow(graph, graph.ops[Find(graph, "experts")]), 3u * kWidth * 24);
  std::get<ExpertsOp>(graph.ops[Find(graph, "experts")].body).hidden = 23;
  EXPECT_THAT(std::string(graph.Validate().message()), HasSubstr("gate_up"));
  graph = Mixture();
  std::get<ExpertsOp>(graph.ops[Find(graph, "experts")].body).chosen = 3;
  EXPECT_FALSE(graph.Validate().ok());
  graph = Mixture();
  std::get<RouteOp>(graph.ops[Find(graph, "route")].body).chosen = 0;
  EXPECT_THAT(std::string(graph.Validate().message()), HasSubstr("0 experts"));
  graph = Mixture();
  graph.ops[Find(graph, "experts")].inputs.pop_back();
  EXPECT_THAT(std::string(graph.Validate().message()), HasSubstr("its route"));
  graph = Mixture();
  graph.weights.back().stack.index = 2;
  EXPECT_THAT(std::string(graph.Validate().message()), HasSubstr("number 2 of 2"));
}

TEST(GraphValidateTest, RefusesSinksThatAreNotOneForEachQueryHead) {
  Graph graph = ValidGraph();
  std::get<AttentionOp>(graph.ops[Find(graph, "layers.0.attention")].body).descriptor.sinks = {
      1.0f};
  EXPECT_THAT(std::string(graph.Validate().message()), HasSubstr("1 sinks for 2 query heads"));
}

TEST(GraphValidateTest, RefusesAttentionOutOfLayerOrder) {
  Graph graph = ValidGraph();
  std::get<AttentionOp>(graph.ops[Find(graph, "layers.0.attention")].body).layer = 1;
  ExpectInvalid(graph, "attention of layer 1 where layer 0 is due");
}

TEST(GraphValidateTest, RefusesLogitsThatAreNotALinearOutput) {
  Graph graph = ValidGraph();
  graph.logits = kNone;
  ExpectInvalid(graph, "logits: not a value");
  graph.logits = graph.ops[Find(graph, "layers.0.residual")].output;
  ExpectInvalid(graph, "op layers.0.residual: the logits must come from a linear op");
}

}  // namespace
}  // namespace lamina::model
