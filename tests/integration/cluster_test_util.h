// SPDX-License-Identifier: Apache-2.0
//
// What the tests of a local cluster share: prompts, requests, and comparison to the bit.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "tests/support/local_cluster.h"

namespace lamina::test_support {

inline RandomModelSpec SmallModel() {
  return {.model_type = "llama",
          .seed = 41,
          .layers = 2,
          .width = 64,
          .ffn_width = 96,
          .query_heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .vocabulary = 96,
          .positions_max = 1024};
}

// Parallel residual and partial rotary: the context of an attention is more than the residual
// stream's copy, and work is left to do while it is away.
inline RandomModelSpec SmallParallelModel() {
  return {.model_type = "gpt_neox",
          .seed = 42,
          .layers = 3,
          .width = 64,
          .ffn_width = 96,
          .query_heads = 2,
          .kv_heads = 2,
          .head_dim = 32,
          .vocabulary = 96,
          .positions_max = 1024,
          .attention_bias = true,
          .activation = "gelu",
          .rotary_share = 0.5f};
}

inline std::vector<TokenId> RandomPrompt(size_t tokens, uint64_t seed, uint32_t vocabulary = 96) {
  Prng random(seed);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>(random.Below(vocabulary)));
  }
  return prompt;
}

inline coordinator::GenerateSpec Greedy(std::vector<TokenId> prompt, uint32_t max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.logprobs = 2},
          .max_tokens = max_tokens,
          .ignore_eos = true};
}

inline coordinator::GenerateSpec Sampled(std::vector<TokenId> prompt, uint32_t max_tokens,
                                         uint64_t seed) {
  coordinator::GenerateSpec spec = Greedy(std::move(prompt), max_tokens);
  spec.sampling.temperature = 1.5f;
  spec.sampling.top_k = 40;
  spec.sampling.top_p = 0.95f;
  spec.sampling.repetition_penalty = 1.1f;
  spec.sampling.seed = seed;
  return spec;
}

// Half of them greedy, half sampled; 150 tokens each.
inline std::vector<coordinator::GenerateSpec> LongRequests(size_t count) {
  std::vector<coordinator::GenerateSpec> specs;
  for (size_t i = 0; i < count; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(5 + 9 * i, i);
    specs.push_back(i % 2 == 0 ? Greedy(std::move(prompt), 150)
                               : Sampled(std::move(prompt), 150, i));
  }
  return specs;
}

// Around the borders of chunks (16) and of attention blocks (256).
inline constexpr size_t kPromptTokens[] = {1,  2,  3,   7,   15,  16,  17,  31,
                                           33, 64, 100, 255, 256, 257, 300, 513};

inline std::vector<coordinator::GenerateSpec> MixedRequests() {
  std::vector<coordinator::GenerateSpec> specs;
  for (size_t i = 0; i < std::size(kPromptTokens); ++i) {
    std::vector<TokenId> prompt = RandomPrompt(kPromptTokens[i], i);
    specs.push_back(i % 4 == 3 ? Sampled(std::move(prompt), 20, i)
                               : Greedy(std::move(prompt), static_cast<uint32_t>(12 + i)));
  }
  return specs;
}

inline std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

inline void ExpectSameChoice(const ChoiceResult& found, const ChoiceResult& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(Bits(found.logprobs), Bits(expected.logprobs));
  EXPECT_EQ(found.text, expected.text);
  EXPECT_EQ(found.finish, expected.finish);
}

// One OK choice each.
inline void ExpectSame(const std::vector<GenerateResult>& found,
                       const std::vector<GenerateResult>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ASSERT_EQ(found[i].choices.size(), 1u);
    ExpectSameChoice(found[i].choices[0], expected[i].choices[0]);
  }
}

inline std::unique_ptr<LocalCluster> MakeCluster(const LocalClusterOptions& options) {
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Create(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

// What `lamina status` says of where the node has its windows.
inline std::string WindowsOf(LocalCluster& cluster, const std::string& name) {
  for (const coordinator::NodeReport& node : cluster.engine().GetStatus().nodes) {
    if (node.member.name == name) {
      return node.windows;
    }
  }
  return "";
}

}  // namespace lamina::test_support
