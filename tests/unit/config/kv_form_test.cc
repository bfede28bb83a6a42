// SPDX-License-Identifier: Apache-2.0
//
// kv: int8 in a cluster file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kInt8[] =
    "model: m\nkv: int8\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto config = ParseClusterConfig(kInt8, "test", overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(KvFormConfigTest, ComesBackAsItWasWritten) {
  const auto config = ParseClusterConfig(kInt8, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv, KvForm::kInt8);
  EXPECT_TRUE(config->IsLossy());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->kv, KvForm::kInt8);
  const auto plain = ParseClusterConfig(kInt8, "test", {"kv=bf16"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->IsLossy());
}

TEST(KvFormConfigTest, WhatIsNotServedWithItIsRefusedByName) {
  EXPECT_EQ(ErrorOf({}), "no error");
  EXPECT_EQ(ErrorOf({"partition=head"}), "no error");
  EXPECT_EQ(ErrorOf({"policy=local", "memory=[]", "compute.0.capacity=1GiB"}), "no error");
  EXPECT_THAT(ErrorOf({"kv=int4"}), AllOf(HasSubstr("kv"), HasSubstr("bf16, int8")));
  EXPECT_EQ(ErrorOf({"policy=fetch_heads"}), "no error");
  EXPECT_EQ(ErrorOf({"policy=fetch_sparse", "fetch.caching_ratio=0.2"}), "no error");
  EXPECT_EQ(ErrorOf({"policies=[attend_remote, fetch_sparse, fetch_heads]"}), "no error");
  EXPECT_THAT(ErrorOf({"policies=[attend_remote, fetch_recompute]"}),
              HasSubstr("kv: int8 is not served by this version with policy fetch_recompute"));
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid"}) {
    EXPECT_THAT(ErrorOf({"policy=" + policy}),
                AllOf(HasSubstr("UNIMPLEMENTED"),
                      HasSubstr("kv: int8 is not served by this version with policy " + policy)));
  }
  EXPECT_THAT(ErrorOf({"policy=auto", "compute.0.capacity=1GiB"}),
              HasSubstr("kv: int8 is not served by this version with policy auto"));
  EXPECT_THAT(ErrorOf({"partition=token_range"}),
              HasSubstr("kv: int8 is not served by this version with partition token_range"));
  EXPECT_THAT(
      ErrorOf({"prefill.mode=dedicated", "compute=[{name: c0}, {name: p0, role: prefill}]"}),
      HasSubstr("kv: int8 is not served by this version with prefill.mode dedicated"));
  EXPECT_THAT(ErrorOf({"memory.0.device=cuda"}), HasSubstr("cuda"));
  EXPECT_EQ(ErrorOf({"attention.decode=canonical"}), "no error");
  EXPECT_THAT(ErrorOf({"attention.decode=pairs"}),
              HasSubstr("kv: int8 is not served by this version with attention in pairs"));
}

}  // namespace
}  // namespace lamina
