// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/cluster_config.h"
#include "common/units.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kLocal[] =
    "model: m\npolicy: local\ncompute: [{name: c0, cores: \"0-1\", capacity: 2GiB}]\n";

absl::StatusOr<ClusterConfig> Parse(const std::string& text,
                                    const std::vector<std::string>& overrides = {}) {
  return ParseClusterConfig(text, "test", overrides);
}

TEST(PolicyTest, LocalNeedsNoMemoryNodesAndHasOneLane) {
  const auto config = Parse(kLocal);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->policy, kPolicyLocal);
  EXPECT_EQ(config->compute[0].capacity_bytes, GiB(2));
  EXPECT_TRUE(config->memory.empty());
  EXPECT_EQ(config->pipeline.lanes, 1u);
  EXPECT_TRUE(Parse(std::string(kLocal) + "memory: []\npipeline: {lanes: auto}\n").ok());
  EXPECT_TRUE(Parse(std::string(kLocal) + "pipeline: {mode: sequential}\npartition: auto\n").ok());
}

TEST(PolicyTest, WhatIsWrittenReadsBackAsTheSame) {
  const auto config = Parse(kLocal);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->policy, kPolicyLocal);
  EXPECT_EQ(again->compute[0].capacity_bytes, GiB(2));
  EXPECT_TRUE(again->memory.empty());
  EXPECT_EQ(again->pipeline.lanes, 1u);
}

struct Contradiction {
  std::string change;
  std::string message;
};

class ContradictionTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(ContradictionTest, IsRefusedWithWhatToDo) {
  const auto config = Parse(kLocal, {GetParam().change});
  EXPECT_THAT(config.status().ToString(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ContradictionTest,
    ::testing::Values(
        Contradiction{"memory=[{name: m0, capacity: 1GiB}]", "1 memory nodes (m0) would have"},
        Contradiction{"compute.0.capacity=null", "compute.0.capacity: missing or zero"},
        Contradiction{"compute.1={name: c1, capacity: 1GiB}", "compute: 2 nodes are not served"},
        Contradiction{"compute.0.role=prefill", "contradict prefill.mode inline"},
        Contradiction{"partition=head", "policy local has none; set it to request"},
        Contradiction{"partition=token_range", "policy local has none; set it to request"},
        Contradiction{"pipeline.lanes=2", "set it to 1 or auto"},
        Contradiction{"pipeline.chunks=2", "pipeline.chunks: 2 contradicts policy local"},
        Contradiction{"pipeline.query_first=always", "pipeline.query_first: always contradicts"},
        Contradiction{"policy=attend_remote", "memory: the cluster has none"}));

TEST(PolicyTest, CapacityOfAComputeNodeNeedsPolicyLocal) {
  EXPECT_THAT(Parse("model: m\ncompute: [{name: c0, capacity: 1GiB}]\n"
                    "memory: [{name: m0, capacity: 1GiB}]\n")
                  .status()
                  .ToString(),
              AllOf(HasSubstr("compute.0.capacity"), HasSubstr("set policy to local")));
}

}  // namespace
}  // namespace lamina
