// SPDX-License-Identifier: Apache-2.0
//
// memory.N.spill in a cluster file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSpill[] =
    "model: m\ncompute: [{name: c0}]\nmemory:\n"
    "  - {name: m0, capacity: 1GiB, spill: {path: tier, capacity: 8GiB}}\n"
    "  - {name: m1, capacity: 1GiB}\n";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto config = ParseClusterConfig(kSpill, "test", overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(SpillConfigTest, ComesBackAsItWasWritten) {
  const auto config = ParseClusterConfig(kSpill, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  const SpillConfig spill{.path = "tier", .capacity_bytes = uint64_t{8} << 30};
  EXPECT_EQ(config->memory[0].spill, spill);
  EXPECT_EQ(config->memory[1].spill, SpillConfig());
  EXPECT_TRUE(config->Spills());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->memory[0].spill, spill);
  EXPECT_EQ(again->memory[1].spill, SpillConfig());
}

TEST(SpillConfigTest, PathAndCapacityComeTogether) {
  EXPECT_THAT(ErrorOf({"memory.0.spill.capacity=0"}),
              HasSubstr("memory.0.spill: capacity is missing or zero"));
  EXPECT_THAT(ErrorOf({"memory.0.spill.path="}), HasSubstr("memory.0.spill: path is missing"));
  EXPECT_THAT(ErrorOf({"memory.0.spill.size=1"}), HasSubstr("memory.0.spill"));
}

TEST(SpillConfigTest, HeadsAreSpreadOverNodesThatAllHaveATier) {
  EXPECT_THAT(ErrorOf({"partition=head"}), HasSubstr("all of them have a spill or none has"));
  EXPECT_EQ(ErrorOf({"partition=head", "memory.1.spill.path=tier", "memory.1.spill.capacity=1GiB"}),
            "no error");
}

TEST(SpillConfigTest, WhatIsNotServedWithItIsRefusedByName) {
  EXPECT_EQ(ErrorOf({}), "no error");
  const std::string spill = "memory.N.spill is not served by this version with ";
  EXPECT_EQ(ErrorOf({"policy=fetch_heads"}), "no error");
  EXPECT_EQ(ErrorOf({"policies=[attend_remote, fetch_heads]"}), "no error");
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid", "auto"}) {
    EXPECT_THAT(ErrorOf({"policy=" + policy}),
                AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(spill + "policy " + policy)));
  }
  EXPECT_EQ(ErrorOf({"partition=token_range"}), "no error") << "some nodes may have none";
  EXPECT_THAT(ErrorOf({"partition=token_range", "kv=int8"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("partition token_range")));
  EXPECT_EQ(ErrorOf({"kv=int8"}), "no error");
  EXPECT_THAT(ErrorOf({"kv=[bf16, int8]"}), HasSubstr(spill + "several forms of kv"));
  EXPECT_THAT(ErrorOf({"prefill.mode=dedicated", "compute.1.name=p0", "compute.1.role=prefill"}),
              HasSubstr(spill + "prefill.mode dedicated"));
}

}  // namespace
}  // namespace lamina
