// SPDX-License-Identifier: Apache-2.0
//
// Windows that a memory node does not take: each ends the epoch with an error that says what is
// wrong and blames the sender, and is counted by its name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/blame.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/fake/fake_network.h"

namespace lamina::memory_node {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(UnitCluster& cluster, const std::string& reason, const std::string& says,
                   const std::string& accused = "c0",
                   absl::StatusCode code = absl::StatusCode::kInternal) {
  const absl::Status status = cluster.EndOf();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  EXPECT_EQ(control::BlamedIn(status), accused);
  EXPECT_EQ(cluster.Refused(reason), 1u);
  EXPECT_EQ(cluster.refusals(), 1u);
}

// --- Headers ---

struct WrongHeader {
  std::string name;
  std::string reason;
  std::string says;
  std::function<void(plan::WindowHeader&)> change;
  absl::StatusCode code = absl::StatusCode::kInternal;
};

std::vector<WrongHeader> WrongHeaders() {
  using Header = plan::WindowHeader;
  return {
      {"Magic", "damaged", "magic 0", [](Header& h) { h.magic = 0; }},
      {"OlderEpoch", "stale", "epoch 6", [](Header& h) { h.epoch = 6; },
       absl::StatusCode::kAborted},
      {"OlderStep", "stale", "step 1", [](Header& h) { h.step = 1; }, absl::StatusCode::kAborted},
      {"LaterEpoch", "epoch", "epoch 8", [](Header& h) { h.epoch = 8; }},
      {"Lane", "lane", "lane 1", [](Header& h) { h.lane = 1; }},
      {"LaterStep", "step", "step 9", [](Header& h) { h.step = 9; }},
      {"LaterLayer", "layer", "layer 1", [](Header& h) { h.layer = 1; }},
      {"Rows", "rows", "rows 3", [](Header& h) { h.rows = 3; }},
      {"PromptTokens", "rows", "kv_rows 4", [](Header& h) { h.kv_rows = 4; }},
      {"Sender", "sender", "sender 1", [](Header& h) { h.sender = 1; }},
  };
}

class WrongHeaderTest : public ::testing::TestWithParam<WrongHeader> {
 protected:
  void Refuse(bool plan_first) {
    UnitCluster cluster({.lanes = 2});
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 5}, {1, 3}}});
    const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0, 1}});
    UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
    GetParam().change(window.header);
    if (plan_first) {
      cluster.PushPlan(step);
    }

    cluster.PutHeader(window);
    if (!plan_first) {
      cluster.PushPlan(step);
    }

    ExpectRefused(cluster, GetParam().reason, GetParam().says, "c0", GetParam().code);
    EXPECT_LT(cluster.Replied(0, 0, 0), window.value);
  }
};

TEST_P(WrongHeaderTest, IsRefused) { Refuse(/*plan_first=*/true); }
TEST_P(WrongHeaderTest, IsRefusedBeforeThePlanIsHere) { Refuse(/*plan_first=*/false); }

INSTANTIATE_TEST_SUITE_P(All, WrongHeaderTest, ::testing::ValuesIn(WrongHeaders()),
                         [](const auto& tested) { return tested.param.name; });

// --- Signals that fit their headers, and not the plan ---

class WrongUnitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.Start();
    cluster_.Run({.step = 1, .prompts = {{0, 5}}});
  }

  // A window of that unit, with a header that says so.
  void PutUnit(const UnitCluster::Step& step, uint64_t of_step, uint32_t layer) {
    UnitCluster::Window window = cluster_.MakeWindows(step, 0)[0];
    window.header.step = of_step;
    window.header.layer = layer;
    window.value = cluster_.layout().SignalValue(of_step, layer);
    cluster_.PutHeader(window);
  }

  UnitCluster cluster_{{.layers = 3}};
};

TEST_F(WrongUnitTest, OfALaterStepIsRefused) {
  const UnitCluster::Step step = cluster_.MakeStep({.step = 2, .rows = {0}});
  cluster_.PushPlan(step);

  PutUnit(step, 3, 0);

  ExpectRefused(cluster_, "step", "step 3 where the plan says 2");
}

TEST_F(WrongUnitTest, OfAnEarlierStepIsRefused) {
  const UnitCluster::Step empty = cluster_.MakeStep({.step = 2});
  const UnitCluster::Step step = cluster_.MakeStep({.step = 3, .rows = {0}});
  cluster_.PushPlan(empty);
  cluster_.PushPlan(step);

  PutUnit(step, 2, 0);

  ExpectRefused(cluster_, "stale", "step 2 where the plan says 3", "c0",
                absl::StatusCode::kAborted);
}

TEST_F(WrongUnitTest, ThatSkipsALayerIsRefused) {
  const UnitCluster::Step step = cluster_.MakeStep({.step = 2, .rows = {0}});
  cluster_.PushPlan(step);

  PutUnit(step, 2, 1);

  ExpectRefused(cluster_, "layer", "layer 1 where the plan says 0");
}

TEST_F(WrongUnitTest, ThatFollowsAnIncompleteOneIsRefused) {
  const UnitCluster::Step step =
      cluster_.MakeStep({.step = 2, .rows = {0}, .chunking = {.chunks = 2, .by_heads = true}});
  cluster_.PushPlan(step);
  cluster_.PutPiece(cluster_.MakeWindows(step, 0)[0], 0);
  cluster_.AwaitTurns();

  PutUnit(step, 2, 1);

  ExpectRefused(cluster_, "schedule", "without the end of the unit before");
}

// --- Senders ---

TEST(WrongSenderTest, WhoseTurnItIsNotIsRefused) {
  UnitCluster cluster({.compute_nodes = 2, .mode = PipelineMode::kRotational});
  cluster.Start();
  const UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  cluster.PushPlan(step);
  UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
  const uint32_t turn = window.sender;
  window.sender = 1 - turn;
  window.header.sender = window.sender;

  cluster.PutHeader(window);

  ExpectRefused(cluster, "schedule", absl::StrCat("where the schedule says ", turn),
                absl::StrCat("c", window.sender));
}

TEST(WrongSenderTest, WhoseShardHasNoHeadsHereIsRefused) {
  UnitCluster cluster(
      {.memory_nodes = 2, .partition = Partition::kHead, .heads = {1, 2}, .shards = {1, 2}});
  cluster.Start();
  const UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  cluster.PushPlan(step);
  UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
  ASSERT_EQ(window.memory_node, 0u);
  window.sender = 1;
  window.header.sender = 1;

  cluster.PutHeader(window);

  ExpectRefused(cluster, "schedule", "which has no part in it, or no heads here", "c1");
}

// --- Replies ---

// A step of rows rotates: its next slice runs elsewhere.
TEST(LostReplyTest, IsBlamedOnWhoWasToHaveIt) {
  transport::FakeNetwork network{transport::FakeNetworkOptions()};
  UnitCluster cluster(
      {.compute_nodes = 2,
       .mode = PipelineMode::kRotational,
       .make_transport = [&](DeviceMemory* device) { return network.MakeTransport(device); }});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  cluster.PushPlan(step);
  const UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
  network.SetLinks([](const transport::FakePut& put) {
    return put.to == "replies" ? transport::FakeFate::kIsRefused : transport::FakeFate::kArrives;
  });

  cluster.Put(window);

  const absl::Status status = cluster.EndOf();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(control::BlamedIn(status), absl::StrCat("c", 1 - window.sender));
  EXPECT_EQ(cluster.refusals(), 0u);
}

// --- Plans ---

TEST(UnplannedTest, AWindowWhosePlanNeverComesIsRefusedInTime) {
  UnitCluster cluster({.peer_deadline = Millis(30)});
  cluster.Start();
  const UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});

  cluster.Put(cluster.MakeWindows(step, 0)[0]);

  ExpectRefused(cluster, "unplanned", "lane 0 step 1 layer 0 came from c0, and no plan", "c0",
                absl::StatusCode::kDeadlineExceeded);
}

TEST(UnplannedTest, IsRefusedHoweverBusyOtherLanesAre) {
  UnitCluster cluster({.lanes = 2, .peer_deadline = Millis(100)});
  cluster.Start();
  cluster.Run({.lane = 1, .step = 1, .prompts = {{1, 3}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  cluster.Put(cluster.MakeWindows(step, 0)[0]);

  for (uint64_t other = 2; !cluster.ended() && other < 900; ++other) {
    const UnitCluster::Step busy = cluster.MakeStep({.lane = 1, .step = other, .rows = {1}});
    cluster.PushPlan(busy);
    for (uint32_t layer = 0; layer < 2 && !cluster.ended(); ++layer) {
      const std::vector<UnitCluster::Window> windows = cluster.MakeWindows(busy, layer);
      cluster.Put(windows[0]);
      while (cluster.Replied(0, 0, 1) < windows[0].value && !cluster.ended()) {
      }
    }
  }

  ExpectRefused(cluster, "unplanned", "no plan of the step within 0.1", "c0",
                absl::StatusCode::kDeadlineExceeded);
}

TEST(WrongPlanTest, ThatDoesNotFollowFromTheTablesEndsTheEpoch) {
  UnitCluster cluster({});
  cluster.Start();
  UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  step.plan.allocations[0].extent.tokens = 4;

  cluster.PushPlan(step);

  EXPECT_THAT(std::string(cluster.EndOf().message()), HasSubstr("plan uses tokens [0, +5)"));
  EXPECT_EQ(cluster.refusals(), 0u);
}

TEST(WrongPlanTest, OfMoreThanAWindowHoldsEndsTheEpoch) {
  UnitCluster cluster({});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0, 0, 0, 0, 0, 0, 0, 0, 0}});

  cluster.PushPlan(step);

  EXPECT_THAT(std::string(cluster.EndOf().message()), HasSubstr("plan has 9 rows"));
}

}  // namespace
}  // namespace lamina::memory_node
