// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute from token numbers: K and V of the first tokens of each sequence are made
// again in every step, and answers are those of rows that attend at memory nodes, to the bit.

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/run_variations.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::HasSubstr;

LocalClusterOptions Remote() {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model, .slots = 8192, .sequence_tokens_max = 512};
}

LocalClusterOptions WithTokens(uint32_t percent) {
  LocalClusterOptions options = Remote();
  options.fetch_bytes = 2 << 20;
  options.recompute_percent = percent;
  options.recompute = RecomputeFrom::kTokens;
  return options;
}

uint64_t Made(LocalCluster& cluster) { return cluster.handler("c0").Counters().recomputed_tokens; }

TEST(TokensClusterTest, AnswersAreThoseOfAttendRemote) {
  const std::vector<GenerateResult> expected =
      MakeCluster(Remote())->GenerateMany(MixedLengths(30));
  for (uint32_t variation = 0; variation < 8; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    const uint32_t percents[] = {13, 50, 100};
    const LocalClusterOptions options =
        VariedWithHeads(WithTokens(percents[variation / 2 % 3]), variation);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const uint64_t before = Made(*cluster);
    for (int round = 0; round < 2; ++round) {  // The second one finds what the first one stored.
      ExpectSame(cluster->GenerateMany(MixedLengths(30)), expected);
    }
    EXPECT_GT(Made(*cluster), before);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
    EXPECT_THAT(cluster->engine().GetStatus().scheduler.fetch_share.why,
                HasSubstr("% of tokens made from their numbers, as configured"));
  }
}

// Parallel blocks run ops behind those that make q, k and v, and carry other values on.
TEST(TokensClusterTest, SoTheyAreWithParallelBlocks) {
  LocalClusterOptions remote = Remote();
  remote.model = SmallParallelModel();
  const std::vector<GenerateResult> expected = MakeCluster(remote)->GenerateMany(MixedLengths(20));
  LocalClusterOptions options = WithTokens(60);
  options.model = remote.model;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MixedLengths(20)), expected);
}

// Whole tiles of the tokens before each row, in each layer.
TEST(TokensClusterTest, TheShareIsMadeInEveryLayerOfEveryStep) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(WithTokens(50));
  ASSERT_NE(cluster, nullptr);
  const uint64_t before = Made(*cluster);
  // The prompt samples the first token; 11 rows see 100 to 110 tokens, of which 48 are half.
  ASSERT_TRUE(cluster->Generate(Greedy(RandomPrompt(100, 1), 12)).status.ok());
  EXPECT_EQ(Made(*cluster) - before, 11u * 48 * 4);
}

TEST(TokensClusterTest, NoMoreAreMadeThanThereIsRoomFor) {
  const std::vector<GenerateResult> expected =
      MakeCluster(Remote())->GenerateMany(MixedLengths(20));
  LocalClusterOptions options = WithTokens(100);
  options.recompute_tokens_max = 64;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MixedLengths(20)), expected);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  const uint64_t before = Made(*cluster);
  // All of 40 to 50 tokens in whole tiles, and no more than 64 of 240.
  ASSERT_TRUE(cluster->Generate(Greedy(RandomPrompt(40, 2), 9)).status.ok());
  EXPECT_EQ(Made(*cluster) - before, 8u * 32 * 4);
  ASSERT_TRUE(cluster->Generate(Greedy(RandomPrompt(240, 3), 9)).status.ok());
  EXPECT_LE(Made(*cluster) - before, 8u * (32 + 64) * 4);
  EXPECT_THAT(cluster->engine().GetStatus().scheduler.fetch_share.why,
              HasSubstr("at most fetch.recompute_tokens_max 64"));
}

// What is timed before the first step is no longer than the longest sequence.
TEST(TokensClusterTest, SequencesMayBeShorterThanABlockOfRows) {
  LocalClusterOptions remote = Remote();
  remote.sequence_tokens_max = 100;
  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(60, 4), 30),
                                           Sampled(RandomPrompt(33, 5), 40, 5)};
  const std::vector<GenerateResult> expected = MakeCluster(remote)->GenerateMany(specs);
  LocalClusterOptions options = WithTokens(50);
  options.sequence_tokens_max = remote.sequence_tokens_max;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(specs), expected);
}

// By measured times, whatever these are.
TEST(TokensClusterTest, ByMeasuredTimesAnswersAreTheSame) {
  const std::vector<GenerateResult> expected =
      MakeCluster(Remote())->GenerateMany(MixedLengths(20));
  for (const char* const transport : {"shm://", "throttle(bandwidth=20MB)+shm://"}) {
    SCOPED_TRACE(transport);
    LocalClusterOptions options = WithTokens(0);
    options.policies = {"fetch_recompute"};  // None is forced.
    options.recompute_percent.reset();
    options.transports = {transport};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths(20)), expected);
    EXPECT_THAT(cluster->engine().GetStatus().scheduler.fetch_share.why,
                HasSubstr("made from their numbers"));
  }
}

// What had been generated is computed again as a prompt, whose tokens are made again from then on.
TEST(TokensClusterTest, PreemptedRequestsHaveTheSameBits) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> expected = MakeCluster(Remote())->GenerateMany(specs);
  for (const uint32_t lanes : {1u, 3u}) {
    SCOPED_TRACE(lanes);
    LocalClusterOptions options = WithTokens(70);
    options.lanes = lanes;
    options.slots = options.sequence_tokens_max;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST(TokensClusterTest, ALostMemoryNodeCostsNobodyAToken) {
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::vector<GenerateResult> expected = MakeCluster(Remote())->GenerateMany(specs);
  LocalClusterOptions options = WithTokens(50);
  options.memory_nodes = 2;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const auto& request : requests) {
    request->WaitForTokens(2);
  }
  cluster->Detach("m0");
  std::vector<GenerateResult> found;
  for (const auto& request : requests) {
    found.push_back(request->Wait());
  }
  ExpectSame(found, expected);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

}  // namespace
}  // namespace lamina::test_support
