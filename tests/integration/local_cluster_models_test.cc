// SPDX-License-Identifier: Apache-2.0
//
// Models with windows, soft caps, sinks, experts, norms of q and k, fused projections, factors and
// layers without rope: a request's tokens are the same to the bit however the cluster is made.
// Windows end inside spans and blocks, and hide whole spans of the longest requests.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

struct Base {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
  bool shards = true;
};

RandomModelSpec Decoder(const char* type) {
  RandomModelSpec model = SmallModel();
  model.model_type = type;
  model.layers = 4;
  return model;
}

// Two kinds of layers, with ropes of their own; soft caps; norms on both sides.
Base Gemma3() {
  RandomModelSpec model = Decoder("gemma3_text");
  model.tied = true;
  model.extra = R"("query_pre_attn_scalar":32,"sliding_window":100,"attn_logit_softcapping":20.0,)"
                R"("final_logit_softcapping":10.0,"rope_parameters":{)"
                R"("full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1000000.0},)"
                R"("sliding_attention":{"rope_type":"default","rope_theta":10000.0}},)"
                R"("layer_types":["sliding_attention","full_attention","sliding_attention",)"
                R"("sliding_attention"])";
  return {.model = model};
}

// Every layer has the window.
Base Mistral() {
  RandomModelSpec model = SmallModel();
  model.model_type = "mistral";
  model.window = 270;
  return {.model = model};
}

Base GptOss() {
  RandomModelSpec model = Decoder("gpt_oss");
  model.attention_bias = true;
  model.experts = 6;
  model.experts_per_token = 2;
  model.ffn_width = 64;
  model.extra = R"("sliding_window":130)";
  return {.model = model};
}

Base Qwen3Moe() {
  RandomModelSpec model = Decoder("qwen3_moe");
  model.experts = 8;
  model.experts_per_token = 3;
  model.ffn_width = 64;
  model.extra = R"("norm_topk_prob":true)";
  return {.model = model, .compute_type = DType::kF32};
}

// Fused projections, which shards cut in pieces; rope on part of a head, with longrope's divisors.
Base Phi3() {
  RandomModelSpec model = Decoder("phi3");
  model.rotary_share = 0.75f;
  model.extra =
      R"("sliding_window":150,"rope_parameters":{"rope_type":"longrope","rope_theta":10000.0,)"
      R"("partial_rotary_factor":0.75,"original_max_position_embeddings":512,)"
      R"("short_factor":[1,1,1,1,1,1,1,1,1,1,1,1],)"
      R"("long_factor":[1.0,1.1,1.2,1.4,1.6,1.8,2.0,2.2,2.5,3.0,3.5,4.0]})";
  return {.model = model};
}

Base Granite() {
  RandomModelSpec model = Decoder("granite");
  model.extra = R"("embedding_multiplier":6.0,"residual_multiplier":0.22,)"
                R"("attention_multiplier":0.09,"logits_scaling":3.0)";
  return {.model = model};
}

// Every fourth layer has no rope, so the last of these four.
Base SmolLm3() { return {.model = Decoder("smollm3"), .compute_type = DType::kF32}; }

Base Olmo2() { return {.model = Decoder("olmo2"), .shards = false}; }

std::vector<coordinator::GenerateSpec> Requests() {
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1u, 16u, 100u, 255u, 300u, 513u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 16, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), 12));
  }
  return specs;
}

class ModelsTest : public ::testing::TestWithParam<Base> {
 protected:
  static LocalClusterOptions Plain() {
    return {.model = GetParam().model,
            .compute_type = GetParam().compute_type,
            .sequence_tokens_max = 768};
  }

  void ExpectPlainBits(const char* what, const LocalClusterOptions& options) {
    SCOPED_TRACE(what);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(Requests()), plain_);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }

  void SetUp() override {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : Requests()) {  // One after another.
      plain_.push_back(cluster->Generate(spec));
      ASSERT_TRUE(plain_.back().status.ok()) << plain_.back().status;
    }
  }

  std::vector<GenerateResult> plain_;
};

TEST_P(ModelsTest, BatchesAndChunksDoNotShow) {
  LocalClusterOptions options = Plain();
  options.chunk_tokens = 16;
  options.lanes = 2;
  ExpectPlainBits("two lanes, chunks of 16", options);
}

TEST_P(ModelsTest, PartitionsDoNotShow) {
  LocalClusterOptions options = Plain();
  options.memory_nodes = 2;
  options.lanes = 2;
  options.sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways};
  options.memory_plan_delay = Micros(200);
  options.partition = Partition::kHead;
  ExpectPlainBits("partition head", options);
  options.partition = Partition::kTokenRange;
  ExpectPlainBits("partition token_range", options);
}

TEST_P(ModelsTest, StagesAndLocalKvDoNotShow) {
  LocalClusterOptions options = Plain();
  options.stages = 2;
  options.compute_nodes = 2;
  ExpectPlainBits("two stages", options);
  options = Plain();
  options.local = true;
  ExpectPlainBits("policy local", options);
}

// Room for about one of the long ones.
TEST_P(ModelsTest, PreemptionDoesNotShow) {
  LocalClusterOptions options = Plain();
  options.slots = 800;
  ExpectPlainBits("few slots", options);
}

// Sums over shards have another order, so these bits are of their own; they do not depend on the
// partition either.
TEST_P(ModelsTest, ShardsHaveTheSameBitsInEveryPartition) {
  LocalClusterOptions options = Plain();
  options.compute_nodes = 2;
  options.shards = 2;
  if (!GetParam().shards) {
    return;  // Refused by name: model_shard_test.
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  plain_ = cluster->GenerateMany(Requests());
  options.memory_nodes = 2;
  for (const Partition partition : {Partition::kHead, Partition::kTokenRange}) {
    options.partition = partition;
    ExpectPlainBits("two shards", options);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelsTest,
                         ::testing::Values(Gemma3(), Mistral(), GptOss(), Qwen3Moe(), Olmo2(),
                                           Phi3(), Granite(), SmolLm3()),
                         [](const ::testing::TestParamInfo<Base>& test) {
                           return test.param.model.model_type;
                         });

}  // namespace
}  // namespace lamina::test_support
