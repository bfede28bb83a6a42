// SPDX-License-Identifier: Apache-2.0
#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/model.h"
#include "model/splitter.h"
#include "tests/support/random_model.h"
#include "tests/support/reference_model.h"

namespace lamina::model {
namespace {

using test_support::RandomModelSpec;
using test_support::ReferenceModel;
using ::testing::HasSubstr;

// Biases where the architecture has them, so that one that is added twice is seen.
RandomModelSpec Spec(const std::string& type) {
  RandomModelSpec spec{.model_type = type, .seed = 7, .layers = 3, .width = 48, .ffn_width = 80};
  spec.query_heads = 6;
  spec.kv_heads = type == "opt" || type == "gpt_neox" ? 6 : 3;
  spec.vocabulary = 64;
  spec.tied = type == "qwen2";
  spec.attention_bias = type != "mistral";
  spec.mlp_bias = type == "llama";
  if (spec.kv_heads == spec.query_heads) {  // Architectures without a head size of their own.
    spec.width = spec.query_heads * spec.head_dim;
    spec.activation = type == "opt" ? "relu" : "gelu";
  }
  return spec;
}

// The model's files, for as long as the test runs.
class Files {
 public:
  explicit Files(const RandomModelSpec& spec)
      : path_(absl::StrCat(::testing::TempDir(), "/shards_", getpid(), "_", spec.model_type)) {
    std::filesystem::create_directories(path_);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, path_).ok());
  }
  ~Files() { std::filesystem::remove_all(path_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  Model Open() const {
    absl::StatusOr<Model> model = OpenModel(path_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

 private:
  std::string path_;
};

// Heads and columns by these counts.
std::vector<ShardPart> Parts(const std::vector<uint32_t>& heads,
                             const std::vector<uint32_t>& columns) {
  std::vector<ShardPart> parts;
  uint32_t head = 0;
  uint32_t column = 0;
  for (size_t i = 0; i < heads.size(); ++i) {
    parts.push_back({.index = static_cast<uint32_t>(i),
                     .count = static_cast<uint32_t>(heads.size()),
                     .first_head = head,
                     .heads = heads[i],
                     .first_column = column,
                     .columns = columns[i]});
    head += heads[i];
    column += columns[i];
  }
  return parts;
}

std::vector<Model> Shards(const Files& files, const std::vector<ShardPart>& parts) {
  std::vector<Model> shards;
  for (const ShardPart& part : parts) {
    shards.push_back(files.Open());
    absl::StatusOr<Graph> graph = ShardGraph(shards.back().graph, part);
    EXPECT_TRUE(graph.ok()) << graph.status();
    shards.back().graph = *std::move(graph);
  }
  return shards;
}

uint32_t Reductions(const Graph& graph) {
  return static_cast<uint32_t>(std::count_if(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
    return std::holds_alternative<ReduceOp>(op.body);
  }));
}

class ShardTest : public ::testing::TestWithParam<RandomModelSpec> {};

// A spec of a family of random_decoders.cc.
RandomModelSpec Decoder(const std::string& type, const std::string& extra = "") {
  RandomModelSpec spec = Spec(type);
  spec.attention_bias = type == "gpt_oss";
  spec.extra = extra;
  if (type == "gpt_oss" || type == "mixtral") {
    spec.experts = 4;
    spec.experts_per_token = 2;
  }
  return spec;
}

using ShardSumTest = ShardTest;

// Against the whole model, sums in double.
TEST_P(ShardSumTest, PartsSumToTheWhole) {
  const Files files(GetParam());
  const Model whole = files.Open();
  const uint32_t heads = GetParam().kv_heads;
  const std::vector<TokenId> tokens = {1, 5, 9, 60, 2, 2, 33, 17, 40, 8};
  const auto expected = ReferenceModel::Load(whole)->Logits(tokens);
  for (const auto& parts :
       {Parts({1, heads - 1}, {56, 24}), Parts({heads - 2, 1, 1}, {16, 32, 32})}) {
    SCOPED_TRACE(absl::StrCat(parts.size(), " shards"));
    const std::vector<Model> models = Shards(files, parts);
    std::vector<ReferenceModel> shards;
    for (const Model& model : models) {
      shards.push_back(*ReferenceModel::Load(model));
    }

    const auto found = ReferenceModel::Logits(shards, tokens);

    for (size_t t = 0; t < tokens.size(); ++t) {
      double largest = 0;  // Values between ops are float: 2^-24 of them, some hundred times.
      for (const float logit : expected[t]) {
        largest = std::max(largest, std::abs(double{logit}));
      }
      for (size_t i = 0; i < expected[t].size(); ++i) {
        ASSERT_NEAR(found[t][i], expected[t][i], 1e-4 * std::max(1.0, largest)) << t << " " << i;
      }
    }
  }
}

TEST_P(ShardTest, EveryWeightOfALayerIsOnOneShard) {
  const Files files(GetParam());
  const Model whole = files.Open();
  const uint32_t heads = GetParam().kv_heads;
  const std::vector<Model> shards = Shards(files, Parts({1, heads - 2, 1}, {16, 32, 32}));

  uint64_t sum = 0;
  for (const Model& shard : shards) {
    sum += LinearBytes(shard.graph, /*head=*/false);
    EXPECT_LT(LinearBytes(shard.graph, false), LinearBytes(whole.graph, false));
  }

  EXPECT_EQ(sum, LinearBytes(whole.graph, false));
  EXPECT_EQ(LinearBytes(shards[0].graph, true) - LinearBytes(shards[0].graph, false),
            LinearBytes(whole.graph, true) - LinearBytes(whole.graph, false));
}

// Two for each layer, one with a parallel residual; none while attention is away.
TEST_P(ShardTest, ReductionsAreFewAndBeforeQKV) {
  const Files files(GetParam());
  const bool parallel = GetParam().model_type == "gpt_neox" && GetParam().parallel_residual;
  const uint32_t heads = GetParam().kv_heads;
  for (const Model& shard : Shards(files, Parts({1, heads - 1}, {40, 40}))) {
    EXPECT_EQ(Reductions(shard.graph), GetParam().layers * (parallel ? 1 : 2));
    const absl::StatusOr<SplitModel> split = SplitAtAttention(shard.graph);
    ASSERT_TRUE(split.ok()) << split.status();
    for (const Slice& slice : split->slices) {
      for (size_t i = slice.ops_before_send; i < slice.ops.size() && slice.attention != kNone;
           ++i) {
        EXPECT_FALSE(std::holds_alternative<ReduceOp>(shard.graph.ops[slice.ops[i]].body));
      }
      if (parallel && slice.attention != kNone) {  // The MLP still overlaps with the attention.
        EXPECT_LT(slice.ops_before_send, slice.ops.size());
      }
    }
  }
}

std::vector<RandomModelSpec> Models() {
  RandomModelSpec sequential = Spec("gpt_neox");
  sequential.parallel_residual = false;
  return {Spec("llama"),    Spec("mistral"),
          Spec("qwen2"),    Spec("opt"),
          Spec("gpt_neox"), sequential,
          Decoder("qwen3"), Decoder("gemma2", R"("sliding_window":4)")};
}

// Their routers are on all shards.
std::vector<RandomModelSpec> ModelsAndMixtures() {
  std::vector<RandomModelSpec> models = Models();
  models.push_back(Decoder("mixtral"));
  models.push_back(Decoder("gpt_oss", R"("sliding_window":4)"));
  return models;
}

std::string ModelName(const ::testing::TestParamInfo<RandomModelSpec>& test) {
  return absl::StrCat(test.param.model_type, test.param.parallel_residual ? "" : "_sequential");
}

INSTANTIATE_TEST_SUITE_P(Models, ShardTest, ::testing::ValuesIn(Models()), ModelName);
INSTANTIATE_TEST_SUITE_P(Models, ShardSumTest, ::testing::ValuesIn(ModelsAndMixtures()), ModelName);

TEST(ShardTest, RefusesNormsOverAllHeadsByName) {
  const Files files(Decoder("olmo2"));
  const absl::Status status = ShardWidthsOf(files.Open().graph).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("norms over all heads"));
}

// Quantised rows are read as a whole, since a block does not end where a shard's columns do.
TEST(ShardTest, PiecesOfQuantisedWeightsAreThoseOfTheWhole) {
  RandomModelSpec spec = Spec("llama");
  spec.attention_bias = false;
  spec.mlp_bias = false;
  spec.width = 96;
  spec.ffn_width = 96;
  const std::string path = absl::StrCat(::testing::TempDir(), "/shards_", getpid(), ".gguf");
  ASSERT_TRUE(test_support::WriteRandomGguf(spec, path, "Q8_0").ok());
  const absl::StatusOr<Model> whole = OpenModel(path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<Graph> shard = ShardGraph(whole->graph, Parts({1, 2}, {41, 55})[1]);
  ASSERT_TRUE(shard.ok()) << shard.status();

  size_t pieces = 0;
  for (WeightId id = 0; id < shard->weights.size(); ++id) {
    const Weight& weight = shard->weights[id];
    if (!weight.slice.has_value()) {
      continue;
    }
    ++pieces;
    std::vector<float> piece(size_t{weight.rows} * weight.cols);
    ASSERT_TRUE(ReadWeight(*shard, *whole->weights, id, absl::MakeSpan(piece)).ok());
    std::vector<float> all(size_t{weight.slice->whole_rows} * weight.slice->whole_cols);
    ASSERT_TRUE(whole->weights->Read(weight.name, 0, absl::MakeSpan(all)).ok());
    size_t at = 0;
    for (const WeightRange& range : weight.slice->rows) {
      for (uint32_t row = range.first; row < range.first + range.count; ++row) {
        for (uint32_t col = 0; col < weight.cols; ++col, ++at) {
          ASSERT_EQ(piece[at],
                    all[size_t{row} * weight.slice->whole_cols + weight.slice->cols.first + col])
              << weight.name;
        }
      }
    }
    EXPECT_EQ(at, piece.size());
  }
  EXPECT_EQ(pieces, 7 * spec.layers);  // q, k, v, output, gate, up, down.
  std::filesystem::remove(path);
}

TEST(ShardTest, RefusesPartsThatTheModelDoesNotHave) {
  const Files files(Spec("llama"));
  const Graph graph = files.Open().graph;
  std::vector<ShardPart> bad(5, Parts({1, 2}, {40, 40})[1]);
  bad[0].heads = 0;
  bad[1].first_head = 2;
  bad[2].columns = 0;
  bad[3].first_column = 41;
  bad[4].index = 2;
  for (const ShardPart& part : bad) {
    EXPECT_EQ(ShardGraph(graph, part).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(ShardGraph(graph, bad[1]).status().message(), HasSubstr("of 3"));
}

TEST(ShardTest, RefusesLayersOfUnlikeWidths) {
  const Files files(Spec("llama"));
  Graph graph = files.Open().graph;
  for (Op& op : graph.ops) {
    if (auto* attention = std::get_if<AttentionOp>(&op.body);
        attention != nullptr && attention->layer == 1) {
      attention->descriptor.kv_heads = 6;
    }
  }
  EXPECT_EQ(ShardWidthsOf(graph).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace lamina::model
