// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A layer's K and V of a token: two heads of 16 elements each, in bf16.
constexpr uint64_t kLayerBytes = 2 * 2 * 16 * 2;

// Four layers; c0 and c1 have them in stages of two shards with c2 and c3; c4 has all of them.
EngineOptions Options() {
  EngineOptions options;
  options.layers.resize(4, {.query_heads = 4, .kv_heads = 2, .head_dim = 16});
  options.slice_costs = {1, 1, 1, 1, 1};
  options.shard_costs = {.heads = 2, .columns = 128, .head = 1, .column = 1};
  options.nodes = {{.name = "c4"},
                   {.name = "c3", .replica = "r"},
                   {.name = "c0", .replica = "r"},
                   {.name = "c1", .replica = "r"},
                   {.name = "c2", .replica = "r"},
                   {.name = "m0", .is_memory = true},
                   {.name = "m1", .is_memory = true}};
  options.replicas = {
      {.name = "r", .nodes = {"c0", "c1", "c2", "c3"}, .shards = 2, .layers = {1, 3}}};
  return options;
}

plan::PolicyTimes Times(double attention) {
  return {.local = {{.rows = 1, .slice_seconds = 1, .tail_seconds = 2}},
          .pools = {{.rows = 1, .slice_seconds = 3, .tail_seconds = 4}},
          .attention_local = attention,
          .read_bandwidth = 10 * attention};
}

class PolicyMeasuresTest : public ::testing::Test {
 protected:
  // All nodes are there; what `but` names is not.
  void Join(const std::string& but = "") {
    double attention = 1e9;
    std::map<std::string, double> speeds;
    for (const core::Member& member : options_.nodes) {
      AttachedNode node;
      control::NodeIdentity& identity = node.hello.identity;
      identity.name = member.name;
      identity.is_memory = member.is_memory;
      identity.capacity_bytes = 1000 * kLayerBytes;
      identity.bandwidth_bytes_per_second = 7e9;
      if (!member.is_memory) {
        identity.policy_times = Times(attention += 1e9);
        speeds[member.name] = 0;
      } else if (member.name == "m1") {
        identity.policy_times.attention_local = 5e9;
      }
      if (member.name != but) {
        nodes_.Add(node);
        ASSERT_TRUE(membership_.Join(member.name, member.is_memory).ok());
      }
    }
    ASSERT_TRUE(splits_.Split(speeds).ok());
  }

  PolicyMeasures Measures() const { return MeasuresOf(membership_, nodes_, splits_); }

  const EngineOptions options_ = Options();
  core::Membership membership_{options_.nodes};
  AttachedNodes nodes_{{}, 0};
  ReplicaSplits splits_{options_};
};

TEST_F(PolicyMeasuresTest, KnowsWhatEachComputeNodeRunsAndMemoryNodesReach) {
  Join();
  const PolicyMeasures measures = Measures();
  EXPECT_THAT(measures.bandwidth, SizeIs(2));
  EXPECT_THAT(measures.attention, ElementsAre(std::pair("m1", 5e9)));
  EXPECT_EQ(measures.memory, 2000 * kLayerBytes);
  EXPECT_EQ(measures.largest_memory, 1000 * kLayerBytes);
  EXPECT_EQ(measures.link, 0);
  EXPECT_EQ(measures.parts.bytes_per_second, 0);
  std::vector<std::string> names;
  for (const MeasuredNode& node : measures.compute) {
    names.push_back(node.name);
  }
  EXPECT_THAT(names, ElementsAre("c4", "c0", "c1", "c3", "c2"))
      << "stage after stage of one replica after the other";
}

TEST_F(PolicyMeasuresTest, ReplicasAreStagesOfShards) {
  Join();
  const std::vector<cost::MeasuredReplica> replicas = ReplicasOf(Measures(), options_.layers, 10);
  ASSERT_THAT(replicas, SizeIs(2));
  ASSERT_TRUE(replicas[0].whole());
  EXPECT_EQ(replicas[0].stages[0].slices, 3u);
  EXPECT_TRUE(replicas[0].stages[0].tail);
  EXPECT_DOUBLE_EQ(replicas[0].stages[0].shards[0].kv_bytes_per_token, 4 * kLayerBytes);
  ASSERT_THAT(replicas[1].stages, SizeIs(2));
  const cost::ReplicaStage& first = replicas[1].stages[0];
  EXPECT_EQ(first.slices, 0u) << "slice 0 is next to nothing";
  EXPECT_FALSE(first.tail);
  ASSERT_THAT(first.shards, SizeIs(2));
  EXPECT_DOUBLE_EQ(first.shards[0].kv_bytes_per_token, kLayerBytes / 2);
  const cost::ReplicaStage& last = replicas[1].stages[1];
  EXPECT_EQ(last.slices, 3u);
  EXPECT_TRUE(last.tail);
  ASSERT_THAT(last.shards, SizeIs(2));
  EXPECT_DOUBLE_EQ(last.shards[1].kv_bytes_per_token, 3 * kLayerBytes / 2);
}

TEST_F(PolicyMeasuresTest, AReplicaThatIsNotCompleteDoesNotCount) {
  Join("c2");
  const std::vector<cost::MeasuredReplica> replicas = ReplicasOf(Measures(), options_.layers, 10);
  ASSERT_THAT(replicas, SizeIs(1));
  EXPECT_TRUE(replicas[0].whole());
}

// c4 has room for 250 tokens of all layers; c2 and c3 for 666 of three layers and one head.
TEST_F(PolicyMeasuresTest, RoomIsThatOfTheNodeWithTheLeastOfEachReplica) {
  Join();
  PolicyMeasures measures = Measures();
  LocalRoom room = LocalRoomOf(measures, options_.layers);
  EXPECT_EQ(room.tokens, 250 + 666);
  EXPECT_EQ(room.least, 250);
  EXPECT_EQ(room.least_node, "c4");
  for (MeasuredNode& node : measures.compute) {
    node.capacity = node.name == "c2" ? 3 * kLayerBytes : node.capacity;
  }
  room = LocalRoomOf(measures, options_.layers);
  EXPECT_EQ(room.tokens, 250 + 2);
  EXPECT_EQ(room.least_node, "c2");
  for (MeasuredNode& node : measures.compute) {
    node.capacity = 0;
  }
  EXPECT_THAT(LocalRoomOf(measures, options_.layers).least_node, IsEmpty());
}

TEST_F(PolicyMeasuresTest, LinksToMemoryNodesAddUpAndTheSlowestWithinAReplicaCounts) {
  Join();
  nodes_.at("c0").links = {{.peer = "m0", .latency_seconds = 9e-6, .bytes_per_second = 1e9},
                           {.peer = "m1", .latency_seconds = 9e-6, .bytes_per_second = 2e9},
                           {.peer = "c1", .latency_seconds = 3e-6, .bytes_per_second = 5e9},
                           {.peer = "c2", .latency_seconds = 2e-6, .bytes_per_second = 4e9},
                           {.peer = "c4", .latency_seconds = 8e-6, .bytes_per_second = 1e6},
                           {.peer = "gone", .latency_seconds = 8e-6, .bytes_per_second = 1e6},
                           {.peer = "c3", .latency_seconds = 8e-6}};
  const PolicyMeasures measures = Measures();
  EXPECT_EQ(measures.link, 3e9);
  EXPECT_EQ(measures.parts.latency_seconds, 3e-6);
  EXPECT_EQ(measures.parts.bytes_per_second, 4e9);
}

TEST_F(PolicyMeasuresTest, AtAnEndOfReadsANodeHasTheFiguresThatItHadThere) {
  Join();
  PolicyMeasures measures = Measures();
  EXPECT_THAT(EndsOf(measures), IsEmpty());
  EXPECT_EQ(DescribeReads(measures), "");
  const double other = measures.compute[1].times.attention_local;
  plan::PolicyTimes& times = measures.compute[0].times;
  times.reads_low = 37e9;
  times.reads_high = 63e9;
  times.ends = {Times(2), Times(5)};
  measures.compute[1].times.reads_low = 40e9;
  measures.compute[1].times.reads_high = 41e9;
  const std::vector<PolicyMeasures> ends = EndsOf(measures);
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].compute[0].times.attention_local, 2);
  EXPECT_EQ(ends[1].compute[0].times.attention_local, 5);
  for (const PolicyMeasures& end : ends) {
    EXPECT_EQ(end.compute[1].times.attention_local, other);
    EXPECT_EQ(end.compute[0].name, measures.compute[0].name);
    EXPECT_EQ(end.bandwidth, measures.bandwidth);
  }
  EXPECT_EQ(DescribeReads(measures),
            measures.compute[0].name + " read 37.0 to 63.0 GB/s while it was measured");
}

TEST_F(PolicyMeasuresTest, TheShareOfReadsIsThatOfTheNodeThatAttendsSlowest) {
  Join();
  PolicyMeasures measures = Measures();
  EXPECT_DOUBLE_EQ(AttendedShare(measures), 0.1);
  for (MeasuredNode& node : measures.compute) {
    if (node.name == "c3") {
      node.times.attention_local = 1;
      node.times.read_bandwidth = 4;
    }
  }
  EXPECT_DOUBLE_EQ(AttendedShare(measures), 0.25);
  for (MeasuredNode& node : measures.compute) {
    node.times.read_bandwidth = 0;
  }
  EXPECT_EQ(AttendedShare(measures), 1);
}

}  // namespace
}  // namespace lamina::coordinator
