// SPDX-License-Identifier: Apache-2.0
//
// One pool of several nodes: policy local with replicas, stages and shards, each of which has K and
// V of what it computes. The bits are those of memory nodes with the same shards.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

RandomModelSpec FourLayers(RandomModelSpec model) {
  model.layers = 4;
  return model;
}

struct Pool {
  std::string name;
  RandomModelSpec model = FourLayers(SmallModel());
  DType compute_type = DType::kBF16;
  uint32_t replicas = 1;
  uint32_t stages = 1;
  uint32_t shards = 1;
  uint32_t lanes = 1;
  uint32_t chunk_tokens = 512;
  bool int8 = false;

  uint32_t nodes() const { return replicas * stages * shards; }
};

std::vector<Pool> Pools() {
  return {{.name = "TwoReplicas", .replicas = 2, .lanes = 2},
          {.name = "ThreeReplicas",
           .model = FourLayers(SmallParallelModel()),
           .compute_type = DType::kF32,
           .replicas = 3,
           .lanes = 3,
           .chunk_tokens = 16},
          {.name = "TwoStages", .stages = 2, .lanes = 2, .chunk_tokens = 64},
          {.name = "ThreeStagesOneLane",
           .model = FourLayers(SmallParallelModel()),
           .compute_type = DType::kF32,
           .stages = 3},
          {.name = "TwoShards", .shards = 2, .chunk_tokens = 64},
          {.name = "TwoShardsTwoLanes",
           .model = FourLayers(SmallParallelModel()),
           .compute_type = DType::kF32,
           .shards = 2,
           .lanes = 2,
           .chunk_tokens = 16},
          {.name = "ReplicasOfStages", .replicas = 2, .stages = 2, .lanes = 4},
          {.name = "ReplicasOfShards", .replicas = 2, .shards = 2, .lanes = 2, .chunk_tokens = 64},
          {.name = "StagesOfShards", .stages = 2, .shards = 2, .lanes = 2},
          {.name = "ReplicasOfStagesOfShards", .replicas = 2, .stages = 2, .shards = 2, .lanes = 4},
          {.name = "ReplicasOfStagesOfShardsInInt8",
           .replicas = 2,
           .stages = 2,
           .shards = 2,
           .lanes = 4,
           .int8 = true}};
}

LocalClusterOptions OptionsOf(const Pool& pool) {
  return {.model = pool.model,
          .compute_type = pool.compute_type,
          .compute_nodes = pool.nodes(),
          .stages = pool.stages,
          .shards = pool.shards,
          .local = true,
          .slots = 8192,
          .int8 = pool.int8,
          .lanes = pool.lanes,
          .chunk_tokens = pool.chunk_tokens,
          .sequence_tokens_max = 768};
}

// Memory nodes, and as many shards: on these bits depend.
LocalClusterOptions TwoPools(const Pool& pool) {
  LocalClusterOptions options = OptionsOf(pool);
  options.compute_nodes = pool.shards;
  options.stages = 1;
  options.local = false;
  options.memory_nodes = 2;
  options.lanes = 1;
  return options;
}

class PoolTest : public ::testing::TestWithParam<Pool> {};

TEST_P(PoolTest, HasTheBitsOfTwoPools) {
  const Pool& pool = GetParam();
  const std::unique_ptr<LocalCluster> pools = MakeCluster(TwoPools(pool));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(pool));
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  ExpectSame(cluster->GenerateMany(MixedRequests()), pools->GenerateMany(MixedRequests()));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.epoch, 1u);  // Nothing went wrong and was done again.
  EXPECT_EQ(status.scheduler.lane_count.lanes, pool.lanes);
  for (uint32_t node = 0; node < pool.nodes(); ++node) {
    const std::string name = absl::StrCat("c", node);
    SCOPED_TRACE(name);
    const telemetry::NodeCounters counters = cluster->handler(name).Counters();
    EXPECT_GT(counters.units, 0u);
    EXPECT_GT(counters.kv_bytes_read, 0u);
    EXPECT_EQ(counters.links.size(), pool.stages * pool.shards - 1);  // Those of its replica.
    EXPECT_EQ(status.nodes.at(node).kv.slots_total, status.nodes.at(0).kv.slots_total);
  }
}

TEST_P(PoolTest, HasTheBitsOfTwoPoolsWhereSlotsRunOut) {
  const Pool& pool = GetParam();
  std::vector<GenerateSpec> specs = LongRequests(8 * pool.replicas);
  GenerateSpec forked = Sampled(RandomPrompt(70, 5), 30, 50);
  forked.choices = 3;
  LocalClusterOptions options = OptionsOf(pool);
  options.running_max = 64;
  options.sequence_tokens_max = 256;
  // A stage, and a shard, has room for as many more tokens as it has fewer layers and heads.
  options.slots = 600 / (pool.stages * pool.shards);
  LocalClusterOptions plain = TwoPools(pool);
  plain.sequence_tokens_max = 256;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(plain);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  ExpectSame(cluster->GenerateMany(specs), pools->GenerateMany(specs));

  if (!pool.int8) {  // Tails of open blocks, for all that may run, leave room.
    EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  }
  const GenerateResult choices = cluster->Generate(forked);
  const GenerateResult expected = pools->Generate(forked);
  ASSERT_EQ(choices.choices.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ExpectSameChoice(choices.choices[i], expected.choices[i]);
  }
  const std::vector<TokenId> text = RandomPrompt(200, 9);
  EXPECT_EQ(Bits(cluster->Score(text).scores), Bits(pools->Score(text).scores));
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Each node of a replica takes it with it: its requests start again in another one, or wait.
TEST_P(PoolTest, RequestsOutliveEveryNode) {
  const Pool& pool = GetParam();
  LocalClusterOptions options = OptionsOf(pool);
  options.chunk_tokens = 64;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  for (uint32_t node = 0; node < pool.nodes(); node += std::max(1u, pool.nodes() / 3)) {
    const std::string name = absl::StrCat("c", node);
    SCOPED_TRACE(name);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    for (const std::shared_ptr<LocalRequest>& request : requests) {
      request->WaitForTokens(2);
    }
    const uint64_t epoch = cluster->engine().GetStatus().epoch;

    cluster->Detach(name);

    std::vector<GenerateResult> results;
    for (size_t i = 0; i < requests.size(); ++i) {
      results.push_back(requests[i]->Wait());
      if (pool.replicas == 1 && !results.back().status.ok()) {  // It may have been faster.
        EXPECT_EQ(results.back().status.code(), absl::StatusCode::kUnavailable);
        results.back() = undisturbed[i];
      }
    }
    ExpectSame(results, undisturbed);
    if (pool.replicas > 1) {
      EXPECT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
      EXPECT_EQ(cluster->engine().GetStatus().scheduler.lane_count.lanes,
                pool.lanes / pool.replicas * (pool.replicas - 1));
    }
    cluster->Attach(name);
    EXPECT_TRUE(cluster->WaitForEpoch(epoch + 1 + (pool.replicas > 1 ? 1 : 0)).ok());
    EXPECT_TRUE(cluster->WaitForState("serving").ok());
  }
  ExpectSame(cluster->GenerateMany(specs), undisturbed);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST_P(PoolTest, AnUnrulyTransportChangesNothing) {
  const Pool& pool = GetParam();
  const auto network = transport::FakeNetwork::Named(
      absl::StrCat("unruly_pool_", pool.name),
      {.seed = 23, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  LocalClusterOptions options = OptionsOf(pool);
  options.transports = {absl::StrCat("fake://unruly_pool_", pool.name)};
  const std::unique_ptr<LocalCluster> pools = MakeCluster(TwoPools(pool));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);
  std::vector<GenerateSpec> specs = MixedRequests();
  specs.resize(10);

  ExpectSame(cluster->GenerateMany(specs), pools->GenerateMany(specs));

  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Pools, PoolTest, ::testing::ValuesIn(Pools()),
                         [](const ::testing::TestParamInfo<Pool>& test) {
                           return test.param.name;
                         });

// One after the other, so that no replica is busy.
std::vector<GenerateResult> InTurn(LocalCluster& cluster, const std::vector<GenerateSpec>& specs) {
  std::vector<GenerateResult> results;
  for (const GenerateSpec& spec : specs) {
    results.push_back(cluster.Generate(spec));
  }
  return results;
}

// Whoever goes on with an answer finds it where it was computed, and a change of members leaves it
// there.
TEST(PoolTest, ConversationsStayWithTheirReplica) {
  const Pool pool = {.replicas = 2, .lanes = 2};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(pool));
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Greedy(RandomPrompt(64 + 16 * i, i), 40));
  }
  const std::vector<GenerateResult> first = cluster->GenerateMany(specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_TRUE(first[i].status.ok()) << first[i].status;
    const std::vector<TokenId>& answer = first[i].choices[0].tokens;
    specs[i].prompt.insert(specs[i].prompt.end(), answer.begin(), answer.end());
    specs[i].prompt.push_back(7);
  }
  const std::vector<GenerateResult> second = InTurn(*cluster, specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_TRUE(second[i].status.ok()) << second[i].status;
    // All but the last token of the answer, in whole blocks.
    EXPECT_EQ(second[i].choices[0].usage.cached_tokens, (64 + 16 * i + 39) / 16 * 16) << i;
  }
  const uint64_t epoch = cluster->engine().GetStatus().epoch;

  cluster->Detach("c1");

  ASSERT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
  const std::vector<GenerateResult> third = InTurn(*cluster, specs);
  ExpectSame(third, second);
  size_t found = 0;
  for (const GenerateResult& result : third) {
    found += result.choices[0].usage.cached_tokens > 0 ? 1 : 0;
  }
  EXPECT_GT(found, 0u);            // Those that c0 had.
  EXPECT_LT(found, specs.size());  // The others have gone with c1.
}

// Requests go where there are slots, and rows are spread over replicas.
TEST(PoolTest, ReplicasShareTheRows) {
  const Pool pool = {.replicas = 2, .lanes = 2};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(pool));
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    requests.push_back(cluster->Start(Greedy(RandomPrompt(20, i), 600)));
  }
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    request->WaitForTokens(2);
  }

  const coordinator::EngineStatus status = cluster->engine().GetStatus();

  ASSERT_EQ(status.scheduler.lanes.size(), 2u);
  EXPECT_EQ(status.scheduler.lanes[0].rows + status.scheduler.lanes[1].rows, 8u);
  EXPECT_GE(status.scheduler.lanes[0].rows, 2u);  // When each came decides which lane was open.
  EXPECT_GE(status.scheduler.lanes[1].rows, 2u);
  EXPECT_THAT(status.partition, AllOf(HasSubstr("policy local"), HasSubstr("c0, c1")));
  EXPECT_THAT(status.scheduler.lane_count.why, HasSubstr("one for each replica"));
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    cluster->Cancel(*request);
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Each serves with all of its own room, whichever comes first.
TEST(PoolTest, ReplicasOfUnlikeCapacityHaveTheBitsOfTwoPools) {
  const Pool pool = {.replicas = 2, .lanes = 2};
  const std::vector<GenerateSpec> specs = LongRequests(16);
  LocalClusterOptions plain = TwoPools(pool);
  plain.sequence_tokens_max = 256;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(plain);
  ASSERT_NE(pools, nullptr);
  const std::vector<GenerateResult> expected = pools->GenerateMany(specs);
  const std::vector<std::vector<uint32_t>> both_ways = {{1, 8}, {8, 1}};
  for (const std::vector<uint32_t>& capacities : both_ways) {
    SCOPED_TRACE(absl::StrCat("c0 has ", capacities[0], " parts"));
    LocalClusterOptions options = OptionsOf(pool);
    options.sequence_tokens_max = 256;
    options.slots = 320;
    options.compute_capacities = capacities;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(specs), expected);

    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    EXPECT_EQ(status.epoch, 1u);  // Every slot that was handed out was there.
    const bool second = capacities[1] > capacities[0];
    const core::KvPoolStats& larger = status.nodes.at(second ? 1 : 0).kv;
    const core::KvPoolStats& smaller = status.nodes.at(second ? 0 : 1).kv;
    EXPECT_EQ(larger.slots_total, 8 * smaller.slots_total);
    // The prefix cache keeps blocks for which the smaller one has no slots.
    EXPECT_GT(larger.slots_total - larger.slots_free, smaller.slots_total);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST(PoolTest, AShardWithoutRoomForOneRequestIsNamed) {
  const Pool pool = {.shards = 2};
  LocalClusterOptions options = OptionsOf(pool);
  options.slots = options.sequence_tokens_max / 2 - 1;
  options.attach = false;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  cluster->Attach("c0");
  cluster->Attach("c1");
  cluster->engine().GetStatus();  // Both have joined.

  const GenerateResult refused = cluster->Generate(Greedy(RandomPrompt(5, 1), 4));

  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status.message()),
              AllOf(HasSubstr("c0"), HasSubstr("4 layers and 1 KV heads"),
                    HasSubstr("raise its capacity to")));
}

}  // namespace
}  // namespace lamina::test_support
