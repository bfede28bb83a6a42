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
        std::pair("bf16", WeightsForm::kBF16)}) {
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
              HasSubstr("auto, packed, bf16"));
}

TEST(WeightsTest, PackedContradictsF32) {
  const absl::Status status =
      Parse({"compute.0.weights=packed", "compute.0.compute_type=f32"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(),
              HasSubstr("compute.0.weights: packed contradicts compute_type f32"));
}

TEST(WeightsTest, PackedWeightsFromAStoreAreUnimplemented) {
  const absl::Status status =
      Parse({"compute.0.weights=packed", "compute.0.weights_budget=1GiB"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(), HasSubstr("do not come from a store"));
}

TEST(WeightsTest, PackedWeightsOnADeviceAreUnimplemented) {
  const absl::Status status =
      Parse({"compute.0.weights=packed", "compute.0.device=cuda:0"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(), HasSubstr("compute on cuda:0"));
}

}  // namespace
}  // namespace lamina
