// SPDX-License-Identifier: Apache-2.0
//
// How KV is spread over memory nodes, as the cluster file says it or `auto` decides it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/partition.h"
#include "coordinator/cluster_options.h"
#include "plan/attention_paths.h"
#include "tests/unit/coordinator/options_of_lines.h"

namespace lamina::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A request of 8192 tokens takes 8 MiB.
TEST(PartitionOptionsTest, AutoIsDecidedAndSaysWhy) {
  const auto whole = OptionsOf(kTwoNodes + "partition: auto\n");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->partition, Partition::kRequest);
  EXPECT_THAT(whole->partition_why, HasSubstr("chosen because every memory node has room"));
  const auto heads = OptionsOf(Nodes({"6MiB", "6MiB"}) + "partition: auto\n");
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_EQ(heads->partition, Partition::kHead);
  const std::string small = Nodes({"4MiB", "4MiB", "4MiB"}) + "partition: auto\n";
  const auto spans = OptionsOf(small);
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_EQ(spans->partition, Partition::kTokenRange);
  EXPECT_GT(spans->scheduler.span_tokens, 0u);
  const auto fetched = OptionsOf(small + "policy: fetch_heads\n");
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->partition, Partition::kTokenRange);
  EXPECT_EQ(fetched->scheduler.span_tokens, spans->scheduler.span_tokens);
}

TEST(PartitionOptionsTest, AutoChoosesNoneThatSpillTiersAreNotServedWith) {
  const std::string spill = ", spill: {path: tier, capacity: 1GiB}";
  const auto spans = OptionsOf(Nodes({"4MiB" + spill, "4MiB", "4MiB"}) + "partition: auto\n");
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_EQ(spans->partition, Partition::kTokenRange);
  EXPECT_TRUE(spans->spills);
  ExpectRefused(OptionsOf(Nodes({"5MiB" + spill, "5MiB", "5MiB"}) +
                          "partition: auto\nlimits: {running_max: 32}\nkv: int8\n"),
                absl::StatusCode::kUnimplemented,
                AllOf(HasSubstr("auto chose token_range (chosen because"), HasSubstr("kv int8")));
  ExpectRefused(OptionsOf(Nodes({"6MiB" + spill, "6MiB"}) + "partition: auto\n"),
                absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("auto chose head (chosen because"),
                      HasSubstr("all of them have a spill or none has")));
  const auto heads = OptionsOf(Nodes({"6MiB" + spill, "6MiB" + spill}) + "partition: auto\n");
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_EQ(heads->partition, Partition::kHead);
  const auto whole = OptionsOf(Nodes({"1GiB" + spill, "1GiB"}) + "partition: auto\n");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->partition, Partition::kRequest);
}

// Tails of 32 sequences take 2 MiB of each node.
TEST(PartitionOptionsTest, AutoMayCutSequencesInInt8ThatAttendWhereTheyLie) {
  const std::string small =
      Nodes({"5MiB", "5MiB", "5MiB"}) + "partition: auto\nlimits: {running_max: 32}\n";
  const auto spans = OptionsOf(small + "kv: int8\n");
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_EQ(spans->partition, Partition::kTokenRange);
  ExpectRefused(OptionsOf(small + "kv: int8\npolicy: fetch_heads\n"),
                absl::StatusCode::kUnimplemented,
                AllOf(HasSubstr("auto chose token_range (chosen because"),
                      HasSubstr("does not serve with kv int8 and policies that fetch")));
}

TEST(PartitionOptionsTest, AutoThatCannotBeServedIsRefused) {
  ExpectRefused(OptionsOf(Nodes({"1MiB", "1MiB"}) + "partition: auto\n"),
                absl::StatusCode::kFailedPrecondition, HasSubstr("no partition can be served"));
}

TEST(PartitionOptionsTest, HeadOfMoreNodesThanHeadsIsRefused) {
  ExpectRefused(OptionsOf(Nodes({"1GiB", "1GiB", "1GiB", "1GiB", "1GiB"}) + "partition: head\n"),
                absl::StatusCode::kInvalidArgument,
                HasSubstr("5 memory nodes, but the model has 4 KV heads"));
}

TEST(PartitionOptionsTest, HeadOfUnlikeLayersIsRefused) {
  AttentionDescriptor other = kLayer;
  other.kv_heads = 8;
  ExpectRefused(OptionsOf(kTwoNodes + "partition: head\n", {kLayer, other}),
                absl::StatusCode::kInvalidArgument, HasSubstr("layers have 4 and 8 KV heads"));
}

TEST(PartitionOptionsTest, HeadWithoutRoomForAHeadIsRefused) {
  ExpectRefused(OptionsOf(Nodes({"1GiB", "1MiB"}) + "partition: head\n"),
                absl::StatusCode::kFailedPrecondition,
                AllOf(HasSubstr("memory node m1 has 1.0 MiB"), HasSubstr("one KV head")));
}

TEST(PartitionOptionsTest, HeadWithoutRoomForAllHeadsIsRefused) {
  ExpectRefused(OptionsOf(Nodes({"3MiB", "3MiB"}) + "partition: head\n"),
                absl::StatusCode::kFailedPrecondition,
                HasSubstr("memory nodes m0, m1 have room for 2 of 4 KV heads"));
}

// A head of a request takes 2 MiB, and where half of a node is for fetch_hybrid four.
TEST(PartitionOptionsTest, HeadWithoutRoomForSlotsOfHybridAndThoseOfOthersIsRefused) {
  const std::string lines =
      Nodes({"6MiB", "6MiB"}) + "fetch: {activation_percent: 50}\npartition: head\n";
  EXPECT_TRUE(OptionsOf(lines + "policy: fetch_hybrid\n").ok())
      << OptionsOf(lines + "policy: fetch_hybrid\n").status();
  ExpectRefused(OptionsOf(lines + "policies: [attend_remote, fetch_hybrid]\n"),
                absl::StatusCode::kFailedPrecondition,
                HasSubstr("memory nodes m0, m1 have room for 2 of 4 KV heads"));
}

TEST(PartitionOptionsTest, TokenRangeTakesASlidingWindow) {
  AttentionDescriptor windowed = kLayer;
  windowed.window = 100;
  EXPECT_TRUE(OptionsOf(kTwoNodes + "partition: token_range\n", {windowed}).ok());
}

TEST(PartitionOptionsTest, TokenRangeWithoutRoomForASpanIsRefused) {
  ExpectRefused(OptionsOf(Nodes({"1GiB", "10KiB"}) + "partition: token_range\n"),
                absl::StatusCode::kFailedPrecondition,
                HasSubstr("memory node m1 has room for 10 tokens, too little for its share"));
}

// A span has 1024 tokens, each with 128 bytes of K and V of one head; of two lanes and two nodes
// there are eight windows.
TEST(PartitionOptionsTest, TokenRangeWithAWindowForASpanIsEnough) {
  const std::string lines = kTwoNodes + "policy: fetch_heads\nfetch: {window: 1MiB}\npartition: ";
  EXPECT_TRUE(OptionsOf(lines + "token_range\n").ok())
      << OptionsOf(lines + "token_range\n").status();
  ExpectRefused(OptionsOf(lines + "request\n"), absl::StatusCode::kInvalidArgument,
                HasSubstr("one KV head of 8192 tokens takes 1.0 MiB"));
  ExpectRefused(OptionsOf(kTwoNodes + "policy: fetch_heads\nfetch: {window: 1023KiB}\n"
                                      "partition: token_range\n"),
                absl::StatusCode::kInvalidArgument,
                HasSubstr("one KV head of 1024 tokens takes 128.0 KiB"));
}

// A tile more than a span has, since tokens that come and those that stay end with tiles.
TEST(PartitionOptionsTest, TokenRangeHasTokensThatStay) {
  const std::string lines = kTwoNodes + "policy: fetch_heads\npartition: token_range\n";
  const auto options = OptionsOf(lines + "fetch: {window: 2MiB, resident: 1MiB}\n");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->partition, Partition::kTokenRange);
  EXPECT_EQ(options->policies.front().path, plan::AttentionPath::kSparse);
  EXPECT_EQ(options->lossy, "");
  ExpectRefused(OptionsOf(lines + "fetch: {window: 1MiB, resident: 1MiB}\n"),
                absl::StatusCode::kInvalidArgument,
                HasSubstr("one KV head of 1024 tokens takes 130.0 KiB"));
}

// All four heads of a span then, and of each slot its activation too.
TEST(PartitionOptionsTest, TokenRangeMakesKAndVAgain) {
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid"}) {
    SCOPED_TRACE(policy);
    const std::string lines = "partition: token_range\npolicy: " + policy + "\n";
    const auto options = OptionsOf(kTwoNodes + lines + "fetch: {window: 64MiB}\n");
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->partition, Partition::kTokenRange);
    EXPECT_GT(options->fetch.activation_width, 0u);
    ExpectRefused(OptionsOf(kTwoNodes + lines + "fetch: {window: 1MiB}\n"),
                  absl::StatusCode::kInvalidArgument,
                  HasSubstr("K and V, or the activations, of 1024 tokens in a layer take"));
  }
  // A node has room for K and V of a span, and not for its activations.
  const std::string small = Nodes({"1GiB", "1100KiB"}) + "partition: token_range\npolicy: ";
  EXPECT_TRUE(OptionsOf(small + "fetch_heads\n").ok());
  ExpectRefused(OptionsOf(small + "fetch_recompute\n"), absl::StatusCode::kFailedPrecondition,
                HasSubstr("too little for its share: a span of 1024"));

  const auto tokens = OptionsOf(Nodes({"4MiB", "4MiB", "4MiB"}) +
                                "partition: auto\npolicy: fetch_recompute\n"
                                "fetch: {recompute: tokens}\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->partition, Partition::kTokenRange);
}

// The node is refused by itself when it joins, and the others serve.
TEST(PartitionOptionsTest, RequestTakesANodeThatIsTooSmall) {
  EXPECT_TRUE(OptionsOf(Nodes({"1GiB", "1MiB"}) + "partition: request\n").ok());
}

}  // namespace
}  // namespace lamina::coordinator
