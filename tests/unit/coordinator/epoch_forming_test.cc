// SPDX-License-Identifier: Apache-2.0
#include "coordinator/epoch_forming.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two layers of three KV heads: 768 bytes a token.
EngineOptions Options() {
  return {.layers = {{.query_heads = 3, .kv_heads = 3, .head_dim = 32},
                     {.query_heads = 3, .kv_heads = 3, .head_dim = 32}},
          .scheduler = {.lanes = 2,
                        .rows_max = 4,
                        .step_tokens_max = 16,
                        .chunk_tokens = 8,
                        .scratch_tokens = 64,
                        .sequence_tokens_max = 64,
                        .running_max = 8,
                        .waiting_max = 4}};
}

// c0 and c1 are whole replicas; m0 has twice the bandwidth of m1.
EpochMembers Members() {
  return {.epoch = 7,
          .transport = "shm://",
          .compute = {{.name = "c0"}, {.name = "c1"}},
          .kv = {{.name = "m0", .slots = 100, .capacity_bytes = 76800},
                 {.name = "m1", .slots = 200, .capacity_bytes = 153600}},
          .bandwidth = {.bytes_per_second = {2e9, 1e9}, .words = "by attention of late"}};
}

TEST(EpochFormingTest, AnEpochHasTheLimitsOfTheOptionsAndTheNodesInTheirOrder) {
  const EngineOptions options = Options();
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  const plan::EpochConfig& config = formed->config();
  EXPECT_EQ(config.epoch, 7u);
  EXPECT_EQ(config.lanes, 2u);
  EXPECT_EQ(config.rows_max, 4u);
  EXPECT_EQ(config.row_sequences_max, 4u);
  EXPECT_EQ(config.chunk_tokens_max, 16u);
  EXPECT_EQ(config.scratch_tokens, 64u);
  EXPECT_EQ(config.sequence_tokens_max, 64u);
  EXPECT_EQ(config.transport, "shm://");
  EXPECT_THAT(config.compute_nodes, ElementsAre("c0", "c1"));
  EXPECT_THAT(config.memory_nodes, ElementsAre("m0", "m1"));
  EXPECT_THAT(config.slots, ElementsAre(100, 200));
  EXPECT_TRUE(config.attention_paths.Has(plan::AttentionPath::kRemote));
  EXPECT_FALSE(formed->heads_spread());
}

TEST(EpochFormingTest, SequencesArePlacedOnEachNodeByItsBandwidth) {
  const EngineOptions options = Options();
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_EQ(formed->shares.size(), 2u);
  EXPECT_EQ(formed->shares[0].name, "m0");
  EXPECT_EQ(formed->shares[0].slots, 100u);
  EXPECT_EQ(formed->shares[0].bandwidth_bytes_per_second, 2e9);
  EXPECT_EQ(formed->partition, "request");
  EXPECT_EQ(formed->shares_by, "by attention of late");
}

TEST(EpochFormingTest, SharesSayHowManyOfTheirSlotsHoldActivations) {
  const EngineOptions options = Options();
  EpochMembers members = Members();
  const auto without = EpochForming(options).Form(members);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->shares[1].activation_share, 0u);

  members.compute.pop_back();
  members.fetch = {
      .bytes = 1 << 20, .heads = 3, .activation_width = 64, .hybrid = HybridOptions{.share = 512}};
  members.activation_share = 256;
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().activation_share, 256u);
  EXPECT_EQ(formed->shares[0].activation_share, 256u);
  EXPECT_EQ(formed->shares[1].activation_share, 256u);
}

ClusterAttention Both(AttentionArithmetic arithmetic) {
  return {.decode = arithmetic, .prefill = arithmetic};
}

TEST(EpochFormingTest, AttentionIsInPairsOrTilesWhereEveryNodeIsFastAtThem) {
  EngineOptions options = Options();
  options.attention = Both(AttentionArithmetic::kAuto);
  EpochMembers members = Members();
  for (EpochMember* node : {&members.compute[0], &members.compute[1], &members.kv[0]}) {
    node->fast_attention = AttentionArithmetic::kPairs;
  }

  const auto mixed = EpochForming(options).Form(members);
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->config().attention, Both(AttentionArithmetic::kCanonical));
  EXPECT_EQ(mixed->attention, "canonical: m1 is not fast at pairs of bf16");

  members.kv[1].fast_attention = AttentionArithmetic::kTiles;
  const auto two = EpochForming(options).Form(members);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->config().attention, Both(AttentionArithmetic::kCanonical));
  EXPECT_EQ(two->attention, "canonical: m1 is not fast at pairs of bf16");

  members.kv[1].fast_attention = AttentionArithmetic::kPairs;
  const auto fast = EpochForming(options).Form(members);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->config().attention, Both(AttentionArithmetic::kPairs));
  EXPECT_EQ(fast->attention, "pairs: every node is fast at pairs of bf16");

  for (std::vector<EpochMember>* nodes : {&members.compute, &members.kv}) {
    for (EpochMember& node : *nodes) {
      node.fast_attention = AttentionArithmetic::kTiles;
    }
  }
  const auto tiles = EpochForming(options).Form(members);
  ASSERT_TRUE(tiles.ok()) << tiles.status();
  EXPECT_EQ(tiles->config().attention, Both(AttentionArithmetic::kTiles));
  EXPECT_EQ(tiles->attention, "tiles: every node is fast at tiles of bf16");

  options.kv.form = KvForm::kInt8;
  const auto int8 = EpochForming(options).Form(members);
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->config().attention, Both(AttentionArithmetic::kCanonical));
  EXPECT_EQ(int8->attention, "canonical: INT8 KV has no other");
  options.kv.form = KvForm::kBF16;

  members.fetch.bytes = uint64_t{1} << 20;
  members.compute.pop_back();
  const auto fetching = EpochForming(options).Form(members);
  ASSERT_TRUE(fetching.ok()) << fetching.status();
  EXPECT_EQ(fetching->config().attention, Both(AttentionArithmetic::kCanonical));
  EXPECT_EQ(fetching->attention, "canonical: policies that fetch have no other");
}

EngineOptions BothForms() {
  EngineOptions options = Options();
  options.kv = {.tails = 1, .int8_percent = 50};
  options.policies = {
      {.name = "attend_remote", .path = plan::AttentionPath::kRemote},
      {.name = "attend_remote", .path = plan::AttentionPath::kRemoteInt8, .kv = KvForm::kInt8}};
  return options;
}

TEST(EpochFormingTest, SlotsOfTwoFormsAreSharesOfTheirOwn) {
  const EngineOptions options = BothForms();
  const EpochMembers members = Members();
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_EQ(formed->shares.size(), 4u);
  for (uint32_t share = 0; share < 4; ++share) {
    SCOPED_TRACE(share);
    const bool int8 = share >= 2;
    const KvSlots slots = options.kv.BothIn(members.kv[share % 2].capacity_bytes, options.layers);
    EXPECT_EQ(formed->shares[share].slots, int8 ? slots.int8 : slots.bf16);
    EXPECT_GT(formed->shares[share].slots, 0u);
    EXPECT_EQ(formed->shares[share].form, int8 ? KvForm::kInt8 : KvForm::kBF16);
    EXPECT_EQ(formed->shares[share].name, members.kv[share % 2].name);
    EXPECT_EQ(int8 ? formed->config().int8_slots[share - 2] : formed->config().slots[share],
              formed->shares[share].slots);
  }
  EXPECT_THAT(formed->SharesOf(0), ElementsAre(0, 2));
  EXPECT_THAT(formed->SharesOf(1), ElementsAre(1, 3));
  plan::StepPlan plan{.joins = {{.id = 1, .memory_node = 3}, {.id = 2, .memory_node = 0}},
                      .allocations = {{.sequence = 1, .memory_node = 3}}};
  formed->NameNodes(plan);
  EXPECT_EQ(plan.joins[0].memory_node, 1u);
  EXPECT_EQ(plan.joins[1].memory_node, 0u);
  EXPECT_EQ(plan.allocations[0].memory_node, 1u);
}

TEST(EpochFormingTest, WhereHeadsAreSpreadEachFormIsOneShare) {
  EngineOptions options = BothForms();
  options.partition = Partition::kHead;
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_EQ(formed->shares.size(), 2u);
  EXPECT_EQ(formed->shares[1].form, KvForm::kInt8);
  EXPECT_THAT(formed->config().slots, testing::Each(formed->shares[0].slots));
  EXPECT_THAT(formed->config().int8_slots, testing::Each(formed->shares[1].slots));
  EXPECT_THAT(formed->SharesOf(0), ElementsAre(0, 1));
  EXPECT_THAT(formed->SharesOf(1), ElementsAre(0, 1));
}

// Half of its bytes each. An activation takes 256 bytes, a third of K and V.
TEST(EpochFormingTest, SlotsOfHybridAreSharesOfTheirOwnNextToOthers) {
  EngineOptions options = Options();
  options.policies = {{.name = "attend_remote", .path = plan::AttentionPath::kRemote},
                      {.name = "fetch_heads", .path = plan::AttentionPath::kFetch},
                      {.name = "fetch_hybrid", .path = plan::AttentionPath::kHybrid}};
  EpochMembers members = Members();
  members.compute.pop_back();
  members.fetch = {.bytes = 1 << 20,
                   .activation_width = 64,
                   .hybrid = HybridOptions{.share = 512, .percent = 50}};
  members.activation_share = 512;
  const absl::Status small = EpochForming(options).Form(members).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(small.message()),
              HasSubstr("m0 has room for 64 tokens of policy fetch_hybrid (fetch.hybrid_percent "
                        "50) and 48 of the others, but one request may have 64"));

  members.kv[0].capacity_bytes = 153600;
  members.kv[1].capacity_bytes = 307200;
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_THAT(formed->config().slots, ElementsAre(96, 192));
  EXPECT_THAT(formed->config().hybrid_slots, ElementsAre(128, 288));
  EXPECT_EQ(formed->config().activation_share, 512u);
  EXPECT_EQ(formed->partition, "request; 50% of the room is for fetch_hybrid");
  ASSERT_EQ(formed->shares.size(), 4u);
  for (uint32_t share = 0; share < 4; ++share) {
    SCOPED_TRACE(share);
    const core::MemoryNodeShare& of = formed->shares[share];
    const bool hybrid = share >= 2;
    EXPECT_EQ(of.name, members.kv[share % 2].name);
    EXPECT_EQ(of.slots,
              hybrid ? formed->config().hybrid_slots[share - 2] : formed->config().slots[share]);
    EXPECT_EQ(of.activation_share, hybrid ? 512u : 0u);
    EXPECT_EQ(options.scheduler.MayHold(of, plan::AttentionPath::kHybrid), hybrid);
    EXPECT_EQ(options.scheduler.MayHold(of, plan::AttentionPath::kRemote), !hybrid);
    EXPECT_EQ(options.scheduler.MayHold(of, plan::AttentionPath::kFetch), !hybrid);
  }
  EXPECT_THAT(formed->SharesOf(1), ElementsAre(1, 3));
  plan::StepPlan plan{.joins = {{.id = 1, .memory_node = 3}, {.id = 2, .memory_node = 0}},
                      .allocations = {{.sequence = 1, .memory_node = 3}}};
  formed->NameNodes(plan);
  EXPECT_EQ(plan.joins[0].memory_node, 1u);
  EXPECT_EQ(plan.joins[1].memory_node, 0u);
  EXPECT_EQ(plan.allocations[0].memory_node, 1u);

  options.partition = Partition::kHead;
  const auto spread = EpochForming(options).Form(members);
  ASSERT_TRUE(spread.ok()) << spread.status();
  ASSERT_EQ(spread->shares.size(), 2u);
  EXPECT_THAT(spread->config().slots, testing::Each(spread->shares[0].slots));
  EXPECT_THAT(spread->config().hybrid_slots, testing::Each(spread->shares[1].slots));
  EXPECT_THAT(spread->SharesOf(1), ElementsAre(0, 1));
}

// The faster node would have two of three heads, and has room for both parts of one.
TEST(EpochFormingTest, HeadsGoWhereSlotsOfHybridAndThoseOfOthersHaveRoom) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.policies = {{.name = "attend_remote", .path = plan::AttentionPath::kRemote},
                      {.name = "fetch_hybrid", .path = plan::AttentionPath::kHybrid}};
  EpochMembers members = Members();
  members.compute.pop_back();
  members.fetch = {.bytes = 1 << 20,
                   .activation_width = 64,
                   .hybrid = HybridOptions{.share = 512, .percent = 50}};
  members.activation_share = 512;
  members.kv[0].capacity_bytes = 60'000;
  members.kv[1].capacity_bytes = 76'800;
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().heads[0].count, 1u);
  EXPECT_EQ(formed->config().heads[1].count, 2u);
  EXPECT_THAT(formed->config().slots, ElementsAre(64, 64));
}

TEST(EpochFormingTest, OfSeveralPoliciesAllPathsArePrepared) {
  EngineOptions options = Options();
  options.policies = {{.name = "attend_remote", .path = plan::AttentionPath::kRemote},
                      {.name = "fetch_sparse", .path = plan::AttentionPath::kSparse}};
  EpochMembers members = Members();
  members.fetch.bytes = uint64_t{1} << 20;
  members.fetch.sparse_ratio = 0.25;
  members.compute.pop_back();
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().attention_paths,
            plan::AttentionPaths({plan::AttentionPath::kRemote, plan::AttentionPath::kSparse}));
  EXPECT_EQ(formed->config().sparse_ratio, 0.25);
  EXPECT_EQ(formed->config().fetch_bytes, uint64_t{1} << 20);
}

TEST(EpochFormingTest, AttentionThatIsNamedIsTaken) {
  EngineOptions options = Options();
  options.attention = {.decode = AttentionArithmetic::kAuto,
                       .prefill = AttentionArithmetic::kPairs};
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().attention.decode, AttentionArithmetic::kCanonical);
  EXPECT_EQ(formed->config().attention.prefill, AttentionArithmetic::kPairs);
  EXPECT_EQ(formed->attention, "canonical, prompts pairs: as the cluster file says");
}

// Policy local: c0 and c1 hold K and V.
EpochMembers LocalMembers() {
  EpochMembers members = Members();
  members.local = true;
  members.kv[0].name = "c0";
  members.kv[1].name = "c1";
  return members;
}

TEST(EpochFormingTest, ReplicasThatKeepKvHaveLanesOfTheirOwn) {
  EngineOptions options = Options();
  options.replica_lanes = 3;
  const auto formed = EpochForming(options).Form(LocalMembers());
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().lanes, 6u);
  EXPECT_THAT(formed->config().memory_nodes, ElementsAre("c0", "c1"));
  EXPECT_THAT(formed->config().slots, ElementsAre(100, 200));
  EXPECT_THAT(formed->share_of, ElementsAre(0, 1));
  EXPECT_TRUE(formed->homes().bound());
  EXPECT_EQ(formed->homes().GroupOf(3), 1u);
  EXPECT_EQ(formed->partition,
            "request; policy local: K and V stay on c0, c1, which attend themselves");
  EXPECT_FALSE(EpochForming(options).Form(Members())->homes().bound());
}

// Each node holds one layer of two, and one head of three, or two of them.
TEST(EpochFormingTest, NodesOfAReplicaHaveTheSlotsOfTheFullest) {
  const EngineOptions options = Options();
  EpochMembers members = LocalMembers();
  const auto shard = [](uint32_t index, uint32_t heads) {
    return ShardPart{.index = index,
                     .count = 2,
                     .first_head = index,
                     .heads = heads,
                     .first_column = 64 * index,
                     .columns = 64};
  };
  members.compute = {{.name = "c0"}, {.name = "c1"}, {.name = "c2"}, {.name = "c3"}};
  members.stages = {{.first_layer = 0, .layers = 1, .shard = shard(0, 1)},
                    {.first_layer = 0, .layers = 1, .shard = shard(1, 2)},
                    {.first_layer = 1, .layers = 1, .shard = shard(0, 1)},
                    {.first_layer = 1, .layers = 1, .shard = shard(1, 2)}};
  members.kv.clear();
  for (const EpochMember& node : members.compute) {
    members.kv.push_back({.name = node.name, .capacity_bytes = 128 * 200});
  }
  members.bandwidth.bytes_per_second = {1, 2, 3, 4};
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_EQ(formed->shares.size(), 1u);
  EXPECT_EQ(formed->shares[0].name, "c0+c1+c2+c3");
  EXPECT_EQ(formed->shares[0].slots, 100u);  // One head of a layer takes 128 bytes, two 256.
  EXPECT_EQ(formed->shares[0].bandwidth_bytes_per_second, 10);
  EXPECT_THAT(formed->config().slots, ElementsAre(100, 100, 100, 100));
  EXPECT_THAT(formed->share_of, ElementsAre(0, 0, 0, 0));
}

TEST(EpochFormingTest, APartThatHasNoRoomForOneRequestIsNamed) {
  const EngineOptions options = Options();
  EpochMembers members = LocalMembers();
  members.stages = {{.first_layer = 0, .layers = 1}, {.first_layer = 1, .layers = 1}};
  members.kv[1].capacity_bytes = 384 * 63;
  const auto formed = EpochForming(options).Form(members);
  EXPECT_EQ(formed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(formed.status().message()),
              ::testing::AllOf(HasSubstr("c1"), HasSubstr("room for 63 tokens of its 1 layers"),
                               HasSubstr("one request may have 64"), HasSubstr("24.0 KiB")));
}

TEST(EpochFormingTest, HeadsAreSpreadOverAllNodesAsOne) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.partition_why = "chosen because";
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_EQ(formed->shares.size(), 1u);
  EXPECT_EQ(formed->shares[0].name, "m0+m1");
  EXPECT_EQ(formed->shares[0].bandwidth_bytes_per_second, 3e9);
  ASSERT_EQ(formed->config().heads.size(), 2u);
  EXPECT_EQ(formed->config().heads[0].count, 2u);
  EXPECT_THAT(formed->config().slots,
              ElementsAre(formed->shares[0].slots, formed->shares[0].slots));
  EXPECT_TRUE(formed->heads_spread());
  EXPECT_THAT(formed->partition, HasSubstr("head: m0 2, m1 1 of 3 KV heads"));
  EXPECT_THAT(formed->partition, HasSubstr("; chosen because"));
}

// An activation has 100 elements in a layer, of which m0 has 66 with two heads and m1 34 with one.
TEST(EpochFormingTest, ActivationsAreSpreadAsHeadsAre) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  EpochMembers members = Members();
  members.compute.pop_back();
  members.fetch = {.bytes = uint64_t{1} << 20, .activation_width = 100};
  const auto both = EpochForming(options).Form(members);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->config().activation_width, 100u);
  EXPECT_EQ(both->config().heads[0].count, 2u);
  const uint64_t slot = 2 * (2 * 128 + 2 * 66);
  EXPECT_THAT(both->config().slots, ElementsAre(76800 / slot, 76800 / slot));
  EXPECT_THAT(both->partition, HasSubstr("m0 has the least room"));
  EXPECT_EQ(both->shares[0].slots, both->config().slots[0]);

  // One of the two: half of the blocks of 16 slots each, of which 12 fit.
  members.fetch.hybrid = HybridOptions{.share = 512};
  members.activation_share = 512;
  const auto either = EpochForming(options).Form(members);
  ASSERT_TRUE(either.ok()) << either.status();
  EXPECT_EQ(either->config().activation_share, 512u);
  EXPECT_EQ(either->shares[0].activation_share, 512u);
  EXPECT_THAT(either->config().slots, ElementsAre(192, 192));
}

TEST(EpochFormingTest, HeadsThatDoNotFitTheNodesThatAreThereAreRefused) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  EpochMembers members = Members();
  members.kv = {{.name = "m0", .slots = 40, .capacity_bytes = 40 * 768}};
  members.bandwidth.bytes_per_second = {1e9};
  const absl::Status refused = EpochForming(options).Form(members).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("m0"));
}

TEST(EpochFormingTest, SpansThatDoNotFitTheNodesThatAreThereAreRefused) {
  EngineOptions options = Options();
  options.partition = Partition::kTokenRange;
  options.scheduler.span_tokens = 16;
  const auto formed = EpochForming(options).Form(Members());
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->config().span_tokens, 16u);
  EXPECT_EQ(formed->partition, "token_range: spans of 16 tokens over 2 memory nodes");
  EpochMembers members = Members();
  members.kv = {{.name = "m0", .slots = 40}};
  members.bandwidth.bytes_per_second = {1e9};
  EXPECT_EQ(EpochForming(options).Form(members).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(EpochFormingTest, LocalEpochsAttendWhereKvIs) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  options.device_waits = true;
  EpochMembers members = Members();
  members.local = true;
  members.compute = {{.name = "c0", .on_device = true, .slots = 300}};
  members.kv = members.compute;
  members.bandwidth.bytes_per_second = {1e9};
  const auto formed = EpochForming(options).Form(members);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_TRUE(formed->config().attention_paths.Has(plan::AttentionPath::kLocal));
  EXPECT_FALSE(formed->config().attention_paths.Has(plan::AttentionPath::kRemote));
  EXPECT_EQ(formed->partition, "request; policy local: K and V stay on c0, which attends itself");
  EXPECT_FALSE(formed->config().compute_waits) << "there is nobody to wait for";
}

TEST(EpochFormingTest, DevicesWaitWhereThereAreSome) {
  EngineOptions options = Options();
  EpochMembers members = Members();
  members.compute[1].on_device = true;
  EXPECT_FALSE(EpochForming(options).Form(members)->config().compute_waits) << "not wanted";
  options.device_waits = true;
  const auto formed = EpochForming(options).Form(members);
  EXPECT_TRUE(formed->config().compute_waits);
  EXPECT_FALSE(formed->config().memory_waits);
  members.kv[0].on_device = true;
  EXPECT_TRUE(EpochForming(options).Form(members)->config().memory_waits);
}

TEST(EpochFormingTest, PromptsHaveALaneForEachReplicaOrStage) {
  const EngineOptions options = Options();
  EpochMembers members = Members();
  members.compute.push_back({.name = "p0"});
  members.prefill_nodes = 1;
  const auto whole = EpochForming(options).Form(members);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->config().lanes, 3u);
  EXPECT_EQ(whole->config().prefill_lanes, 1u);

  members.compute.push_back({.name = "p1"});
  members.prefill_nodes = 2;
  members.stages = {{.replica = 0, .layers = 2},
                    {.replica = 1, .layers = 2},
                    {.replica = 2, .layers = 1},
                    {.replica = 2, .first_layer = 1, .layers = 1}};
  const auto staged = EpochForming(options).Form(members);
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->config().prefill_lanes, 2u) << "one for each stage";
  EXPECT_EQ(staged->topology.prefill_lanes().replicas, 1u);
}

// Nothing that a node says brings it about; nodes would refuse it one after the other.
TEST(EpochFormingTest, AConfigurationThatNoNodeWouldTakeIsRefused) {
  const EngineOptions options = Options();
  EpochMembers members = Members();
  members.prefill_nodes = 2;
  EXPECT_EQ(EpochForming(options).Form(members).status().code(),
            absl::StatusCode::kInvalidArgument);
}

core::Membership Prepared(const std::vector<core::Member>& nodes) {
  core::Membership membership(nodes);
  for (const core::Member& node : nodes) {
    EXPECT_TRUE(membership.Join(node.name, node.is_memory).ok());
  }
  EXPECT_EQ(membership.Next(), core::MembershipAction::kConfigure);
  for (const core::Member& node : nodes) {
    membership.Prepared(node.name, membership.epoch(), "region of " + node.name);
  }
  return membership;
}

TEST(PeersOfTest, RegionsStandInTheOrderOfTheConfiguration) {
  const plan::EpochPeers peers = PeersOf(Prepared(
      {{.name = "p0", .prefill = true}, {.name = "c0"}, {.name = "m0", .is_memory = true}}));
  EXPECT_EQ(peers.epoch, 1u);
  EXPECT_THAT(peers.compute_regions, ElementsAre("region of c0", "region of p0"));
  EXPECT_THAT(peers.memory_regions, ElementsAre("region of m0"));
}

TEST(PeersOfTest, NodesThatHoldKvThemselvesHaveNoMemoryRegions) {
  core::Membership membership({{.name = "c0", .holds_kv = true}});
  ASSERT_TRUE(membership.Join("c0", /*is_memory=*/false).ok());
  ASSERT_EQ(membership.Next(), core::MembershipAction::kConfigure);
  membership.Prepared("c0", 1, "region");
  EXPECT_THAT(PeersOf(membership).memory_regions, IsEmpty());
}

TEST(DescribePrefillTest, NamesTheNodesThatRunPromptsAlone) {
  EXPECT_EQ(DescribePrefill(Prepared({{.name = "c0"}, {.name = "m0", .is_memory = true}})),
            "inline");
  EXPECT_EQ(DescribePrefill(Prepared({{.name = "c0"},
                                      {.name = "p0", .prefill = true},
                                      {.name = "p1", .prefill = true, .replica = "q"},
                                      {.name = "p2", .prefill = true, .replica = "q"},
                                      {.name = "m0", .is_memory = true}})),
            "dedicated: p0, p1+p2");
}

TEST(DescribePrefillTest, SaysThatExpectedNodesAreMissing) {
  core::Membership membership = Prepared(
      {{.name = "c0"}, {.name = "p0", .prefill = true}, {.name = "m0", .is_memory = true}});
  membership.Leave("p0");
  EXPECT_EQ(DescribePrefill(membership), "inline, for no prefill node is there");
}

}  // namespace
}  // namespace lamina::coordinator
