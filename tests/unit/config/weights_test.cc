// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::HasSubstr;

constexpr char kLocal[] =
    "model: m\npolicy: local\ncompute: [{name: c0, cores: \"0-1\", capacity: 2GiB}]\n";

absl::StatusOr<ClusterConfig> Parse(const std::vector<std::string>& overrides) {
  return ParseClusterConfig(kLocal, "test", overrides);
}

TEST(WeightsTest, AreAutoUnlessSaid) {
  EXPECT_EQ(Parse({})->compute[0].weights, WeightsForm::kAuto);
}

TEST(WeightsTest, WhatIsWrittenReadsBackAsTheSame) {
  for (const auto& [word, form] :
       {std::pair("auto", WeightsForm::kAuto), std::pair("packed", WeightsForm::kPacked),
        std::pair("bf16", WeightsForm::kBF16), std::pair("int8", WeightsForm::kInt8)}) {
    const auto config = Parse({std::string("compute.0.weights=") + word});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->compute[0].weights, form);
    const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->compute[0].weights, form);
  }
}

TEST(WeightsTest, AnotherWordIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(Parse({"compute.0.weights=int4"}).status().ToString(),
              HasSubstr("auto, packed, bf16, int8"));
}

TEST(WeightsTest, PackedContradictsF32) {
  const absl::Status status =
      Parse({"compute.0.weights=packed", "compute.0.compute_type=f32"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(),
              HasSubstr("compute.0.weights: packed contradicts compute_type f32"));
}

TEST(WeightsTest, OneLaneWhereWeightsComeUnlessSaid) {
  constexpr char kPools[] =
      "model: m\ncompute: [{name: c0, weights_budget: 1GiB}]\n"
      "memory: [{name: m0, capacity: 1GiB}]\n";
  const auto one = ParseClusterConfig(kPools, "test", {});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->pipeline.lanes, 1u);
  const auto four = ParseClusterConfig(kPools, "test", {"pipeline.lanes=4"});
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(four->pipeline.lanes, 4u);
}

constexpr char kFetched[] =
    "model: m\npolicy: fetch_recompute\ncompute: [{name: c0, weights_budget: 1GiB}]\n"
    "memory: [{name: m0, capacity: 1GiB}]\n";

TEST(WeightsTest, WhatMakesKAndVComesFirstUnlessSaid) {
  for (const std::string policy : {"policy=fetch_recompute", "policy=fetch_hybrid",
                                   "policies=[attend_remote, fetch_recompute]"}) {
    const auto first = ParseClusterConfig(kFetched, "test", {policy});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(first->fetch.kv_weights_first);
    EXPECT_THAT(ToYaml(*first), testing::Not(HasSubstr("kv_weights_first")));
    const auto off = ParseClusterConfig(kFetched, "test", {policy, "fetch.kv_weights_first=false"});
    ASSERT_TRUE(off.ok()) << off.status();
    EXPECT_FALSE(off->fetch.kv_weights_first);
    const auto again = ParseClusterConfig(ToYaml(*off), "test", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE(again->fetch.kv_weights_first);
  }
}

TEST(WeightsTest, OneLayerComesAheadOrNone) {
  EXPECT_EQ(ParseClusterConfig(kFetched, "test", {})->compute[0].weights_ahead, 1u);
  const auto none = ParseClusterConfig(kFetched, "test", {"compute.0.weights_ahead=0"});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->compute[0].weights_ahead, 0u);
  EXPECT_EQ(ParseClusterConfig(ToYaml(*none), "test", {})->compute[0].weights_ahead, 0u);
  EXPECT_THAT(
      ParseClusterConfig(kFetched, "test", {"compute.0.weights_ahead=2"}).status().ToString(),
      HasSubstr("compute.0.weights_ahead: 2 is neither 0 nor 1"));
  EXPECT_THAT(Parse({"compute.0.weights_ahead=0"}).status().ToString(),
              HasSubstr("compute.0.weights_ahead: says how far ahead weights come that exceed "
                        "weights_budget, which the node has not"));
}

TEST(WeightsTest, AnOrderOfWhatDoesNotStreamIsRefused) {
  const auto error = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"fetch={kv_weights_first: false}"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return ParseClusterConfig(kFetched, "test", all).status().ToString();
  };
  EXPECT_THAT(error({"compute.0.weights_budget=null"}),
              HasSubstr("no compute node has a weights_budget; remove it, or give one"));
  EXPECT_THAT(error({"policy=fetch_heads"}),
              HasSubstr("fetch.kv_weights_first: says in which order streamed weights come, and "
                        "the policy is fetch_heads; remove it, or set policy to fetch_recompute"));
  EXPECT_THAT(error({"policy=attend_remote"}), HasSubstr("fetch: says how K and V are fetched"));
  EXPECT_THAT(error({"policy=auto"}), HasSubstr("to which kv_weights_first belongs"));
}

TEST(WeightsTest, AllFormsComeFromAStore) {
  for (const char* form : {"auto", "packed", "bf16", "int8"}) {
    const auto config =
        Parse({std::string("compute.0.weights=") + form, "compute.0.weights_budget=1GiB"});
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

TEST(WeightsTest, PackedWeightsOnADeviceAreUnimplemented) {
  const absl::Status status =
      Parse({"compute.0.weights=packed", "compute.0.device=cuda:0"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(), HasSubstr("compute on cuda:0"));
}

TEST(WeightsTest, Int8IsLossyAndAnotherModel) {
  const auto plain = Parse({});
  const auto int8 = Parse({"compute.0.weights=int8"});
  ASSERT_TRUE(plain.ok() && int8.ok()) << int8.status();
  EXPECT_FALSE(plain->IsLossy());
  EXPECT_TRUE(int8->IsLossy());
  EXPECT_EQ(plain->FingerprintOf("0123"), "0123");
  EXPECT_EQ(int8->FingerprintOf("0123"), "0123-int8");
}

TEST(WeightsTest, Int8OfSomeComputeNodesIsRefused) {
  constexpr char kTwo[] =
      "model: m\ncompute: [{name: c0, weights: int8}, {name: c1}]\n"
      "memory: [{name: m0, capacity: 1GiB}]\n";
  const absl::Status status = ParseClusterConfig(kTwo, "test", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(),
              HasSubstr("compute.1.weights: auto contradicts compute.0.weights: int8"));
  const auto both = ParseClusterConfig(kTwo, "test", {"compute.1.weights=int8"});
  EXPECT_TRUE(both.ok()) << both.status();
}

TEST(WeightsTest, Int8IsRefusedWhereBlocksAreNotServed) {
  for (const auto& [key, words] :
       {std::pair("compute.0.compute_type=f32", "int8 contradicts compute_type f32"),
        std::pair("compute.0.device=cuda:0", "int8 is not served by this version with compute")}) {
    EXPECT_THAT(Parse({"compute.0.weights=int8", key}).status().ToString(), HasSubstr(words));
  }
}

}  // namespace
}  // namespace lamina
