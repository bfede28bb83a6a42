// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTwoGpus[] =
    "model: m\ncompute: [{name: c0, device: cuda}]\n"
    "memory: [{name: m0, device: \"cuda:1\", capacity: 2GiB}]\n";

absl::StatusOr<ClusterConfig> Parse(const std::vector<std::string>& overrides) {
  return ParseClusterConfig(kTwoGpus, "test", overrides);
}

TEST(ClusterAttentionTest, IsChosenForBothTogetherUnlessOneIsNamed) {
  const auto config = Parse({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->attention.automatic());
  EXPECT_EQ(config->attention.Named(), config->attention);

  const auto one = Parse({"attention.decode=tensor"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(one->attention.automatic());
  EXPECT_EQ(one->attention.Named().decode, AttentionArithmetic::kTensor);
  EXPECT_EQ(one->attention.Named().prefill, AttentionArithmetic::kCanonical);
}

TEST(ClusterAttentionTest, WhatIsWrittenReadsBackAsTheSame) {
  const auto config = Parse({"attention={decode: canonical, prefill: tensor}"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attention.prefill, AttentionArithmetic::kTensor);
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->attention, config->attention);
}

TEST(ClusterAttentionTest, OneWordIsForBoth) {
  const auto word = Parse({"attention=tensor"});
  const auto both = Parse({"attention={decode: tensor, prefill: tensor}"});
  ASSERT_TRUE(word.ok()) << word.status();
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(word->attention, both->attention);
  EXPECT_EQ(ToYaml(*word), ToYaml(*both));

  const auto chosen = Parse({"attention=auto"});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_TRUE(chosen->attention.automatic());
}

TEST(ClusterAttentionTest, OnlyThoseWhoAttendMustHaveTensorCores) {
  EXPECT_TRUE(Parse({"attention={decode: tensor, prefill: tensor}"}).ok());
  EXPECT_TRUE(Parse({"attention.decode=tensor", "compute.0.device=cpu"}).ok());
  EXPECT_TRUE(Parse({"attention.prefill=tensor", "memory.0.device=cpu"}).ok());
}

TEST(ClusterAttentionTest, ANodeOnTheProcessorCannotTakePart) {
  const auto memory = Parse({"attention.decode=tensor", "memory.0.device=cpu"});
  const auto compute = Parse({"attention.prefill=tensor", "compute.0.device=cpu"});
  const auto local =
      ParseClusterConfig("model: m\npolicy: local\ncompute: [{name: c0, capacity: 2GiB}]\n", "test",
                         {"attention.decode=tensor"});

  EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(memory.status().message(),
              AllOf(HasSubstr("attention.decode: tensor contradicts memory.0.device cpu"),
                    HasSubstr("set attention.decode to canonical")));
  EXPECT_THAT(compute.status().message(),
              HasSubstr("attention.prefill: tensor contradicts compute.0.device cpu"));
  EXPECT_THAT(local.status().message(),
              HasSubstr("attention.decode: tensor contradicts compute.0.device cpu"));
}

TEST(ClusterAttentionTest, PairsAreOfProcessors) {
  const auto gpu = Parse({"attention.decode=pairs"});
  EXPECT_EQ(gpu.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(gpu.status().message(),
              AllOf(HasSubstr("attention.decode: pairs contradicts memory.0.device cuda:1"),
                    HasSubstr("put every memory node on processors")));
  EXPECT_TRUE(Parse({"attention={decode: pairs, prefill: pairs}", "compute.0.device=cpu",
                     "memory.0.device=cpu"})
                  .ok());
}

TEST(ClusterAttentionTest, PairsAreNotServedWherePoliciesFetch) {
  const auto config = Parse({"attention={decode: pairs, prefill: pairs}", "compute.0.device=cpu",
                             "memory.0.device=cpu", "policy=fetch_heads"});
  EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(config.status().message(), HasSubstr("not served by this version with policy "
                                                   "fetch_heads"));
}

TEST(ClusterAttentionTest, UnknownWordsNameTheKnownOnes) {
  EXPECT_THAT(Parse({"attention.decode=fast"}).status().message(),
              HasSubstr("'fast' is not one of auto, canonical, pairs, tiles, tensor"));
  EXPECT_THAT(Parse({"attention=fast"}).status().message(),
              HasSubstr("attention: 'fast' is not one of auto, canonical, pairs, tiles, tensor"));
  EXPECT_THAT(Parse({"attention=[tensor]"}).status().message(),
              HasSubstr("attention: wants keys and values"));
}

}  // namespace
}  // namespace lamina
