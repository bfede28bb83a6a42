// SPDX-License-Identifier: Apache-2.0
//
// Published models of each family by their settings alone (make_real_shapes.py): the graph has as
// many parameters as transformers' model, the splitter cuts it at the residual stream, and K and V
// take what their heads say.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "model/architectures/architecture.h"
#include "model/architectures/json_config_internal.h"
#include "model/splitter.h"
#include "nlohmann/json.hpp"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

// Has no tensors but sinks, which the graph holds itself; all are 0.
class NoWeights final : public WeightSource {
 public:
  explicit NoWeights(uint64_t query_heads) : sinks_{.elements = query_heads} {}

  const std::vector<TensorInfo>& tensors() const override { return none_; }
  const TensorInfo* Find(absl::string_view name) const override {
    return absl::EndsWith(name, "sinks") ? &sinks_ : nullptr;
  }
  absl::Status Read(absl::string_view, uint64_t, absl::Span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    return absl::OkStatus();
  }

 private:
  std::vector<TensorInfo> none_;
  TensorInfo sinks_;
};

const nlohmann::json& Shapes() {
  static const auto* const kShapes = [] {
    std::ifstream file(test_support::SourcePath("tests/fidelity/goldens/real_shapes.json"));
    return new nlohmann::json(nlohmann::json::parse(file));
  }();
  return *kShapes;
}

class RealShapesTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    const nlohmann::json& golden = Shapes()[GetParam()];
    const std::string text = golden.at("config").dump();
    const auto json =
        JsonConfig::Parse({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    ASSERT_TRUE(json.ok()) << json.status();
    const auto architecture =
        FindArchitectureForJson(golden.at("config").at("model_type").get<std::string>());
    ASSERT_TRUE(architecture.ok()) << architecture.status();
    config_.format = FileFormat::kHuggingFace;
    const absl::Status read = (*architecture)->read_json(*json, config_);
    ASSERT_TRUE(read.ok()) << read;
    const absl::Status checked = CheckConfig(config_);
    ASSERT_TRUE(checked.ok()) << checked;
    absl::StatusOr<Graph> graph = (*architecture)->build(config_, NoWeights(config_.query_heads));
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
  }

  ModelConfig config_;
  Graph graph_;
};

TEST_P(RealShapesTest, TheGraphHasTransformersParameters) {
  uint64_t parameters = 0;
  for (const Weight& weight : graph_.weights) {
    parameters += uint64_t{weight.rows} * weight.cols;
  }
  for (const Op& op : graph_.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      parameters += attention->descriptor.sinks.size();
    }
  }
  EXPECT_EQ(parameters, Shapes()[GetParam()].at("parameters").get<uint64_t>());
}

TEST_P(RealShapesTest, OnlyTheResidualStreamCrossesAnAttention) {
  const absl::StatusOr<SplitModel> split = SplitAtAttention(graph_);
  ASSERT_TRUE(split.ok()) << split.status();
  ASSERT_EQ(split->slices.size(), config_.layers + 1);
  for (uint32_t slice = 0; slice < config_.layers; ++slice) {
    EXPECT_EQ(split->slices[slice].context.size(), 1u) << slice;
    EXPECT_EQ(split->ContextBytesPerToken(graph_, slice), 4u * config_.width) << slice;
  }
}

TEST_P(RealShapesTest, KeysAndValuesAreThoseOfTheHeads) {
  uint32_t layers = 0;
  for (const Op& op : graph_.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      EXPECT_EQ(attention->descriptor.kv_width(), config_.kv_heads * config_.head_dim);
      EXPECT_EQ(attention->descriptor.window, config_.WindowOf(layers));
      ++layers;
    }
  }
  EXPECT_EQ(layers, config_.layers);
}

INSTANTIATE_TEST_SUITE_P(Models, RealShapesTest, ::testing::Range(size_t{0}, Shapes().size()),
                         [](const ::testing::TestParamInfo<size_t>& test) {
                           return absl::StrReplaceAll(
                               Shapes()[test.param].at("name").get<std::string>(),
                               {{"-", "_"}, {".", "_"}});
                         });

}  // namespace
}  // namespace lamina::model
