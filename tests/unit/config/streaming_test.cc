// SPDX-License-Identifier: Apache-2.0
//
// Heads that stream in a cluster file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kStreaming[] =
    "model: m\npolicy: fetch_heads\n"
    "fetch: {streaming_heads: heads.json, streaming_sink: 4, streaming_window: 100}\n"
    "compute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto config = ParseClusterConfig(kStreaming, "test", overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(StreamingConfigTest, ComesBackAsItWasWritten) {
  const auto config = ParseClusterConfig(kStreaming, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->fetch.streaming_heads, "heads.json");
  EXPECT_EQ(config->fetch.streaming_sink, 4u);
  EXPECT_EQ(config->fetch.streaming_window, 100u);
  EXPECT_TRUE(config->IsLossy());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch, config->fetch);
}

TEST(StreamingConfigTest, WhatContradictsItIsRefusedByName) {
  EXPECT_EQ(ErrorOf({}), "no error");
  EXPECT_EQ(ErrorOf({"partition=head", "fetch.streaming_sink=0"}), "no error");
  EXPECT_EQ(ErrorOf({"policies=[attend_remote,fetch_heads,fetch_sparse]"}), "no error");
  EXPECT_THAT(ErrorOf({"fetch.streaming_window=0"}),
              HasSubstr("fetch.streaming_window: 0 is not in [1, 16777216] tokens"));
  EXPECT_THAT(ErrorOf({"fetch.streaming_sink=16777217"}),
              HasSubstr("fetch.streaming_sink: 16777217 is not in [0, 16777216] tokens"));
  EXPECT_THAT(ErrorOf({"fetch.streaming_heads="}),
              HasSubstr("fetch.streaming_sink: says what heads that stream see, and no file"));
  EXPECT_THAT(ErrorOf({"policy=fetch_recompute"}),
              HasSubstr("fetch.streaming_heads: names heads that stream, and the policy is "
                        "fetch_recompute"));
  EXPECT_THAT(ErrorOf({"policy=attend_remote"}), HasSubstr("the policy is attend_remote"));
  EXPECT_THAT(ErrorOf({"policy=auto"}), HasSubstr("and streaming_heads belong; nor does it weigh"));
  EXPECT_THAT(ErrorOf({"kv=int8"}), AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("with kv int8")));
  EXPECT_THAT(ErrorOf({"memory.0.spill.path=spill", "memory.0.spill.capacity=1GiB"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("with a spill tier")));
  EXPECT_THAT(ErrorOf({"partition=token_range"}),
              HasSubstr("token_range is not served by this version with policy fetch_heads and "
                        "heads that stream"));
}

}  // namespace
}  // namespace lamina
