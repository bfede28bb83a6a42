// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bubbles.h"

#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

client::NodeStatus Node(const std::string& name, double busy,
                        std::vector<std::pair<std::string, double>> parts,
                        std::vector<client::LinkStatus> links = {}) {
  client::NodeStatus node = {.name = name, .busy_seconds = busy, .reports = 1};
  node.parts = std::move(parts);
  node.links = std::move(links);
  return node;
}

client::LinkStatus Link(const std::string& peer, double waited) {
  return {.peer = peer, .waited_seconds = waited};
}

TEST(BubblesTest, NamesTheLongestWaitAndWhomItIsFor) {
  client::ClusterStatus before;
  before.nodes = {
      Node("c0", 100, {{"dense", 100}, {"wait_attention", 50}}, {Link("m0", 40), Link("m1", 10)}),
      Node("m0", 10, {{"attend", 10}, {"wait_query", 100}}, {Link("c0", 100)})};
  client::ClusterStatus after;
  after.nodes = {Node("c0", 107, {{"dense", 107}, {"wait_attention", 53}},
                      {Link("m0", 40.5), Link("m1", 12.5)}),
                 Node("m0", 18, {{"attend", 18}, {"wait_query", 102}}, {Link("c0", 102)})};

  EXPECT_EQ(LargestBubble(before, after, 10),
            "busy: c0 70.0%, m0 80.0%\n"
            "largest bubble: c0 stands still 30.0% of the time for attention of m1");
  EXPECT_DOUBLE_EQ(PartShares(before.nodes[0], after.nodes[0], 10)["dense"].get<double>(), 0.7);
}

// A replica that waits for memory nodes and for other replicas.
TEST(BubblesTest, AWaitForReplicasIsNotForAMemoryNode) {
  const auto cluster = [](double attention, double replica, double m0, double c1) {
    client::ClusterStatus status;
    status.nodes = {
        Node("c0", 10, {{"dense", 10}, {"wait_attention", attention}, {"wait_replica", replica}},
             {Link("m0", m0), Link("c1", c1)}),
        Node("c1", 10, {}), Node("m0", 10, {})};
    status.nodes[0].role = status.nodes[1].role = "compute";
    status.nodes[2].role = "memory";
    return status;
  };
  const client::ClusterStatus before = cluster(0, 0, 0, 0);

  // When several are awaited only one is told, so links and parts need not agree.
  EXPECT_EQ(LargestBubble(before, cluster(4, 6, 7, 3), 10),
            "busy: c0 0.0%\nlargest bubble: c0 stands still 60.0% of the time for c1");
  EXPECT_EQ(LargestBubble(before, cluster(6, 4, 3, 7), 10),
            "busy: c0 0.0%\nlargest bubble: c0 stands still 60.0% of the time for attention of m0");
}

// Nothing can be done about the waits of one request.
TEST(BubblesTest, OneRequestAtATimeIsNoBubble) {
  client::ClusterStatus before;
  before.nodes = {Node("c0", 0, {{"dense", 0}, {"wait_attention", 0}}, {Link("m0", 0)})};
  client::ClusterStatus after;
  after.nodes = {Node("c0", 4, {{"dense", 4}, {"wait_attention", 6}}, {Link("m0", 6)})};

  EXPECT_EQ(LargestBubble(before, after, 10, /*several=*/false), "busy: c0 40.0%");
  EXPECT_NE(LargestBubble(before, after, 10), "busy: c0 40.0%");
}

TEST(BubblesTest, AWaitForWeightsIsForNobody) {
  client::ClusterStatus before;
  before.nodes = {Node("c0", 0, {{"dense", 0}, {"wait_weights", 0}}, {Link("m0", 0)})};
  client::ClusterStatus after;
  after.nodes = {Node("c0", 4, {{"dense", 4}, {"wait_weights", 6}}, {Link("m0", 1)})};

  EXPECT_EQ(LargestBubble(before, after, 10),
            "busy: c0 40.0%\n"
            "largest bubble: c0 stands still 60.0% of the time for weights that stream");
}

TEST(BubblesTest, WithoutWorkThereAreNoPlans) {
  client::ClusterStatus before;
  before.nodes = {Node("c0", 0, {{"dense", 0}, {"wait_plan", 0}})};
  client::ClusterStatus after;
  after.nodes = {Node("c0", 1, {{"dense", 1}, {"wait_plan", 9}})};

  EXPECT_EQ(LargestBubble(before, after, 10),
            "busy: c0 10.0%\n"
            "largest bubble: c0 stands still 90.0% of the time for plans: there is nothing to do");
}

TEST(BubblesTest, AWaitFromBeforeDoesNotDistortTheShares) {
  client::ClusterStatus before;
  before.nodes = {Node("c0", 0, {{"dense", 0}, {"wait_plan", 0}})};
  client::ClusterStatus after;
  after.nodes = {Node("c0", 5, {{"dense", 5}, {"wait_plan", 600}})};

  EXPECT_EQ(LargestBubble(before, after, 10).substr(0, 14), "busy: c0 50.0%");
}

TEST(BubblesTest, NodesThatSayNothingAreLeftOut) {
  client::ClusterStatus status;
  status.nodes = {client::NodeStatus{.name = "c0"}};
  EXPECT_EQ(LargestBubble(status, status, 10), "");
}

}  // namespace
}  // namespace lamina::cli
