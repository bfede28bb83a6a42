// SPDX-License-Identifier: Apache-2.0
//
// A model whose layers all have windows, as Mistral 7B v0.1 is, with contexts several times what
// memory nodes hold: what no query reaches any more gives its slots back, and tokens are the same
// to the bit as in a cluster that keeps everything.

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

constexpr uint32_t kSlots = 400;  // A window and the block that it begins in are 356.

LocalClusterOptions Keeping() {
  RandomModelSpec model = SmallModel();
  model.model_type = "mistral";
  model.window = 100;
  model.positions_max = 4096;
  return {.model = model, .slots = 8192, .keeps_all_slots = true, .sequence_tokens_max = 2048};
}

LocalClusterOptions Freeing() {
  LocalClusterOptions options = Keeping();
  options.keeps_all_slots = false;
  options.slots = kSlots;
  return options;
}

// Some grow far beyond the slots that there are, one begins there, and some are as usual.
std::vector<coordinator::GenerateSpec> Requests() {
  return {Greedy(RandomPrompt(20, 1), 1600), Sampled(RandomPrompt(1700, 2), 60, 2),
          Greedy(RandomPrompt(300, 3), 40), Sampled(RandomPrompt(90, 4), 30, 4)};
}

class LocalClusterWindowsTest : public ::testing::Test {
 protected:
  static const std::vector<GenerateResult>& Kept() {
    static const std::vector<GenerateResult> kept = [] {
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(Keeping());
      return cluster->GenerateMany(Requests());
    }();
    return kept;
  }

  static void ExpectKeptBits(const char* what, const LocalClusterOptions& options) {
    SCOPED_TRACE(what);
    for (size_t i = 0; i < Kept().size(); ++i) {
      ASSERT_TRUE(Kept()[i].status.ok()) << Kept()[i].status;
      ASSERT_EQ(Kept()[i].choices[0].tokens.size(), Requests()[i].max_tokens);
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(Requests()), Kept());
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
};

TEST_F(LocalClusterWindowsTest, ContextsOfSeveralTimesTheCapacityRun) {
  LocalClusterOptions options = Freeing();
  ExpectKeptBits("one lane", options);
  options.lanes = 2;
  options.chunk_tokens = 48;
  options.sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways};
  ExpectKeptBits("two lanes, chunks", options);
}

// What does not fit into the scratch attends on the memory node.
TEST_F(LocalClusterWindowsTest, PromptsInRowsDoNotShow) {
  LocalClusterOptions options = Freeing();
  options.chunk_tokens = 64;
  options.scratch_tokens = 192;
  ExpectKeptBits("short scratch", options);
  options.prefix_cache = false;
  ExpectKeptBits("without the prefix cache", options);
}

TEST_F(LocalClusterWindowsTest, PartitionsDoNotShow) {
  LocalClusterOptions options = Freeing();
  options.memory_nodes = 2;
  options.partition = Partition::kHead;
  ExpectKeptBits("head", options);
  options.partition = Partition::kTokenRange;
  options.slots = 512;  // Spans are 256; what a window reaches may lie in three.
  options.memory_nodes = 3;
  ExpectKeptBits("token_range", options);
}

TEST_F(LocalClusterWindowsTest, StagesPrefillNodesAndLocalKvDoNotShow) {
  LocalClusterOptions options = Freeing();
  options.stages = 2;
  options.compute_nodes = 2;
  ExpectKeptBits("two stages", options);
  options = Freeing();
  options.prefill_nodes = 1;
  ExpectKeptBits("prefill nodes", options);
  options = Freeing();
  options.local = true;
  ExpectKeptBits("policy local", options);
}

TEST_F(LocalClusterWindowsTest, FetchedKvDoesNotShow) {
  LocalClusterOptions options = Freeing();
  options.fetch_bytes = 1 << 20;
  ExpectKeptBits("policy fetch_heads", options);
  options.recompute_percent = 40;
  ExpectKeptBits("policy fetch_recompute", options);
  options.recompute = RecomputeFrom::kTokens;
  ExpectKeptBits("policy fetch_recompute from token numbers", options);
  options.recompute_percent.reset();
  options.activation_percent = 60;
  options.fetch_bytes += 1 << 16;  // Each kind of tokens ends with a tile of its own.
  ExpectKeptBits("policy fetch_hybrid", options);
  options = Freeing();
  options.fetch_bytes = 1 << 20;
  options.partition = Partition::kTokenRange;
  options.slots = 512;
  options.memory_nodes = 3;
  ExpectKeptBits("policy fetch_heads, spans", options);
  options.recompute_percent = 40;
  ExpectKeptBits("policy fetch_recompute, spans", options);
  options.recompute = RecomputeFrom::kTokens;
  ExpectKeptBits("policy fetch_recompute from token numbers, spans", options);
  options.recompute_percent.reset();
  options.activation_percent = 60;
  options.fetch_bytes = 4 << 20;
  options.slots = 1024;  // An activation may take more than K and V.
  ExpectKeptBits("policy fetch_hybrid, spans", options);
}

// What is left of a sequence whose slots came free is no prefix: it is computed anew from its
// tokens.
TEST_F(LocalClusterWindowsTest, ALostNodeDoesNotShow) {
  LocalClusterOptions options = Freeing();
  options.memory_nodes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> running;
  for (const coordinator::GenerateSpec& spec : Requests()) {
    running.push_back(cluster->Start(spec));
  }
  running[0]->WaitForTokens(700);  // Slots of the first blocks have come free.
  cluster->Detach("m0");
  running[0]->WaitForTokens(1000);
  cluster->Attach("m0");

  std::vector<GenerateResult> found;
  for (const auto& request : running) {
    found.push_back(request->Wait());
  }

  ExpectSame(found, Kept());
  EXPECT_GT(cluster->engine().GetStatus().epoch, 1u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Blocks of INT8 come free as whole ones do, also where sequences are cut.
TEST_F(LocalClusterWindowsTest, WhatComesFreeDoesNotShowInInt8) {
  LocalClusterOptions options = Keeping();
  options.int8 = true;
  const std::vector<GenerateResult> kept = MakeCluster(options)->GenerateMany(Requests());
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut);
    options = Freeing();
    options.int8 = true;
    if (cut) {
      options.partition = Partition::kTokenRange;
      options.slots = 512;
      options.memory_nodes = 3;
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(Requests()), kept);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

// Two that grow together: one gives up everything, and is recomputed from its tokens.
TEST_F(LocalClusterWindowsTest, PreemptionDoesNotShow) {
  const std::vector<coordinator::GenerateSpec> two = {Greedy(RandomPrompt(20, 5), 700),
                                                      Sampled(RandomPrompt(30, 6), 700, 6)};
  const std::vector<GenerateResult> kept = MakeCluster(Keeping())->GenerateMany(two);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Freeing());
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(two), kept);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
}

}  // namespace
}  // namespace lamina::test_support
