// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_heads with heads that stream: answers are others than those of whole attention, and
// the same however the cluster runs them: chunks, lanes, threads, memory nodes, heads, windows,
// found prefixes, preemption, and who is batched with it.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/run_variations.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::HasSubstr;

constexpr char kRemote[] = "attend_remote";
constexpr char kFetch[] = "fetch_heads";

LocalClusterOptions Exact() {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model, .memory_nodes = 2, .slots = 8192, .sequence_tokens_max = 512};
}

LocalClusterOptions Streaming(uint32_t sink = 5, uint32_t window = 37) {
  LocalClusterOptions options = Exact();
  options.fetch_bytes = 8 << 20;
  options.streaming = {.sink = sink, .window = window, .layers = {{1}, {}, {0, 1}, {0}}};
  return options;
}

TEST(StreamingClusterTest, AnswersDoNotDependOnHowTheyAreRun) {
  const std::unique_ptr<LocalCluster> plain = MakeCluster(Streaming());
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> expected = plain->GenerateMany(MixedLengths());
  for (uint32_t variation = 0; variation < 8; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    const LocalClusterOptions options = VariedWithHeads(Streaming(), variation);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths()), expected);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

TEST(StreamingClusterTest, AnswersAreOthersThanThoseOfWholeAttentionAndSaySo) {
  const std::vector<GenerateResult> exact = MakeCluster(Exact())->GenerateMany(MixedLengths());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Streaming());
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(cluster->engine().GetStatus().policy, kFetch);
  const std::string word = cluster->engine().lossy();
  EXPECT_THAT(word, HasSubstr("fetch_heads-4_heads-sink_5-window_37-"));
  const std::vector<GenerateResult> lossy = cluster->GenerateMany(MixedLengths());
  EXPECT_EQ(lossy.back().choices[0].usage.lossy, word);
  EXPECT_NE(lossy.back().choices[0].tokens, exact.back().choices[0].tokens);
  // Where sink and window leave nothing out, nothing is lost.
  const std::unique_ptr<LocalCluster> wide = MakeCluster(Streaming(5, 512));
  ASSERT_NE(wide, nullptr);
  ExpectSame(wide->GenerateMany(MixedLengths()), exact);
}

TEST(StreamingClusterTest, PreemptedRequestsHaveTheSameBits) {
  const std::vector<GenerateSpec> specs = LongRequests(8);
  const std::vector<GenerateResult> expected = MakeCluster(Streaming())->GenerateMany(specs);
  LocalClusterOptions options = Streaming();
  options.slots = options.sequence_tokens_max;
  options.memory_nodes = 1;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(specs), expected);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST(StreamingClusterTest, AFoundPrefixDoesNotShow) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Streaming());
  ASSERT_NE(cluster, nullptr);
  const GenerateResult first = cluster->Generate(spec);
  const GenerateResult second = cluster->Generate(spec);
  EXPECT_EQ(first.choices[0].usage.cached_tokens, 0u);
  EXPECT_EQ(second.choices[0].usage.cached_tokens, 192u);
  ExpectSame({second}, {first});
}

// Exact requests next to lossy ones: neither finds the other's K and V, and each has its own bits.
TEST(StreamingClusterTest, OtherPoliciesOfTheClusterStayExact) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const GenerateResult exact = MakeCluster(Exact())->Generate(spec);
  const GenerateResult lossy = MakeCluster(Streaming())->Generate(spec);
  for (const bool exact_first : {true, false}) {
    LocalClusterOptions options = Streaming();
    options.policies = {kRemote, kFetch};
    options.lanes = 2;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    for (int round = 0; round < 2; ++round) {
      for (const bool is_exact : {exact_first, !exact_first}) {
        GenerateSpec asked = spec;
        asked.policy = is_exact ? kRemote : kFetch;
        const GenerateResult found = cluster->Generate(asked);
        ExpectSame({found}, {is_exact ? exact : lossy});
        EXPECT_EQ(found.choices[0].usage.lossy.empty(), is_exact);
        // Its like's alone.
        EXPECT_EQ(found.choices[0].usage.cached_tokens, round == 0 ? 0u : 192u);
      }
    }
    // And all at once.
    std::vector<GenerateSpec> specs;
    std::vector<GenerateResult> expected;
    for (int i = 0; i < 6; ++i) {
      specs.push_back(spec);
      specs.back().policy = i % 2 == 0 ? kRemote : kFetch;
      expected.push_back(i % 2 == 0 ? exact : lossy);
    }
    ExpectSame(cluster->GenerateMany(specs), expected);
  }
}

TEST(StreamingClusterTest, ALostMemoryNodeCostsNobodyAnAnswer) {
  LocalClusterOptions options = Streaming();
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    request->WaitForTokens(2);
  }
  cluster->Detach("m0");
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSame({requests[i]->Wait()}, {undisturbed[i]});
  }
}

}  // namespace
}  // namespace lamina::test_support
