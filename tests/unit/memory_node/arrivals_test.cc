// SPDX-License-Identifier: Apache-2.0
//
// Plans and windows in every order in which they may come, and nodes that are stopped in between.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/clock.h"
#include "telemetry/trace_ring.h"
#include "telemetry/work_kind.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;
using Window = UnitCluster::Window;

void PutAll(UnitCluster& cluster, const std::vector<Window>& windows) {
  for (const Window& window : windows) {
    cluster.Put(window);
  }
}

TEST(ArrivalsTest, AWindowMayComeBeforeItsPlan) {
  UnitCluster cluster({.memory_nodes = 2, .partition = Partition::kHead, .heads = {1, 2}});
  cluster.Start();
  for (uint64_t number = 1; number <= 4; ++number) {
    const Step step =
        cluster.MakeStep(number == 1 ? StepSpec{.step = 1, .prompts = {{0, 5}, {1, 3}}}
                                     : StepSpec{.step = number, .rows = {0, 1}});
    const std::vector<Window> windows = cluster.MakeWindows(step, 0);
    PutAll(cluster, windows);
    cluster.AwaitTurns(0);
    cluster.AwaitTurns(1);

    cluster.PushPlan(step);

    cluster.ExpectReplies(step, 0, windows);
    cluster.RunUnit(step, 1);
  }
  cluster.Stop();
}

TEST(ArrivalsTest, AllShardsWindowsMayComeBeforeThePlan) {
  UnitCluster cluster({.shards = {1, 2}});
  cluster.Start();
  const Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  const std::vector<Window> windows = cluster.MakeWindows(step, 0);
  ASSERT_EQ(windows.size(), 2u);
  PutAll(cluster, windows);
  cluster.AwaitTurns();

  cluster.PushPlan(step);

  cluster.ExpectReplies(step, 0, windows);
  cluster.RunUnit(step, 1);
  cluster.Stop();
}

// The other lane's plan came; it need not wait for this one's.
TEST(ArrivalsTest, OtherLanesAreServedWhileAPlanIsAwaited) {
  UnitCluster cluster({.lanes = 2});
  cluster.Start();
  const Step late = cluster.MakeStep({.lane = 0, .step = 1, .prompts = {{0, 5}}});
  const std::vector<Window> windows = cluster.MakeWindows(late, 0);
  PutAll(cluster, windows);
  cluster.AwaitTurns();

  cluster.Run({.lane = 1, .step = 1, .prompts = {{1, 9}}});
  cluster.Run({.lane = 1, .step = 2, .rows = {1}});
  EXPECT_EQ(cluster.Replied(0, 0, 0), 0u);
  cluster.PushPlan(late);

  cluster.ExpectReplies(late, 0, windows);
  cluster.RunUnit(late, 1);
  cluster.Stop();
}

TEST(ArrivalsTest, AThreadThatAwaitsAPlanBeatsAndIsNotIdle) {
  UnitCluster cluster({});
  cluster.Start();
  const Step late = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  PutAll(cluster, cluster.MakeWindows(late, 0));

  cluster.AwaitTurns();

  EXPECT_EQ(cluster.counters().beat.activity(), ThreadActivity::kWorking);
  cluster.Stop();
}

TEST(ArrivalsTest, PlansMayComeAheadOfManySteps) {
  UnitCluster cluster({});
  cluster.Start();
  std::vector<Step> steps = {cluster.MakeStep({.step = 1, .prompts = {{0, 5}}})};
  for (uint64_t number = 2; number <= 6; ++number) {
    steps.push_back(cluster.MakeStep({.step = number, .rows = {0}}));
  }
  for (const Step& step : steps) {
    cluster.PushPlan(step);
  }

  for (const Step& step : steps) {
    cluster.RunUnit(step, 0);
    cluster.RunUnit(step, 1);
  }
  cluster.Stop();
}

// What they have read back from a spill tier begins then. A thread to which nothing comes for a
// while takes them too, so that one step may show nothing.
TEST(ArrivalsTest, PlansAreTakenBehindUnitsThatEndNoStep) {
  UnitCluster cluster({.lanes = 2, .layers = 3});
  telemetry::TraceRing& ring = cluster.counters().meter.ring();
  ring.Start(RealClock().Now() + UnitCluster::kLong);
  cluster.Start();
  bool taken = false;
  for (uint64_t number = 1; number <= 20 && !taken; ++number) {
    const Step step = cluster.MakeStep({.lane = 0, .step = number, .prompts = {{0, 5}}});
    cluster.PushPlan(step);
    cluster.RunUnit(step, 0);
    const Step other = cluster.MakeStep({.lane = 1, .step = number, .prompts = {{1, 5}}});

    cluster.PushPlan(other);
    cluster.RunUnit(step, 1);

    cluster.RunUnit(step, 2);
    for (uint32_t layer = 0; layer < 3; ++layer) {
      cluster.RunUnit(other, layer);
    }
    uint64_t dropped = 0;
    for (const telemetry::TraceEvent& event : ring.Take(dropped)) {
      taken |= event.part == telemetry::WorkKind::kTables && event.layer < 2;
    }
  }
  EXPECT_TRUE(taken);
  cluster.Stop();
}

// Their changes to the tables are applied as soon as the step before is done.
TEST(ArrivalsTest, StepsWithoutRowsHereGetNoWindows) {
  UnitCluster cluster({.memory_nodes = 2});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});  // All of it is on m0.
  cluster.Run({.step = 2, .rows = {0}});
  cluster.Run({.step = 3});
  cluster.Run({.step = 4, .rows = {0}, .prompts = {{1, 3}}});
  cluster.Run({.step = 5, .rows = {1}});
  cluster.Stop();
  EXPECT_EQ(cluster.counters(0).units, 6u);
  EXPECT_EQ(cluster.counters(1).units, 4u);
}

TEST(ArrivalsTest, PlansOfAnotherEpochAreNotTaken) {
  UnitCluster cluster({});
  cluster.Start();
  Step other = cluster.MakeStep({.step = 1, .prompts = {{5, 2}}});
  other.plan.epoch = UnitCluster::kEpoch - 1;
  cluster.PushPlan(other);

  cluster.Run({.step = 1, .prompts = {{0, 5}}});

  cluster.Stop();
}

TEST(ArrivalsTest, PiecesOfTwoLanesMayAlternate) {
  UnitCluster cluster({.lanes = 2});
  cluster.Start();
  cluster.Run({.lane = 0, .step = 1, .prompts = {{0, 5}, {1, 4}}});
  cluster.Run({.lane = 1, .step = 1, .prompts = {{2, 3}, {3, 300}}});
  const plan::Chunking cut = {.chunks = 2, .query_first = true};
  const Step a = cluster.MakeStep({.lane = 0, .step = 2, .rows = {0, 1}, .chunking = cut});
  const Step b = cluster.MakeStep({.lane = 1, .step = 2, .rows = {2, 3}, .chunking = cut});
  cluster.PushPlan(b);
  cluster.PushPlan(a);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const std::vector<Window> of_a = cluster.MakeWindows(a, layer);
    const std::vector<Window> of_b = cluster.MakeWindows(b, layer);
    for (uint32_t piece = 0; piece < of_a[0].shape.pieces.count(); ++piece) {
      cluster.PutPiece(of_a[0], piece);
      cluster.AwaitTurns();
      cluster.PutPiece(of_b[0], piece);
    }
    cluster.ExpectReplies(b, layer, of_b);
    cluster.ExpectReplies(a, layer, of_a);
  }
  cluster.Stop();
}

TEST(ArrivalsTest, PartsOfShardsComeInAnyOrder) {
  UnitCluster cluster({.shards = {1, 1, 1}});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  cluster.PushPlan(step);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const std::vector<Window> windows = cluster.MakeWindows(step, layer);
    ASSERT_EQ(windows.size(), 3u);
    for (const size_t which : {2, 0, 1}) {
      cluster.Put(windows[which]);
      cluster.AwaitReply(static_cast<uint32_t>(which), 0, 0, windows[which].value);
    }
    cluster.ExpectReplies(step, layer, windows);
  }
  cluster.Stop();
}

// --- Stops ---

TEST(StopTest, WhileLinksAreMeasured) {
  UnitCluster cluster({});
  cluster.Start(/*measure=*/false);

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
}

TEST(StopTest, WhileIdle) {
  UnitCluster cluster({});
  cluster.Start();

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
}

TEST(StopTest, WhileAPlanIsAwaited) {
  UnitCluster cluster({});
  cluster.Start();
  const Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  PutAll(cluster, cluster.MakeWindows(step, 0));
  cluster.AwaitTurns();

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
  EXPECT_EQ(cluster.refusals(), 0u);
}

TEST(StopTest, WhileTheRestOfAUnitIsAwaited) {
  UnitCluster cluster({});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const Step step = cluster.MakeStep({.step = 2, .rows = {0}, .chunking = {.query_first = true}});
  cluster.PushPlan(step);
  cluster.PutPiece(cluster.MakeWindows(step, 0)[0], 0);
  cluster.AwaitTurns();

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
}

TEST(StopTest, WhileAWindowIsAwaited) {
  UnitCluster cluster({});
  cluster.Start();
  cluster.PushPlan(cluster.MakeStep({.step = 1, .prompts = {{0, 5}}}));
  cluster.AwaitTurns();

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
}

}  // namespace
}  // namespace lamina::memory_node
