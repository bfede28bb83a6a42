// SPDX-License-Identifier: Apache-2.0
#include "cost/policy_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "tests/unit/cost/two_cores.h"

namespace lamina::cost {
namespace {

using test_support::kModel;
using test_support::kPools;
using test_support::TwoCores;
using test_support::Whole;

TEST(PolicyStepTest, TimesAreReadBetweenTheSizesMeasuredAndBeyondThem) {
  const plan::PolicyTimes times = TwoCores();
  for (const double rows : {1.0, 3.0, 4.0, 10.0, 64.0, 100.0}) {
    EXPECT_NEAR(TimesOf(times.pools, rows).slice_seconds, 1e-4 * (2 + rows), 1e-9) << rows;
    EXPECT_NEAR(TimesOf(times.pools, rows).tail_seconds, 8e-4 * (2 + rows), 1e-8) << rows;
  }
  EXPECT_NEAR(TimesOf({{.rows = 4, .slice_seconds = 2}}, 9).slice_seconds, 2, 1e-9);
  EXPECT_NEAR(TimesOf(times.pools, 0.5).slice_seconds, 3e-4, 1e-9);
}

TEST(PolicyStepTest, ALocalStepIsDenseLayersAndThenAttention) {
  const PolicyStep step = LocalStep(Whole(TwoCores()), {.rows = 16, .context = 1000});
  EXPECT_NEAR(step.dense, 20e-4 * (29 + 8), 1e-9);
  EXPECT_NEAR(step.attention, 16 * 1000 * 23040 / 15e9, 1e-9);
  EXPECT_NEAR(step.seconds, step.dense + step.attention, 1e-12);
}

TEST(PolicyStepTest, MemoryNodesHideWhatIsShorterAndTwoLanesReadTheWeightsTwice) {
  const PolicyStep step =
      PoolsStep(Whole(TwoCores()), kModel, kPools, {.rows = 16, .context = 1000});
  EXPECT_EQ(step.lanes, 2u);
  EXPECT_NEAR(step.dense, 2 * 10e-4 * (29 + 8), 1e-9);
  // Longer than attention, most of which is hidden.
  EXPECT_NEAR(step.seconds, step.dense + 0.2 * step.attention, 1e-12);
  EXPECT_LT(step.attention, step.dense);

  const PolicyStep one = PoolsStep(Whole(TwoCores()), kModel, {.attention = 8e9, .lanes_max = 1},
                                   {.rows = 16, .context = 1000});
  EXPECT_NEAR(one.dense, 18e-4 * (29 + 8), 1e-9);
  EXPECT_NEAR(one.seconds, one.dense + one.attention, 1e-12);
}

TEST(PolicyStepTest, ALaneWithoutRowsMakesNoStep) {
  const PolicyCompute compute = Whole(TwoCores());
  const PolicyPools four = {.attention = 8e9, .lanes_max = 4};
  const PolicyStep automatic = PoolsStep(compute, kModel, kPools, {.rows = 1, .context = 100});
  const PolicyStep fixed = PoolsStep(compute, kModel, four, {.rows = 1, .context = 100});
  EXPECT_EQ(automatic.lanes, 1u);
  EXPECT_EQ(fixed.lanes, 1u);
  EXPECT_DOUBLE_EQ(fixed.seconds, automatic.seconds);
  EXPECT_EQ(PoolsStep(compute, kModel, four, {.rows = 0.2, .context = 100}).lanes, 1u);
  EXPECT_EQ(PoolsStep(compute, kModel, four, {.rows = 2.9, .context = 100}).lanes, 3u);
  EXPECT_EQ(PoolsStep(compute, kModel, four, {.rows = 9, .context = 100}).lanes, 4u);
}

// A compute node that fetches at 10 GB/s, in so many lanes.
PolicyStep Fetched(const PolicyModel& model, uint32_t lanes, const PolicyLoad& load) {
  plan::PolicyTimes times = TwoCores();
  times.attention_pools = 15e9;
  return FetchStep(KvPolicy::kFetchHeads, Whole(times), model,
                   {.attention = 8e9, .lanes_max = lanes, .link = 10e9}, load);
}

TEST(PolicyStepTest, NorDoesOneOfAPolicyThatFetches) {
  const PolicyLoad load = {.rows = 2, .context = 1000};
  EXPECT_DOUBLE_EQ(Fetched(kModel, 8, load).dense, Fetched(kModel, 2, load).dense);
  EXPECT_DOUBLE_EQ(Fetched(kModel, 8, load).seconds, Fetched(kModel, 2, load).seconds);
  EXPECT_EQ(Fetched(kModel, 8, load).lanes, 2u);
}

TEST(PolicyStepTest, LinksCarryWhatWindowsHideAndAttentionDoesNotReadIt) {
  const PolicyLoad load = {.rows = 8, .context = 1000};
  PolicyModel windowed = kModel;
  windowed.read_share = 0.25;
  EXPECT_DOUBLE_EQ(Fetched(windowed, 1, load).transfer, 8 * 1000 * 23040 / 10e9);
  EXPECT_DOUBLE_EQ(Fetched(windowed, 1, load).attention, Fetched(kModel, 1, load).attention / 4);
  EXPECT_NEAR(PoolsStep(Whole(TwoCores()), windowed, {.attention = 8e9}, load).attention,
              8 * 250 * 23040 / 8e9 + 30 * 40e-6, 1e-12);
}

// A slow link, on which K and V of all tokens take four times as long as making them.
TEST(PolicyStepTest, OneLaneRecomputesALayerAheadWhereWindowsHaveRoom) {
  const PolicyLoad load = {.rows = 8, .context = 1000};
  PolicyModel model = kModel;
  model.activation_bytes_per_token = kModel.kv_bytes_per_token / 2;
  PolicyPools pools = {.attention = 8e9, .link = 1e8};
  const double kv_bytes = 8 * 1000 * kModel.kv_bytes_per_token;
  const double kv = kv_bytes / pools.link;
  plan::PolicyTimes times = TwoCores();
  times.attention_pools = 15e9;
  times.make_seconds = kv / 4 / (8 * 1000 * kModel.layers);
  const auto seconds = [&](KvPolicy policy) {
    return FetchStep(policy, Whole(times), model, pools, load).seconds;
  };
  const double exchange = 30 * 40e-6;
  EXPECT_NEAR(seconds(KvPolicy::kFetchRecompute), 0.6 * kv + exchange, 1e-9);
  pools.room = kv_bytes / kModel.layers + 1;
  EXPECT_NEAR(seconds(KvPolicy::kFetchRecompute), 0.5 * kv + exchange, 1e-9);
  EXPECT_NEAR(seconds(KvPolicy::kFetchHybrid), 0.5 * kv + exchange, 1e-9);
  pools.room = 0;
  pools.lanes_max = 2;
  EXPECT_NEAR(seconds(KvPolicy::kFetchRecompute), 0.5 * kv + exchange, 1e-9);
}

// Written out anew: every tile of each row is tried.
TEST(PolicyStepTest, TokensAreMadeFromTheirNumbersWhileTheOthersCome) {
  const PolicyLoad load = {.rows = 8, .context = 1000};
  plan::PolicyTimes times = TwoCores();
  times.attention_pools = 15e9;
  times.make_seconds = 1e-5;
  const double kv_bytes = kModel.kv_bytes_per_token / kModel.layers;
  const double make = 1e-4 * (2 + 256) / 256;  // A block of rows through a slice.
  const double other = (37 * 1e-3 + 8000 * kModel.kv_bytes_per_token / 15e9) / kModel.layers;
  for (const double link : {1e9, 2e7, 5e6, 1e6}) {
    const PolicyPools pools = {.attention = 8e9, .link = link, .made_tokens_max = 1 << 20};
    const PolicyStep step = FetchStep(KvPolicy::kFetchTokens, Whole(times), kModel, pools, load);
    double best = 1e9;
    uint32_t best_made = 0;
    for (uint32_t made = 0; made <= 1000; made += 16) {
      const double device = other + 8 * (make * made + kv_bytes / 15e9 * made * (made + 1.0) / 2);
      const double layer = std::max(device, 8 * kv_bytes / link * (1000 - made));
      if (layer < best) {
        best = layer;
        best_made = made;
      }
    }
    EXPECT_NEAR(step.seconds, kModel.layers * (best + 40e-6), 1e-9) << link;
    EXPECT_DOUBLE_EQ(step.share, best_made / 1000.0) << link;
    EXPECT_EQ(step.share > 0, link < 1e9);
    EXPECT_NEAR(step.make_token, make, 1e-12);
    EXPECT_DOUBLE_EQ(step.from_activation, 1e-5);
    EXPECT_DOUBLE_EQ(step.send_token, kv_bytes / link);
  }
}

TEST(PolicyStepTest, WhereNoTokensAreMadeTheStepIsThatOfFetchHeads) {
  const PolicyLoad load = {.rows = 8, .context = 1000};
  plan::PolicyTimes times = TwoCores();
  times.attention_pools = 15e9;
  PolicyPools pools = {.attention = 8e9, .link = 1e9, .made_tokens_max = 4096};
  const auto step = [&](KvPolicy policy) {
    return FetchStep(policy, Whole(times), kModel, pools, load);
  };
  EXPECT_EQ(step(KvPolicy::kFetchTokens).share, 0);
  EXPECT_NEAR(step(KvPolicy::kFetchTokens).seconds, step(KvPolicy::kFetchHeads).seconds, 1e-9);
  EXPECT_GT(step(KvPolicy::kFetchTokens).tile_seconds, step(KvPolicy::kFetchTokens).seconds);
  // No more are made than there is room for: 80 of each row.
  pools.link = 1e6;
  pools.made_tokens_max = 640;
  EXPECT_DOUBLE_EQ(step(KvPolicy::kFetchTokens).share, 0.08);
  pools.made_tokens_max = 0;
  EXPECT_EQ(step(KvPolicy::kFetchTokens).share, 0);
}

PolicyCompute Replicas(uint32_t count) {
  PolicyCompute compute = Whole(TwoCores());
  compute.replicas.resize(count, compute.replicas.front());
  return compute;
}

TEST(PolicyStepTest, ReplicasShareTheRowsOfALocalStep) {
  EXPECT_DOUBLE_EQ(LocalStep(Replicas(2), {.rows = 16, .context = 1000}).seconds,
                   LocalStep(Replicas(1), {.rows = 8, .context = 1000}).seconds);
  EXPECT_DOUBLE_EQ(LocalStep(Replicas(2), {.rows = 1, .context = 1000}).seconds,
                   LocalStep(Replicas(1), {.rows = 1, .context = 1000}).seconds)
      << "a row is on one of them";
}

// As many lanes as replicas run side by side; one more waits its turn.
TEST(PolicyStepTest, LanesRotateOverReplicas) {
  const auto dense = [&](uint32_t lanes, uint32_t replicas) {
    return PoolsStep(Replicas(replicas), kModel, {.attention = 8e9, .lanes_max = lanes},
                     {.rows = 16, .context = 1000})
        .dense;
  };
  EXPECT_DOUBLE_EQ(dense(2, 2), dense(2, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(3, 2), dense(3, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(2, 3), dense(2, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(1, 2), dense(1, 1));
}

TEST(PolicyStepTest, TheSlowestOfSeveralReplicasCounts) {
  PolicyCompute compute = Replicas(2);
  plan::PolicyTimes& slow = compute.replicas[1].stages[0].shards[0].times;
  const PolicyLoad load = {.rows = 16, .context = 1000};
  slow.attention_local /= 4;
  const PolicyStep local = LocalStep(compute, load);
  EXPECT_DOUBLE_EQ(local.dense, LocalStep(Replicas(2), load).dense);
  EXPECT_DOUBLE_EQ(local.attention, 4 * LocalStep(Replicas(2), load).attention);
  EXPECT_DOUBLE_EQ(PoolsStep(compute, kModel, kPools, load).seconds,
                   PoolsStep(Replicas(2), kModel, kPools, load).seconds)
      << "memory nodes attend";
  for (plan::SliceTimes& size : slow.pools) {
    size.slice_seconds *= 2;
    size.tail_seconds *= 2;
  }
  const PolicyPools one_lane = {.attention = 8e9};
  EXPECT_DOUBLE_EQ(PoolsStep(compute, kModel, one_lane, load).dense,
                   2 * PoolsStep(Replicas(2), kModel, one_lane, load).dense);
}

// --- Replicas in parts ---

constexpr double kKvBytes = 1000;  // Bytes of a token in the layers of one stage, of all heads.
constexpr PartLink kLink = {
    .latency_seconds = 2e-3, .bytes_per_second = 1e6, .row_bytes = 100};  // 0.1 ms for a row.

// Slices and tails of so many milliseconds, whatever the rows; twice as long beside memory nodes.
ReplicaPart Part(double slice_ms, double tail_ms, double kv_bytes) {
  ReplicaPart part{.times = {.attention_local = 1e6, .read_bandwidth = 1e6},
                   .kv_bytes_per_token = kv_bytes};
  for (const uint32_t rows : {1u, 64u}) {
    part.times.local.push_back({rows, slice_ms * 1e-3, tail_ms * 1e-3});
    part.times.pools.push_back({rows, 2 * slice_ms * 1e-3, 2 * tail_ms * 1e-3});
  }
  return part;
}

// Layers 0 to 3 have 3 slices of 5 ms, layers 4 to 9 6 of 2 ms and a tail of 8 ms.
PolicyCompute TwoStages() {
  MeasuredReplica replica;
  replica.stages = {{.shards = {Part(5, 0, kKvBytes)}, .slices = 3},
                    {.shards = {Part(2, 8, kKvBytes)}, .slices = 6, .tail = true}};
  return {.replicas = {replica}, .link = kLink, .lanes_each = 2};
}

// Layers 0 to 9 of two shards, the first with 3 of 4 heads and the LM head.
PolicyCompute TwoShards() {
  MeasuredReplica replica;
  replica.stages = {{.shards = {Part(5, 8, 0.75 * kKvBytes), Part(4, 2, 0.25 * kKvBytes)},
                     .slices = 9,
                     .tail = true}};
  return {.replicas = {replica}, .link = kLink};
}

TEST(PartsStepTest, StagesRunOneAfterTheOtherAndWorkOnOneLaneEach) {
  const PolicyCompute compute = TwoStages();
  // One row is in one lane: 15 + 20 ms of slices, two ways of 2.1 ms, 10 tokens of context in both.
  const PolicyStep one = LocalStep(compute, {.rows = 1, .context = 10});
  EXPECT_NEAR(one.dense, 39.2e-3, 1e-12);
  EXPECT_NEAR(one.attention, 2 * 10e-3, 1e-12);
  EXPECT_NEAR(one.seconds, one.dense + one.attention, 1e-15);
  // Two rows are in two lanes, each of which keeps the second stage busy for 20 ms and 10 tokens.
  const PolicyStep busy = LocalStep(compute, {.rows = 2, .context = 10});
  EXPECT_NEAR(busy.dense, 2 * 20e-3, 1e-12);
  EXPECT_NEAR(busy.attention, 2 * 10e-3, 1e-12);
  EXPECT_NEAR(busy.seconds, busy.dense + busy.attention, 1e-15);
  // Between stages that are alike the way makes a lane's path the longest.
  PolicyCompute even = compute;
  even.replicas[0].stages[0] = {.shards = {Part(5, 0, kKvBytes)}, .slices = 4};
  EXPECT_NEAR(LocalStep(even, {.rows = 2, .context = 10}).seconds, 2 * 30e-3 + 4.2e-3, 1e-12);
}

TEST(PartsStepTest, ShardsWaitForTheSlowestOfThemAndForTheirSums) {
  // 9 slices and the tail have two sums each: 20 times 2 ms, and 0.1 ms for each row.
  const PolicyStep step = LocalStep(TwoShards(), {.rows = 2, .context = 100});
  EXPECT_NEAR(step.dense, 53e-3 + 20 * 2.2e-3, 1e-12);
  EXPECT_NEAR(step.attention, 200 * 0.75e-3, 1e-12);
  // A shard with fewer heads is the slowest where its slices are.
  PolicyCompute other = TwoShards();
  other.replicas[0].stages[0].shards[1] = Part(40, 2, 0.25 * kKvBytes);
  const PolicyStep slices = LocalStep(other, {.rows = 2, .context = 100});
  EXPECT_NEAR(slices.dense, 362e-3 + 20 * 2.2e-3, 1e-12);
  EXPECT_NEAR(slices.attention, 200 * 0.25e-3, 1e-12);
  // A third shard is one more to put a part to.
  PolicyCompute three = TwoShards();
  three.replicas[0].stages[0].shards.push_back(Part(4, 2, 0));
  EXPECT_NEAR(LocalStep(three, {.rows = 2, .context = 100}).dense, 53e-3 + 20 * 2.4e-3, 1e-12);
}

TEST(PartsStepTest, ReplicasInPartsShareTheRows) {
  PolicyCompute two = TwoShards();
  two.replicas.push_back(two.replicas[0]);
  EXPECT_DOUBLE_EQ(LocalStep(two, {.rows = 4, .context = 100}).seconds,
                   LocalStep(TwoShards(), {.rows = 2, .context = 100}).seconds);
}

// Dense layers take 30 and 40 ms, and the way 2 * (2 + 0.1 r) ms for r rows.
TEST(PartsStepTest, MemoryNodesAttendWhileStagesWorkOnOtherLanes) {
  const PolicyCompute compute = TwoStages();
  const PolicyModel model = {.layers = 10, .kv_bytes_per_token = 2 * kKvBytes};
  const PolicyLoad load = {.rows = 4, .context = 100};
  const auto step = [&](uint32_t lanes) {
    return PoolsStep(compute, model, {.attention = 8e6, .lanes_max = lanes}, load);
  };
  const double exchange = 10 * 40e-6;
  const PolicyStep one = step(1);
  EXPECT_NEAR(one.dense, 70e-3 + 2 * 2.4e-3, 1e-12);
  EXPECT_NEAR(one.attention, 100e-3 + exchange, 1e-12);
  EXPECT_NEAR(one.seconds, one.dense + one.attention, 1e-15);
  // Four lanes, of which the second stage works 40 ms on each.
  const PolicyStep four = step(4);
  EXPECT_NEAR(four.dense, 160e-3, 1e-12);
  EXPECT_NEAR(four.attention, 100e-3 + 4 * exchange, 1e-12);
  EXPECT_NEAR(four.seconds, four.dense + 0.2 * four.attention, 1e-12);
  // Two lanes: the path of one is the longest.
  const PolicyStep two = step(2);
  EXPECT_NEAR(two.dense, 80e-3, 1e-12);
  EXPECT_NEAR(two.seconds, 70e-3 + 2 * 2.2e-3 + 50e-3 + exchange + 0.2 * two.dense, 1e-12);
}

TEST(PartsStepTest, MemoryNodesAttendForShardsToo) {
  const PolicyModel model = {.layers = 10, .kv_bytes_per_token = kKvBytes};
  const PolicyStep step =
      PoolsStep(TwoShards(), model, {.attention = 1e6}, {.rows = 2, .context = 100});
  EXPECT_NEAR(step.dense, 2 * 53e-3 + 20 * 2.2e-3, 1e-12);
  EXPECT_NEAR(step.attention, 200e-3 + 10 * 40e-6, 1e-12);
}

TEST(PartsStepTest, AWholeReplicaIsOneStageOfOneShard) {
  const MeasuredReplica whole = WholeReplica(TwoCores(), 30, kKvBytes);
  EXPECT_TRUE(whole.whole());
  EXPECT_FALSE(TwoStages().replicas[0].whole());
  EXPECT_FALSE(TwoShards().replicas[0].whole());
  const ReplicaSeconds seconds = AttendingSeconds(whole, {}, 4, 10);
  EXPECT_EQ(seconds.path.dense, seconds.busiest.dense);
  EXPECT_NEAR(seconds.path.attention, 4 * 10 * kKvBytes / 15e9, 1e-15);
}

}  // namespace
}  // namespace lamina::cost
