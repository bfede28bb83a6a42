// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_sparse: answers are others than those of whole attention, and the same however the
// cluster runs them: chunks, lanes, threads, memory nodes, windows, and who is batched with it.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

LocalClusterOptions Sparse(double ratio) {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model,
          .fetch_bytes = 8 << 20,
          .sparse_ratio = ratio,
          .memory_nodes = 2,
          .slots = 8192,
          .sequence_tokens_max = 512};
}

std::vector<GenerateSpec> Workload() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 16u, 33u, 100u, 257u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 40, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), 50));
  }
  return specs;
}

TEST(SparseClusterTest, AnswersDoNotDependOnHowTheyAreRun) {
  const std::unique_ptr<LocalCluster> plain = MakeCluster(Sparse(0.3));
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> expected = plain->GenerateMany(Workload());
  for (uint32_t variation = 0; variation < 6; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    LocalClusterOptions options = Sparse(0.3);
    options.lanes = 1 + variation % 3;
    options.chunk_tokens = variation % 2 == 0 ? 16 : 512;
    // The longest prompts' tails are rows, which attend to all before them.
    options.scratch_tokens = variation < 3 ? 8192 : 64;
    options.threads = 1 + variation % 2;
    options.memory_nodes = 1 + variation / 2 % 2;
    // Windows with room for one head of the longest sequence, of each of three lanes and two nodes.
    options.fetch_bytes = variation % 2 == 0 ? 16 << 20 : 2 << 20;
    options.transports = {variation % 3 == 0 ? "ucx://" : "shm://"};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(Workload()), expected);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

TEST(SparseClusterTest, WithFewerTokensAnswersAreOthers) {
  std::vector<std::vector<TokenId>> tokens;
  for (const double ratio : {1.0, 0.1}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Sparse(ratio));
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(cluster->engine().GetStatus().policy, "fetch_sparse");
    EXPECT_EQ(cluster->engine().lossy(), absl::StrCat("fetch_sparse-", ratio, "-window_sums"));
    tokens.push_back(
        cluster->GenerateMany({Greedy(RandomPrompt(200, 3), 100)})[0].choices[0].tokens);
  }
  EXPECT_EQ(tokens[0].size(), tokens[1].size());
  EXPECT_NE(tokens[0], tokens[1]);
}

// Slots run out: requests are preempted, begin anew, and all end.
TEST(SparseClusterTest, PreemptedRequestsEnd) {
  LocalClusterOptions options = Sparse(0.5);
  options.slots = options.sequence_tokens_max;
  options.memory_nodes = 1;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  for (const GenerateResult& result : cluster->GenerateMany(LongRequests(8))) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Each choice of one prompt goes on with what the prompt's last rows were worth to it.
TEST(SparseClusterTest, ChoicesOfOnePromptAreThoseOfRequestsOfTheirOwn) {
  GenerateSpec both = Sampled(RandomPrompt(120, 9), 30, 5);
  both.choices = 3;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Sparse(0.3));
  ASSERT_NE(cluster, nullptr);
  const GenerateResult shared = cluster->GenerateMany({both})[0];
  ASSERT_EQ(shared.choices.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    GenerateSpec alone = both;
    alone.choices = 1;
    alone.sampling.seed = both.sampling.seed + i;
    EXPECT_EQ(shared.choices[i].tokens, cluster->GenerateMany({alone})[0].choices[0].tokens) << i;
  }
}

}  // namespace
}  // namespace lamina::test_support
