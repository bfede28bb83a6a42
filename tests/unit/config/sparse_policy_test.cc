// SPDX-License-Identifier: Apache-2.0
//
// policy: fetch_sparse in a cluster file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSparse[] =
    "model: m\npolicy: fetch_sparse\nfetch: {caching_ratio: 0.35, sparse: strided, heads: 2}\n"
    "compute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto config = ParseClusterConfig(kSparse, "test", overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(FetchSparseConfigTest, ComesBackAsItWasWritten) {
  const auto config = ParseClusterConfig(kSparse, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->fetch.caching_ratio, 0.35);
  EXPECT_EQ(config->fetch.sparse, SparseTokens::kStrided);
  EXPECT_EQ(config->fetch.heads, 2u);
  EXPECT_TRUE(config->Fetches());
  EXPECT_TRUE(config->IsLossy());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch, config->fetch);
}

TEST(FetchSparseConfigTest, KAndVThatStayHaveBytesOfTheirOwn) {
  const auto config = ParseClusterConfig(kSparse, "test", {"fetch.resident=96MiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->fetch.resident_bytes, uint64_t{96} << 20);
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch, config->fetch);
  EXPECT_EQ(ErrorOf({"fetch.resident=1GiB", "compute.0.memory_budget=2GiB"}), "no error");
  EXPECT_THAT(ErrorOf({"fetch.resident=1GiB", "compute.0.memory_budget=1GiB"}),
              HasSubstr("has no room for fetch.window and fetch.resident, 1.1 GiB"));
  EXPECT_THAT(ErrorOf({"fetch.resident=1GiB", "kv=int8"}),
              HasSubstr("fetch.resident: not served by this version with kv int8"));
}

TEST(FetchSparseConfigTest, WhatContradictsItIsRefusedByName) {
  EXPECT_EQ(ErrorOf({}), "no error");
  EXPECT_EQ(ErrorOf({"fetch.caching_ratio=1"}), "no error");
  EXPECT_THAT(ErrorOf({"fetch.caching_ratio=0"}), HasSubstr("fetch.caching_ratio: 0 is not in"));
  EXPECT_THAT(ErrorOf({"fetch.caching_ratio=1.01"}), HasSubstr("is not in (0, 1]"));
  EXPECT_THAT(ErrorOf({"fetch.caching_ratio=nan"}), HasSubstr("is not in (0, 1]"));
  EXPECT_THAT(ErrorOf({"fetch.caching_ratio=most"}), HasSubstr("'most' is no number like 0.5"));
  EXPECT_THAT(ErrorOf({"fetch.sparse=random"}), HasSubstr("window_sums, local, strided"));
  EXPECT_THAT(ErrorOf({"fetch.recompute_percent=1"}), HasSubstr("the policy is fetch_sparse"));
  EXPECT_THAT(ErrorOf({"fetch={resident: 1MiB}", "policy=fetch_heads"}),
              HasSubstr("fetch.resident: says how much of K and V stays, and the policy is"));
  EXPECT_THAT(ErrorOf({"fetch.heads=0"}), HasSubstr("fetch.heads: 0 KV heads"));
  EXPECT_THAT(ErrorOf({"partition=head"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("which chooses tokens by the weights")));
  EXPECT_THAT(ErrorOf({"compute.0.device=cuda"}), HasSubstr("cpu, with policy fetch_sparse"));
  EXPECT_EQ(ErrorOf({"compute.0.weights_budget=1GiB"}), "no error");
  EXPECT_THAT(ErrorOf({"policy=fetch_heads"}), HasSubstr("fetch.caching_ratio: says to which"));
}

}  // namespace
}  // namespace lamina
