// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trace_log.h"

#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

std::string NameOf(plan::SequenceId id) { return id == 9 ? "" : id < 5 ? "first" : "second"; }

plan::StepPlan Plan(uint32_t lane, uint64_t step, std::vector<plan::SequenceId> rows) {
  plan::StepPlan plan{.epoch = 1, .lane = lane, .step = step};
  for (const plan::SequenceId id : rows) {
    plan.rows.push_back({.sequence = id});
  }
  return plan;
}

TEST(TraceLogTest, StepsNameTheirRequestsOnce) {
  TraceLog log;
  EXPECT_FALSE(log.on(1));
  log.Start(10, 100);
  EXPECT_TRUE(log.on(11));
  plan::StepPlan plan = Plan(1, 7, {1, 2, 6, 9});
  plan.chunks.push_back({.sequence = 7, .tokens = 40});
  log.Planned(plan, 12, NameOf);
  log.Planned(Plan(0, 8, {1}), 13, NameOf);
  log.Done(1, 1, 7, 20);
  log.Done(1, 0, 5, 21);  // It is older than the timeline.
  const EngineTrace trace = log.Take({});
  ASSERT_EQ(trace.steps.size(), 2u);
  EXPECT_EQ(trace.steps[0].rows, 4u);
  EXPECT_EQ(trace.steps[0].chunk_tokens, 40u);
  EXPECT_EQ(trace.steps[0].done, 20);
  EXPECT_EQ(trace.steps[0].requests, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(trace.steps[1].done, 0);
  EXPECT_EQ(trace.names, (std::vector<std::string>{"first", "second"}));
}

TEST(TraceLogTest, EndsAfterItsTimeOrWhenCollected) {
  TraceLog log;
  log.Start(10, 100);
  log.Planned(Plan(0, 1, {1}), 20, NameOf);
  log.Done(1, 0, 1, 200);
  EXPECT_EQ(log.Take({}).steps[0].done, 0);
  EXPECT_FALSE(log.on(110));
  log.Collect(50);
  EXPECT_FALSE(log.on(51));
  EXPECT_EQ(log.Take({}).ended, 50);
}

TEST(TraceLogTest, TheFastestPingTellsTheClock) {
  TraceLog log;
  log.Start(0, 100);
  // The node is 1000 ahead. The first answer takes longer on its way back.
  EXPECT_TRUE(
      log.TakeClock("m0", {.sent = 0, .node_received = 1010, .node_sent = 1020, .received = 90}));
  EXPECT_TRUE(log.TakeClock(
      "m0", {.sent = 100, .node_received = 1110, .node_sent = 1111, .received = 121}));
  for (int i = 2; i + 1 < TraceLog::kPings; ++i) {
    EXPECT_TRUE(
        log.TakeClock("m0", {.sent = 0, .node_received = 0, .node_sent = 0, .received = 900}));
  }
  EXPECT_FALSE(
      log.TakeClock("m0", {.sent = 0, .node_received = 0, .node_sent = 0, .received = 900}));
  const uint64_t id = log.Collect(60).value();
  log.TakeNode("m0", {.id = id});
  const auto node = log.NodeOf("m0");
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->clock.offset, 1000);
  EXPECT_EQ(node->clock.error, 10);
}

TEST(TraceLogTest, PartsOfAnotherTimelineAreNotTaken) {
  TraceLog log;
  log.Start(0, 100);
  const uint64_t old = log.Collect(50).value();
  log.Start(60, 100);
  const uint64_t id = log.Collect(90).value();
  EXPECT_NE(id, old);
  log.TakeNode("m0", {.id = old});
  EXPECT_TRUE(absl::IsUnavailable(log.NodeOf("m0").status()));
  log.TakeNode("m0", {.id = id, .dropped = 3});
  EXPECT_EQ(log.NodeOf("m0")->trace.dropped, 3u);
}

// Anybody may collect, and each time all nodes send up to 4 MiB.
TEST(TraceLogTest, NodesAreAskedForATimelineOnceInAWhile) {
  TraceLog log;
  log.Start(10, 100);
  const uint64_t id = log.Collect(50).value();
  log.TakeNode("m0", {.id = id});
  EXPECT_FALSE(log.Collect(50 + TraceLog::kAskInterval - 1).has_value());
  EXPECT_TRUE(log.NodeOf("m0").ok()) << "what has come stays";

  EXPECT_EQ(log.Collect(50 + TraceLog::kAskInterval), id);
  EXPECT_FALSE(log.NodeOf("m0").ok());

  log.Start(60 + TraceLog::kAskInterval, 100);
  EXPECT_TRUE(log.Collect(61 + TraceLog::kAskInterval).has_value()) << "another timeline";
}

TEST(TraceLogTest, RequestsThatEndedMeanwhileAndThoseThatRunAreThere) {
  TraceLog log;
  log.Ended({.followed_id = "before"});
  log.Start(10, 100);
  log.Ended({.followed_id = "meanwhile", .arrived = 5});
  const EngineTrace trace = log.Take({{.followed_id = "running"}});
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].followed_id, "meanwhile");
  EXPECT_EQ(trace.requests[1].followed_id, "running");
}

}  // namespace
}  // namespace lamina::coordinator
