// SPDX-License-Identifier: Apache-2.0
//
// policies: in a cluster file, what an epoch prepares.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kNodes[] = "model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

absl::StatusOr<ClusterConfig> Parse(const std::string& text,
                                    const std::vector<std::string>& overrides = {}) {
  return ParseClusterConfig(kNodes + text, "test", overrides);
}

std::string ErrorOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto config = Parse(text, overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(PoliciesTest, WithoutThemThePolicyIsPreparedAlone) {
  const auto config = Parse("policy: fetch_heads\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->Prepared(), ElementsAre("fetch_heads"));
  EXPECT_TRUE(config->Fetches());
  EXPECT_FALSE(config->Prepares("attend_remote"));
  EXPECT_THAT(Parse("")->Prepared(), ElementsAre("attend_remote"));
}

TEST(PoliciesTest, TheFirstIsForRequestsThatNameNone) {
  const auto first = Parse("policies: [fetch_heads, attend_remote]\n");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->policy, "fetch_heads");
  EXPECT_THAT(first->Prepared(), ElementsAre("fetch_heads", "attend_remote"));
  EXPECT_TRUE(first->Fetches());
  EXPECT_FALSE(first->IsLossy());

  const auto named = Parse("policies: [fetch_sparse, attend_remote]\npolicy: attend_remote\n");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->policy, "attend_remote");
  EXPECT_TRUE(named->IsLossy());

  const auto alone = Parse("policies: fetch_recompute\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->policy, "fetch_recompute");
}

TEST(PoliciesTest, WhatIsWrittenReadsBackAsTheSame) {
  const auto config = Parse(
      "policies: [attend_remote, fetch_sparse]\n"
      "fetch: {window: 8MiB, caching_ratio: 0.35}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->policies, config->policies);
  EXPECT_EQ(again->policy, config->policy);
  EXPECT_EQ(again->fetch, config->fetch);
}

TEST(PoliciesTest, WhatCannotBeOneOfSeveralIsRefusedByName) {
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_head]\n"),
              HasSubstr("policies.1: 'fetch_head' is not one of attend_remote, fetch_heads, "
                        "fetch_recompute, fetch_hybrid, fetch_sparse, local, auto"));
  EXPECT_THAT(ErrorOf("policies: [fetch_heads, fetch_heads]\n"),
              HasSubstr("policies: names fetch_heads twice"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_heads]\npolicy: local\n"),
              HasSubstr("policies has only attend_remote, fetch_heads; set it to one of these"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, local]\n"),
              HasSubstr("policies: local cannot be one of several: its K and V are on the compute "
                        "node"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, auto]\n"),
              HasSubstr("policies: auto cannot be one of several: it chooses one policy"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_recompute, fetch_hybrid]\n"),
              AllOf(HasSubstr("UNIMPLEMENTED"),
                    HasSubstr("policies: fetch_recompute and fetch_hybrid are not served")));
  EXPECT_THAT(ErrorOf("policies: [fetch_recompute, fetch_heads]\n"
                      "fetch: {streaming_heads: heads.json}\n"),
              AllOf(HasSubstr("UNIMPLEMENTED"),
                    HasSubstr("policies: fetch_recompute is not served by this version next to "
                              "fetch_heads with heads that stream")));
  EXPECT_EQ(ErrorOf("policies: [attend_remote, fetch_heads, fetch_sparse]\n"
                    "fetch: {heads: 1, caching_ratio: 0.2}\n"),
            "no error");
}

// Each of them has its keys, and none of the others'.
TEST(PoliciesTest, RecomputationMayBeOneOfSeveral) {
  EXPECT_EQ(ErrorOf("policies: [attend_remote, fetch_recompute]\n"), "no error");
  EXPECT_EQ(ErrorOf("policies: [fetch_recompute, attend_remote, fetch_heads, fetch_sparse]\n"
                    "fetch: {heads: 1, caching_ratio: 0.2, recompute_percent: 40}\n"),
            "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_recompute]\n", {"fetch.heads=1"}),
              HasSubstr("fetch.heads: says"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_heads]\n", {"fetch.recompute_percent=1"}),
              HasSubstr("fetch.recompute_percent: says"));
  EXPECT_EQ(ErrorOf("policies: [fetch_heads, fetch_recompute]\n", {"partition=head"}), "no error");
  EXPECT_EQ(ErrorOf("policies: [fetch_recompute, fetch_heads]\n", {"partition=token_range"}),
            "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_recompute]\nkv: int8\n"),
              HasSubstr("fetch_recompute"));
}

TEST(PoliciesTest, HybridMayBeOneOfSeveral) {
  const std::string three = "policies: [attend_remote, fetch_heads, fetch_hybrid]\n";
  EXPECT_EQ(ErrorOf(three), "no error");
  EXPECT_EQ(ErrorOf(three, {"partition=head"}), "no error");
  EXPECT_EQ(ErrorOf("policies: [fetch_hybrid, attend_remote, fetch_heads, fetch_sparse]\n"
                    "fetch: {heads: 1, caching_ratio: 0.2, activation_percent: 40, packing: true, "
                    "hybrid_percent: 99}\n"),
            "no error");
  const auto config = Parse(three, {"fetch.hybrid_percent=30", "fetch.resident=1MiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->HoldsHybridApart());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->fetch, config->fetch);

  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_hybrid]\n", {"fetch.heads=1"}),
              HasSubstr("fetch.heads: says"));
  EXPECT_THAT(ErrorOf(three, {"partition=token_range"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("with fetch_hybrid among several")));
  EXPECT_THAT(ErrorOf(three + "kv: int8\n"),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("policies: fetch_hybrid"),
                    HasSubstr("with kv int8")));
  EXPECT_THAT(ErrorOf(three, {"fetch.streaming_heads=heads.json"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("with heads that stream")));
  for (const std::string percent : {"0", "100", "1000"}) {
    EXPECT_THAT(ErrorOf(three, {"fetch.hybrid_percent=" + percent}),
                HasSubstr("fetch.hybrid_percent: " + percent + " leaves fetch_hybrid or"));
  }
  for (const std::string policy : {"fetch_hybrid", "[attend_remote, fetch_heads]"}) {
    EXPECT_THAT(ErrorOf("policies: " + policy + "\nfetch: {hybrid_percent: 30}\n"),
                HasSubstr("fetch.hybrid_percent: says how slots are shared by fetch_hybrid"));
  }
}

TEST(PoliciesTest, RecomputationFromTokenNumbersMayBeOneOfSeveral) {
  EXPECT_EQ(ErrorOf("policies: [attend_remote, fetch_recompute]\n"
                    "fetch: {recompute: tokens, recompute_tokens_max: 512}\n"),
            "no error");
  EXPECT_EQ(ErrorOf("policies: [fetch_recompute, attend_remote, fetch_heads, fetch_sparse]\n"
                    "fetch: {heads: 1, caching_ratio: 0.2, recompute: tokens}\n"),
            "no error");
  // Bytes for what stays are those of fetch_heads, if it is there.
  const std::string stays = "\nfetch: {recompute: tokens, resident: 1MiB}\n";
  EXPECT_EQ(ErrorOf("policies: [fetch_heads, fetch_recompute]" + stays), "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_recompute]" + stays),
              HasSubstr("fetch.resident: is for activations"));
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_heads]\nfetch: {recompute: tokens}\n"),
              HasSubstr("fetch.recompute: says from what"));
}

// What one of them does not serve, all of them do not.
TEST(PoliciesTest, WhatASinglePolicyRefusesIsRefused) {
  const std::string both = "policies: [attend_remote, fetch_heads]\n";
  EXPECT_EQ(ErrorOf(both), "no error");
  EXPECT_EQ(ErrorOf(both, {"partition=head", "fetch.heads=2", "fetch.window=1MiB"}), "no error");
  EXPECT_EQ(ErrorOf(both, {"partition=token_range"}), "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_sparse]\n", {"partition=token_range"}),
              AllOf(HasSubstr("policy fetch_sparse"), HasSubstr("; policies has fetch_sparse")));
  EXPECT_THAT(ErrorOf(both + "kv: int8\n"), "no error");
  EXPECT_EQ(ErrorOf("policies: [attend_remote, fetch_sparse]\nkv: int8\n"), "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_sparse, fetch_recompute]\nkv: int8\n"),
              AllOf(HasSubstr("policies: fetch_recompute"), HasSubstr("with kv int8")));
  EXPECT_THAT(ErrorOf(both, {"memory.0.device=cuda"}), HasSubstr("cpu, with policy fetch_heads"));
  const std::vector<std::string> spill = {"memory.0.spill.path=spill.kv",
                                          "memory.0.spill.capacity=1GiB"};
  EXPECT_EQ(ErrorOf(both, spill), "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_sparse]\n", spill),
              HasSubstr("policy fetch_sparse"));
  EXPECT_THAT(ErrorOf(both, {"attention.decode=pairs"}), HasSubstr("policy fetch_heads"));
  EXPECT_THAT(ErrorOf(both, {"fetch.caching_ratio=0.2"}), HasSubstr("fetch.caching_ratio: says"));
  EXPECT_EQ(ErrorOf("policies: [attend_remote, fetch_sparse]\npartition: head\n"), "no error");
  EXPECT_THAT(ErrorOf("policies: [attend_remote, fetch_sparse]\n", {"partition=token_range"}),
              HasSubstr("policy fetch_sparse"));
  const auto replicas = ParseClusterConfig(
      "model: m\ncompute: [{name: c0}, {name: c1}]\nmemory: [{name: m0, capacity: 1GiB}]\n" + both,
      "test", {});
  EXPECT_THAT(replicas.status().ToString(),
              HasSubstr("compute: 2 nodes are not served by this version with policy fetch_heads"));
}

}  // namespace
}  // namespace lamina
