// SPDX-License-Identifier: Apache-2.0
#include "cost/step_cost.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/cost/catalogue_text.h"

namespace lamina::cost {
namespace {

ModelShape ShapeOfTree(const char* name) { return *CatalogueOfTree("default").FindModel(name); }

// One byte of weights or K and V takes a nanosecond, arithmetic and links nothing.
Cluster Simple() {
  Cluster cluster;
  cluster.compute.dense.seconds_per_byte = {1e-9};
  cluster.compute.attention.seconds_per_byte = {1e-9};
  cluster.memory.attention.seconds_per_byte = {1e-9};
  cluster.compute.capacity = {100e9};
  cluster.memory.capacity = {50e9};
  cluster.memory_nodes = 1;
  return cluster;
}

TEST(StepCostTest, OnePoolAddsDenseLayersAndAttention) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.policy = KvPolicy::kLocal;
  cluster.memory_nodes = 0;
  const StepTimes times = StepOf(shape, cluster, {.rows = 4, .context = 512});
  const double weights = 2 * (shape.Parameters() - shape.HeadWeights());  // No embedding is read.
  EXPECT_NEAR(times.step.value, 1e-9 * (weights + 4 * 512 * shape.KvBytesPerToken()), 1e-9);
}

TEST(StepCostTest, ThePapersScheduleHasNoBubbles) {
  // attention = slice / R and n = R + 1: path, compute nodes and memory nodes take equally long.
  ModelShape shape = ShapeOfTree("LLaMA-13B");
  shape.vocabulary = 0;  // No head, as in the paper's schedule.
  for (const uint32_t replicas : {1u, 2u, 4u}) {
    Cluster cluster = Simple();
    cluster.replicas = replicas;
    cluster.lanes = replicas + 1;
    const double slice_bytes = 2 * shape.LayerWeights();
    const double rows = 8.0 * cluster.lanes;
    const double context = slice_bytes / replicas / 8 / shape.KvBytesPerTokenLayer();
    const StepTimes times = StepOf(shape, cluster, {.rows = rows, .context = context});
    EXPECT_NEAR(times.attention.value, times.slice.value / replicas, 1e-12);
    const double unit = times.slice.value / replicas;
    EXPECT_NEAR(times.step.value, shape.layers * (replicas + 1) * unit, 1e-9);
  }
}

TEST(StepCostTest, OneLaneIsThePathAndManyAreBoundByADevice) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  const StepLoad load = {.rows = 64, .context = 4096};
  const StepTimes one = StepOf(shape, cluster, load);
  EXPECT_EQ(one.bottleneck, Bottleneck::kPath);
  EXPECT_NEAR(one.step.value,
              shape.layers * (one.slice.value + one.attention.value) + one.head.value, 1e-9);
  cluster.lanes = 2;
  const StepTimes two = StepOf(shape, cluster, load);
  EXPECT_EQ(two.bottleneck, Bottleneck::kMemory);
  EXPECT_NEAR(two.step.value, 2 * shape.layers * two.attention.value, 1e-9);
  EXPECT_LT(two.step.value, one.step.value);
}

TEST(StepCostTest, FewRowsAreSlowerInTwoLanes) {
  // Weights are read once for each lane: the paper's section 6.1.
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  const StepLoad load = {.rows = 2, .context = 128};
  const double one = StepOf(shape, cluster, load).step.value;
  cluster.lanes = 2;
  EXPECT_NEAR(StepOf(shape, cluster, load).step.value / one, 2, 0.05);
}

TEST(StepCostTest, PartitionsDivideTheReads) {
  const ModelShape shape = ShapeOfTree("Llama-3-8B");  // 8 KV heads.
  Cluster cluster = Simple();
  const StepLoad load = {.rows = 2, .context = 4096};
  const double whole = StepOf(shape, cluster, load).attention.value;
  cluster.memory_nodes = 3;
  EXPECT_NEAR(StepOf(shape, cluster, load).attention.value, whole / 2, 1e-12);  // Two rows.
  cluster.partition = Partition::kHead;
  EXPECT_NEAR(StepOf(shape, cluster, load).attention.value, whole * 3 / 8, 1e-12);
  cluster.partition = Partition::kTokenRange;
  EXPECT_NEAR(StepOf(shape, cluster, load).attention.value, whole / 3, 1e-12);
}

TEST(StepCostTest, NetworkIsThePapersFormula) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.compute_link = {.latency = {1e-5}, .seconds_per_byte = {1e-9}};
  cluster.memory_link = {.latency = {1e-5}, .seconds_per_byte = {1e-10}};
  const StepTimes times = StepOf(shape, cluster, {.rows = 10, .context = 1});
  EXPECT_NEAR(times.network.value, 2e-5 + 1e-9 * 10 * 4 * 2 * 5120, 1e-12);
  // Under token ranges queries go to both nodes, and each returns f32 partials.
  cluster.partition = Partition::kTokenRange;
  cluster.memory_nodes = 2;
  const double bytes = 2.0 * 128 * (40 + 80) + 2.0 * 128 * 40 + 2 * 4.0 * 40 * 129;
  EXPECT_NEAR(StepOf(shape, cluster, {.rows = 10, .context = 1}).network.value,
              2e-5 + 1e-9 * 10 * bytes, 1e-12);
}

TEST(StepCostTest, ShardsDivideALayerAndAddTwoSums) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  const StepLoad load = {.rows = 4, .context = 1};
  const double whole = StepOf(shape, cluster, load).slice.value;
  cluster.shards = 2;
  cluster.shard_link = {.latency = {1e-6}, .seconds_per_byte = {1e-10}};
  EXPECT_NEAR(StepOf(shape, cluster, load).slice.value,
              whole / 2 + 2 * (1e-6 + 1e-10 * 4 * 5120 * 4), 1e-12);
}

TEST(StepCostTest, StagesAndReplicasShareTheLanes) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.lanes = 8;
  const StepLoad load = {.rows = 8, .context = 1};
  const double one = StepOf(shape, cluster, load).step.value;
  cluster.stages = 2;
  EXPECT_NEAR(StepOf(shape, cluster, load).step.value, one / 2, 1e-9);
  cluster.replicas = 2;
  EXPECT_NEAR(StepOf(shape, cluster, load).step.value, one / 4, 1e-9);
  EXPECT_EQ(WeightBytesOfNode(shape, cluster), shape.WeightBytes() / 2);
}

TEST(StepCostTest, PromptRowsAreRowsThatTheHeadPassesOver) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  for (const KvPolicy policy : {KvPolicy::kAttendRemote, KvPolicy::kLocal}) {
    cluster.policy = policy;
    const StepLoad both = {.rows = 4, .context = 1000, .prompt_rows = 8, .prompt_row_context = 500};
    const StepTimes times = StepOf(shape, cluster, both);
    const StepTimes rows = StepOf(shape, cluster, {.rows = 12, .context = 8000.0 / 12});
    EXPECT_NEAR(times.slice.value, rows.slice.value, 1e-12);
    EXPECT_NEAR(times.attention.value, rows.attention.value, 1e-12);
    EXPECT_NEAR(times.network.value, rows.network.value, 1e-12);
    EXPECT_EQ(times.head.value, StepOf(shape, cluster, {.rows = 4, .context = 1}).head.value);
  }
}

TEST(StepCostTest, PromptsTakeComputeNodesAndDedicatedOnesDoNot) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.compute.dense.seconds_per_flop = {1e-12};
  const StepLoad load = {.rows = 4, .context = 1, .prompt_tokens = 4096, .prompt_length = 1000};
  const double flops = 4100 * shape.LayerFlopsPerRow() + 4096 * 4.0 * 40 * 128 * 500;
  EXPECT_NEAR(StepOf(shape, cluster, load).slice.value, 1e-12 * flops, 1e-9);
  cluster.prompt_replicas = 1;
  EXPECT_NEAR(StepOf(shape, cluster, load).slice.value, 1e-9 * 2 * shape.LayerWeights(), 1e-9);
}

TEST(StepCostTest, FetchingIsBoundByTheLink) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.policy = KvPolicy::kFetchHeads;
  cluster.compute_link.seconds_per_byte = {1e-8};
  const StepTimes times = StepOf(shape, cluster, {.rows = 32, .context = 4096});
  EXPECT_NEAR(times.step.value, 1e-8 * 32 * 4096 * shape.KvBytesPerToken() + times.head.value,
              1e-6);
  EXPECT_EQ(times.bottleneck, Bottleneck::kNetwork);
}

TEST(StepCostTest, LinksCarryWhatWindowsHide) {
  ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.policy = KvPolicy::kFetchHeads;
  cluster.compute_link.seconds_per_byte = {1e-8};
  const StepLoad load = {.rows = 32, .context = 4096};
  const StepTimes whole = StepOf(shape, cluster, load);
  shape.window = 1024;
  shape.window_layers = shape.layers / 2;
  const StepTimes half = StepOf(shape, cluster, load);
  EXPECT_NEAR(half.network.value, whole.network.value, 1e-12);
  EXPECT_NEAR(half.step.value, whole.step.value, 1e-9);
  EXPECT_NEAR(half.attention.value / whole.attention.value, (4096 + 1024) / 2.0 / 4096, 1e-9);
  shape.window_layers = shape.layers;
  const StepTimes all = StepOf(shape, cluster, load);
  EXPECT_NEAR(all.network.value / whole.network.value, (1024 + 256) / 4096.0, 1e-9)
      << "slots behind the windows of all layers are free";
}

// Layers are so long on the link that nothing else of the device counts.
TEST(StepCostTest, OneLaneRecomputesALayerAheadWhereWindowsHaveRoom) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.policy = KvPolicy::kFetchRecompute;
  cluster.compute_link.seconds_per_byte = {1e-8};
  const StepLoad load = {.rows = 32, .context = 4096, .prompt_length = 4096};
  const double bytes = 32 * 4096 * shape.KvBytesPerToken();
  const double make = 4.0 * 5120 * 5120 * 32 * 4096;
  // Making them takes a quarter of the time that they take on the link.
  cluster.compute.dense.seconds_per_flop = {1e-8 * bytes / shape.layers / 4 / make};
  const auto layers = [&] {
    const StepTimes times = StepOf(shape, cluster, load);
    return times.step.value - times.head.value;
  };
  EXPECT_NEAR(layers() / (1e-8 * bytes), 0.6, 1e-6);
  cluster.fetch_window = 4 * bytes / shape.layers;
  EXPECT_NEAR(layers() / (1e-8 * bytes), 0.5, 1e-6);
  cluster.fetch_window *= 0.99;
  EXPECT_NEAR(layers() / (1e-8 * bytes), 0.6, 1e-6);
}

TEST(StepCostTest, MemoryIsWhatTheWeightsLeave) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  EXPECT_NEAR(KvTokensMax(shape, cluster).value, 50e9 / shape.KvBytesPerToken(), 1);
  cluster.memory_nodes = 3;  // One node has 14 of 40 heads.
  EXPECT_NEAR(KvTokensMax(shape, cluster).value, 150e9 / shape.KvBytesPerToken(), 1);
  cluster.policy = KvPolicy::kFetchRecompute;  // With as many heads of queries as of keys.
  EXPECT_NEAR(KvTokensMax(shape, cluster).value, 100e9 / shape.KvBytesPerToken(), 1);
  cluster.policy = KvPolicy::kAttendRemote;
  cluster.partition = Partition::kHead;
  EXPECT_NEAR(KvTokensMax(shape, cluster).value, 50e9 * 40 / 14 / shape.KvBytesPerToken(), 1);
  cluster.policy = KvPolicy::kLocal;
  EXPECT_NEAR(KvTokensMax(shape, cluster).value,
              (100e9 - shape.WeightBytes()) / shape.KvBytesPerToken(), 1);
  cluster.compute.capacity = {20e9};
  EXPECT_EQ(KvTokensMax(shape, cluster).value, 0);
}

TEST(StepCostTest, ProvenanceIsTheWorstOfTheInputs) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  EXPECT_EQ(StepOf(shape, cluster, {.rows = 1, .context = 1}).step.provenance,
            Provenance::kMeasured);
  cluster.memory_link.latency = {1e-6, Provenance::kAssumed};
  EXPECT_EQ(StepOf(shape, cluster, {.rows = 1, .context = 1}).step.provenance,
            Provenance::kAssumed);
}

TEST(StepCostTest, HowManyTokensSparseWindowsAttendToIsAssumed) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  Cluster cluster = Simple();
  cluster.policy = KvPolicy::kFetchHeads;
  EXPECT_EQ(StepOf(shape, cluster, {.rows = 1, .context = 100}).step.provenance,
            Provenance::kMeasured);
  cluster.policy = KvPolicy::kFetchSparse;
  const StepTimes times = StepOf(shape, cluster, {.rows = 1, .context = 100});
  EXPECT_EQ(times.step.provenance, Provenance::kAssumed);
  EXPECT_EQ(times.attention.provenance, Provenance::kAssumed);
  EXPECT_EQ(times.network.provenance, Provenance::kAssumed);
}

TEST(StepCostTest, Table3OfThePaper) {
  const Catalogue catalogue = CatalogueOfTree("paper");
  const DeviceRates a100 = RatesOf(*catalogue.FindDevice("A100-40G"));
  const LinkRates pcie = RatesOf(*catalogue.FindLink("pcie4-x16"), 1);
  struct Row {
    const char* model;
    uint32_t cards;
    double gigabytes[4];
  };
  for (const Row& row : {Row{"LLaMA-13B", 1, {4.90, 8.12, 9.08, 10.06}},
                         Row{"LLaMA-33B", 2, {5.94, 9.31, 11.56, 12.53}},
                         Row{"LLaMA-65B", 4, {7.55, 11.78, 13.92, 15.90}}}) {
    for (int i = 0; i < 4; ++i) {
      const Estimate needed =
          BandwidthNeeded(*catalogue.FindModel(row.model), a100, pcie, row.cards, 128 << i);
      EXPECT_NEAR(needed.value / 1e9, row.gigabytes[i], 0.13 * row.gigabytes[i])
          << row.model << " at " << (128 << i);
    }
  }
}

TEST(StepCostTest, Figure3OfThePaper) {
  // Utilisation grows with the batch, fast at first, and flattens around 2,048 rows.
  const Catalogue catalogue = CatalogueOfTree("paper");
  const ModelShape& shape = *catalogue.FindModel("LLaMA-13B");
  const Device& a100 = *catalogue.FindDevice("A100-40G");
  double last = 0;
  for (int rows = 1; rows <= 2048; rows *= 2) {
    const double now = ModelFlopsUtilisation(shape, a100, rows);
    EXPECT_GT(now, last);
    last = now;
  }
  EXPECT_LT(ModelFlopsUtilisation(shape, a100, 1), 0.01);
  EXPECT_GT(last, 0.9 * a100.mfu.value);
}

}  // namespace
}  // namespace lamina::cost
