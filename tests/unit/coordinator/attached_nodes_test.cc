// SPDX-License-Identifier: Apache-2.0
#include "coordinator/attached_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/stub_port.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

AttachedNode Node(const std::string& name, double bandwidth = 0) {
  return {.hello = {.identity = {.name = name, .bandwidth_bytes_per_second = bandwidth}},
          .port = std::make_shared<StubPort>()};
}

// Turns as a loop does, once a second.
void TurnUntil(AttachedNodes& nodes, Nanos from, Nanos until) {
  for (Nanos now = from; now <= until; now += Seconds(1)) {
    nodes.Turn(now);
  }
}

TEST(AttachedNodesTest, ANodeIsBelievedOverItsOwnPort) {
  AttachedNodes nodes({}, 0);
  const std::shared_ptr<NodePort> port = nodes.Add(Node("c0")).port;
  const StubPort other;
  EXPECT_TRUE(nodes.Has({.name = "c0", .port = port.get()}));
  EXPECT_FALSE(nodes.Has({.name = "c0", .port = &other}));
  EXPECT_FALSE(nodes.Has({.name = "c1", .port = port.get()}));
  nodes.Remove("c0");
  EXPECT_FALSE(nodes.Has({.name = "c0", .port = port.get()}));
  EXPECT_EQ(nodes.Find("c0"), nullptr);
}

TEST(AttachedNodesTest, ANodeThatSaysNothingIsSilent) {
  AttachedNodes nodes({.silence_max = Seconds(10)}, 0);
  nodes.Add(Node("c0"));
  nodes.Add(Node("m0"));
  TurnUntil(nodes, Seconds(1), Seconds(8));
  nodes.TakeStatus("c0", 0.5, {});
  EXPECT_THAT(nodes.Silent(), IsEmpty());
  TurnUntil(nodes, Seconds(9), Seconds(12));
  ASSERT_EQ(nodes.Silent().size(), 1u);
  EXPECT_EQ(nodes.Silent()[0].name, "m0");
  EXPECT_THAT(nodes.Silent()[0].why, HasSubstr("no sign of life from m0 for 10 s"));
  nodes.Remove("m0");
  EXPECT_THAT(nodes.Silent(), IsEmpty());
}

TEST(AttachedNodesTest, ANodeWhoseThreadDoesNotMoveIsStuck) {
  AttachedNodes nodes({.stuck_after = Seconds(5)}, 0);
  nodes.Add(Node("c0"));
  const telemetry::NodeCounters working = {.activity = ThreadActivity::kWorking, .beats = 7};
  nodes.TakeStatus("c0", 0.5, working);
  TurnUntil(nodes, Seconds(1), Seconds(8));
  nodes.TakeStatus("c0", 0.5, working);
  ASSERT_EQ(nodes.Stuck().size(), 1u);
  EXPECT_THAT(nodes.Stuck()[0].why, HasSubstr("left out c0: its data thread has not moved"));
  EXPECT_GE(nodes.StillFor("c0"), Seconds(5));
  nodes.TakeStatus("c0", 0.5, {.activity = ThreadActivity::kWorking, .beats = 8});
  EXPECT_THAT(nodes.Stuck(), IsEmpty());
}

TEST(AttachedNodesTest, WhoIsAskedOwesAnAnswer) {
  AttachedNodes nodes({.stuck_after = Seconds(5)}, 0);
  nodes.Add(Node("c0"));
  nodes.TakeStatus("c0", 0, {.activity = ThreadActivity::kNone, .beats = 1});
  nodes.Asked("c0", ThreadActivity::kConnecting);
  TurnUntil(nodes, Seconds(1), Seconds(100));
  EXPECT_EQ(nodes.Stuck().size(), 1u);
  nodes.Answered("c0");
  EXPECT_THAT(nodes.Stuck(), IsEmpty());
}

TEST(AttachedNodesTest, BandwidthIsThatOfTheStartUntilAllHaveAttended) {
  AttachedNodes nodes({}, 0);
  nodes.Add(Node("m0", 3e9));
  nodes.Add(Node("m1", 1e9));
  EXPECT_THAT(nodes.BandwidthOf({"m1", "m0"}).bytes_per_second, ::testing::ElementsAre(1e9, 3e9));
  for (const char* name : {"m0", "m1"}) {
    nodes.TakeStatus(name, 0, {.kv_bytes_read = 2'000'000'000, .parts = {{"attend", 2.0}}});
  }
  const core::ServingBandwidth late = nodes.BandwidthOf({"m0", "m1"});
  EXPECT_TRUE(late.measured);
  EXPECT_DOUBLE_EQ(late.bytes_per_second[0], late.bytes_per_second[1]);
}

}  // namespace
}  // namespace lamina::coordinator
