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
using ::testing::Not;

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

// A ratio that is rounded would choose other tokens.
TEST(FetchSparseConfigTest, TheRatioComesBackWithAllItsDigits) {
  const auto config = ParseClusterConfig(kSparse, "test", {"fetch.caching_ratio=0.33333333"});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch.caching_ratio, 0.33333333);
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
  EXPECT_EQ(ErrorOf({"fetch.resident=1GiB", "kv=int8"}), "no error");
}

TEST(FetchSparseConfigTest, FetchHeadsHasTokensThatStayToo) {
  const auto error_of = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"fetch={resident: 96MiB}", "policy=fetch_heads"});
    return ErrorOf(more);
  };
  const auto config =
      ParseClusterConfig(kSparse, "test", {"fetch={resident: 96MiB}", "policy=fetch_heads"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->KeepsRecent());
  EXPECT_FALSE(config->IsLossy());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch, config->fetch);

  EXPECT_EQ(error_of({"kv=int8"}), "no error");
  EXPECT_EQ(error_of({"kv=int8", "partition=head"}), "no error");
  EXPECT_THAT(error_of({"kv=int8", "partition=token_range"}), Not(HasSubstr("no error")));
  EXPECT_EQ(error_of({"partition=head"}), "no error");
  EXPECT_EQ(error_of({"partition=token_range"}), "no error");
  EXPECT_THAT(error_of({"prefill.mode=dedicated"}), Not(HasSubstr("no error")));
  EXPECT_THAT(error_of({"memory.0.spill={path: /var/tmp, capacity: 1GiB}"}),
              HasSubstr("fetch.resident: not served by this version with policy fetch_heads and"));
  EXPECT_THAT(error_of({"fetch.streaming_heads=heads.json"}), HasSubstr("heads that stream"));
  EXPECT_THAT(error_of({"policy=auto"}), HasSubstr("nor does it weigh what resident saves"));

  // Under fetch_recompute activations stay.
  const auto recompute =
      ParseClusterConfig(kSparse, "test", {"fetch={resident: 96MiB}", "policy=fetch_recompute"});
  ASSERT_TRUE(recompute.ok()) << recompute.status();
  EXPECT_TRUE(recompute->KeepsActivations());
  EXPECT_FALSE(recompute->KeepsRecent());
  EXPECT_THAT(ErrorOf({"fetch={resident: 96MiB}", "policy=fetch_recompute", "kv=int8"}),
              HasSubstr("fetch.resident: not served by this version with policy fetch_recompute"));
  // So they do under fetch_hybrid.
  const auto hybrid =
      ParseClusterConfig(kSparse, "test", {"fetch={resident: 96MiB}", "policy=fetch_hybrid"});
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  EXPECT_TRUE(hybrid->KeepsActivations());
  EXPECT_FALSE(hybrid->KeepsRecent());
  EXPECT_THAT(ErrorOf({"fetch={resident: 96MiB}", "policy=fetch_hybrid", "kv=int8"}),
              HasSubstr("fetch.resident: not served by this version with policy fetch_hybrid"));
  EXPECT_THAT(ErrorOf({"fetch={resident: 1MiB, activation_percent: 0}", "policy=fetch_hybrid"}),
              HasSubstr("with activation_percent 0 no token is held as one"));

  // Next to fetch_sparse it is that one's.
  EXPECT_EQ(error_of({"policies=[attend_remote, fetch_heads]"}), "no error");
  EXPECT_EQ(error_of({"policies=[fetch_heads, fetch_recompute]"}), "no error");
  EXPECT_EQ(error_of({"policies=[attend_remote, fetch_heads]", "partition=token_range"}),
            "no error");
  const auto both = ParseClusterConfig(
      kSparse, "test", {"fetch.resident=96MiB", "policies=[fetch_heads, fetch_sparse]"});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_FALSE(both->KeepsRecent());
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
  EXPECT_THAT(ErrorOf({"fetch.heads=0"}), HasSubstr("fetch.heads: 0 KV heads"));
  for (const std::string pattern : {"window_sums", "local", "strided"}) {
    EXPECT_EQ(ErrorOf({"partition=head", "fetch.sparse=" + pattern}), "no error");
    EXPECT_THAT(ErrorOf({"partition=token_range", "fetch.sparse=" + pattern}),
                AllOf(HasSubstr("UNIMPLEMENTED"),
                      HasSubstr("token_range is not served by this version with policy "
                                "fetch_sparse; set it to request, head or auto: rows attend to "
                                "chosen tokens as to one sequence")));
  }
  EXPECT_THAT(ErrorOf({"compute.0.device=cuda"}), HasSubstr("cpu, with policy fetch_sparse"));
  EXPECT_EQ(ErrorOf({"compute.0.weights_budget=1GiB"}), "no error");
  EXPECT_THAT(ErrorOf({"policy=fetch_heads"}), HasSubstr("fetch.caching_ratio: says to which"));
}

}  // namespace
}  // namespace lamina
