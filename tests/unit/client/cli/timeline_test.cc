// SPDX-License-Identifier: Apache-2.0
#include "client/cli/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "client/cli/timeline_clocks.h"

namespace lamina::cli {
namespace {

using nlohmann::json;
using telemetry::TraceEvent;
using telemetry::WorkKind;

constexpr uint16_t kM0 = TraceEvent::kMemoryPeer;
constexpr Nanos kWire = 300;

// One compute and one memory node, two layers, one lane; the memory node's clock is `skew` ahead.
client::Timeline MakeTimeline(Nanos skew, Nanos measured, Nanos error) {
  client::NodeTimeline c0{.name = "c0"};
  client::NodeTimeline m0{.name = "m0", .is_memory = true};
  m0.clock_offset = measured;
  m0.clock_error = error;
  Nanos t = 1'000'000;
  for (uint32_t step = 1; step <= 3; ++step) {
    const auto c = [&](WorkKind part, uint16_t layer, Nanos length, uint16_t peer) {
      c0.events.push_back({.start = t,
                           .end = t + length,
                           .part = part,
                           .lane = 0,
                           .peer = peer,
                           .layer = layer,
                           .rows = 1,
                           .step = step});
      t += length;
    };
    for (uint16_t layer = 0; layer < 2; ++layer) {
      c(WorkKind::kDense, layer, 10'000, TraceEvent::kNoPeer);
      c(WorkKind::kSend, layer, 1'000, kM0);
      Nanos m = t + kWire;
      for (const auto& [part, length] :
           {std::pair(WorkKind::kStore, 500), std::pair(WorkKind::kAttend, 7'000),
            std::pair(WorkKind::kReply, 800)}) {
        m0.events.push_back({.start = m + skew,
                             .end = m + length + skew,
                             .part = part,
                             .lane = 0,
                             .peer = 0,
                             .layer = layer,
                             .rows = 1,
                             .step = step});
        m += length;
      }
      c(WorkKind::kWaitAttention, layer, m + kWire - t, kM0);
      c(WorkKind::kTake, layer, 400, kM0);
    }
    c(WorkKind::kHead, 2, 5'000, TraceEvent::kNoPeer);
  }
  client::Timeline timeline{.epoch = 1, .began = 900'000, .ended = t, .nodes = {c0, m0}};
  timeline.steps.push_back({.epoch = 1,
                            .lane = 0,
                            .step = 2,
                            .planned = 950'000,
                            .done = t,
                            .rows = 1,
                            .requests = {"follow \"me\""}});
  timeline.requests.push_back({.request_id = "follow \"me\"",
                               .id = "x",
                               .arrived = 900'000,
                               .started = 950'000,
                               .ended = t});
  return timeline;
}

TEST(TimelineClocksTest, DataThatGoesBothWaysShowsTheClock) {
  for (const Nanos skew : {0, 70'000, -3'000'000}) {
    client::Timeline timeline = MakeTimeline(skew, skew + 40'000, 50'000);
    const std::vector<NodeClock> clocks = PutOnOneClock(timeline);
    EXPECT_EQ(clocks[0].shift, 0);
    EXPECT_EQ(clocks[1].measured, skew + 40'000);
    EXPECT_NEAR(static_cast<double>(clocks[1].shift), static_cast<double>(skew), kWire) << skew;
  }
}

TEST(TimelineClocksTest, WithoutDataTheMeasuredOffsetCounts) {
  client::Timeline timeline = MakeTimeline(5'000, 4'000, 2'000);
  timeline.nodes[1].events.resize(1);  // A store, and no reply.
  const Nanos start = timeline.nodes[1].events[0].start;
  const std::vector<NodeClock> clocks = PutOnOneClock(timeline);
  EXPECT_EQ(clocks[1].shift, 4'000);
  EXPECT_EQ(timeline.nodes[1].events[0].start, start - 4'000);
}

TEST(TimelineClocksTest, AnExactMeasurementIsKept) {
  client::Timeline timeline = MakeTimeline(5'000, 5'010, 20);
  EXPECT_EQ(PutOnOneClock(timeline)[1].shift, 5'010);
}

// The members have changed while it was recorded: steps begin at 1 again, and peers are others.
TEST(TimelineTest, OnlyTheLastEpochIsKept) {
  constexpr Nanos kOffset = 5'000'000;
  client::Timeline timeline = MakeTimeline(kOffset, kOffset + 2'000, 3'000);
  timeline.epoch = 2;
  timeline.steps[0].epoch = 2;
  std::vector<size_t> events;
  for (client::NodeTimeline& node : timeline.nodes) {
    events.push_back(node.events.size());
    TraceEvent early = node.events.front();
    early.start -= 500'000;
    early.end -= 500'000;
    early.peer = static_cast<uint16_t>(node.is_memory ? 1 : kM0 + 1);
    node.events.insert(node.events.begin(), early);
  }
  timeline.steps.push_back({.epoch = 1, .lane = 0, .step = 2, .planned = 400'000, .rows = 9});

  EXPECT_EQ(KeepLastEpoch(timeline), 1u);

  ASSERT_EQ(timeline.steps.size(), 1u);
  EXPECT_EQ(timeline.steps[0].rows, 1u);
  for (size_t i = 0; i < timeline.nodes.size(); ++i) {
    EXPECT_EQ(timeline.nodes[i].events.size(), events[i]) << timeline.nodes[i].name;
  }
  EXPECT_EQ(KeepLastEpoch(timeline), 0u);
}

// A step that was under way when the recording began was planned before.
TEST(TimelineTest, WithoutAChangeOfEpochNothingIsLeftOut) {
  client::Timeline timeline = MakeTimeline(0, 0, 10);
  timeline.steps[0].planned = 1'050'000;
  const size_t events = timeline.nodes[0].events.size();

  EXPECT_EQ(KeepLastEpoch(timeline), 0u);

  EXPECT_EQ(timeline.nodes[0].events.size(), events);
}

// The new epoch has planned nothing yet.
TEST(TimelineTest, WhatIsOfEarlierEpochsAloneIsAllLeftOut) {
  client::Timeline timeline = MakeTimeline(0, 0, 10);
  timeline.epoch = 2;
  timeline.ended += 1'000'000;

  EXPECT_EQ(KeepLastEpoch(timeline), 1u);

  for (const client::NodeTimeline& node : timeline.nodes) {
    EXPECT_TRUE(node.events.empty()) << node.name;
  }
}

// Slices by process and row; fails where two of a row overlap without one holding the other.
std::map<std::pair<int, int>, std::vector<json>> Rows(const json& file) {
  std::map<std::pair<int, int>, std::vector<json>> rows;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") {
      rows[{event["pid"], event["tid"]}].push_back(event);
    }
  }
  for (auto& [row, slices] : rows) {
    std::sort(slices.begin(), slices.end(), [](const json& a, const json& b) {
      return std::pair(a["ts"].get<double>(), -a["dur"].get<double>()) <
             std::pair(b["ts"].get<double>(), -b["dur"].get<double>());
    });
    std::vector<double> ends;
    for (const json& slice : slices) {
      const double start = slice["ts"];
      const double end = start + slice["dur"].get<double>();
      while (!ends.empty() && ends.back() <= start + 1e-6) {
        ends.pop_back();
      }
      EXPECT_TRUE(ends.empty() || end <= ends.back() + 1e-6) << slice;
      ends.push_back(end);
    }
  }
  return rows;
}

TEST(TimelineTest, PrefillNodesAndTheirLanesAreNamed) {
  client::Timeline timeline = MakeTimeline(0, 0, 10);
  for (client::NodeTimeline& node : timeline.nodes) {
    node.prefill = !node.is_memory;
  }
  timeline.prefill_lane = 0;
  const json file = json::parse(ToTraceEvents(timeline));
  std::set<std::string> names;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "M" && event["args"].contains("name")) {
      names.insert(event["args"]["name"]);
    }
  }
  for (const char* name : {"c0 (prefill)", "m0 (memory)", "prefill worker", "lane 0 (prefill)"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(TimelineTest, LanesNestArrowsGoForwardAndRequestsAreNamed) {
  client::Timeline timeline = MakeTimeline(70'000, 100'000, 50'000);
  PutOnOneClock(timeline);
  const json file = json::parse(ToTraceEvents(timeline));
  const auto rows = Rows(file);

  std::map<std::string, int> in_lane;
  std::string requests;
  for (const json& slice : rows.at({2, 1})) {
    ++in_lane[slice["name"]];
    if (slice["name"] == "step 2") {
      requests = slice["args"]["requests"][0];
    }
  }
  EXPECT_EQ(requests, "follow \"me\"");
  for (const char* name : {"dense 0", "dense 1", "attention 0", "attention 1", "head"}) {
    EXPECT_EQ(in_lane[name], 3) << name;
  }
  std::map<std::string, double> starts;
  int arrows = 0;
  std::map<std::string, int> names;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "s") {
      starts[event["id"]] = event["ts"];
    }
    ++names[event["name"]];
  }
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "f") {
      ASSERT_TRUE(starts.contains(event["id"])) << event;
      EXPECT_LE(starts[event["id"]], event["ts"].get<double>());
      ++arrows;
    }
  }
  EXPECT_EQ(arrows, 12);  // These are 3 steps, 2 layers, there and back.
  EXPECT_EQ(names["follow \"me\""], 2);
  EXPECT_EQ(names["prefill"], 2);
  EXPECT_EQ(names["decode"], 0);
}

// Policy local.
TEST(TimelineTest, AttentionOfAComputeNodeIsInItsLane) {
  client::NodeTimeline c0{.name = "c0"};
  Nanos t = 1'000;
  for (const auto& [part, layer] : {std::pair(WorkKind::kDense, 0),
                                    {WorkKind::kStore, 0},
                                    {WorkKind::kAttend, 0},
                                    {WorkKind::kDense, 1},
                                    {WorkKind::kAttend, 1},
                                    {WorkKind::kHead, 2}}) {
    c0.events.push_back({.start = t,
                         .end = t + 1'000,
                         .part = part,
                         .lane = 0,
                         .layer = static_cast<uint16_t>(layer),
                         .rows = 1,
                         .step = 1});
    t += 1'000;
  }
  const json file = json::parse(
      ToTraceEvents({.epoch = 1, .began = 0, .ended = t, .nodes = {c0}, .prefill_lane = 1}));
  const auto rows = Rows(file);
  std::vector<std::string> in_lane;
  for (const json& slice : rows.at({2, 1})) {
    in_lane.push_back(slice["name"]);
  }
  EXPECT_EQ(in_lane, (std::vector<std::string>{"step 1", "dense 0", "attention 0", "dense 1",
                                               "attention 1", "head"}));
}

// The device of c0 sends to m0. Lanes overlap, and a lane's sends do by less than a look.
TEST(TimelineTest, WhatADeviceSendsByItselfHasRowsOfItsOwn) {
  client::NodeTimeline c0{.name = "c0"};
  c0.events.push_back({.start = 1'000, .end = 9'000, .part = WorkKind::kWaitAttention, .lane = 0});
  const auto send = [&](uint8_t lane, Nanos unraised, Nanos posted, Nanos complete) {
    for (const auto& [kind, start, end] :
         {std::tuple(WorkKind::kPost, unraised, posted), {WorkKind::kInFlight, posted, complete}}) {
      c0.events.push_back({.start = start,
                           .end = end,
                           .part = kind,
                           .lane = lane,
                           .peer = kM0,
                           .step = 1,
                           .bytes = 64});
    }
  };
  send(0, 1'000, 1'500, 4'000);
  send(1, 1'400, 3'000, 5'000);
  send(0, 3'900, 4'500, 6'000);
  const json file = json::parse(ToTraceEvents({.epoch = 1,
                                               .began = 1'000,
                                               .ended = 9'000,
                                               .nodes = {c0, {.name = "m0", .is_memory = true}},
                                               .prefill_lane = 2}));

  std::map<std::string, std::pair<int, int>> row_of;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") {
      row_of[event["args"]["name"]] = {event["pid"], event["tid"]};
    }
  }
  const auto rows = Rows(file);  // It fails where slices overlap.
  const auto& first = rows.at(row_of.at("link c0 to m0, lane 0 by the device"));
  std::vector<std::tuple<std::string, double, double>> spans;
  for (const json& slice : first) {
    spans.emplace_back(slice["name"], slice["ts"], slice["dur"]);
  }
  EXPECT_EQ(
      spans,
      (std::vector<std::tuple<std::string, double, double>>{
          {"post", 0, 0.5}, {"in_flight", 0.5, 2.5}, {"post", 3, 0.5}, {"in_flight", 3.5, 1.5}}));
  EXPECT_EQ(first.front()["args"]["peer"], "m0");
  EXPECT_EQ(rows.at(row_of.at("link c0 to m0, lane 1 by the device")).size(), 2u);
  EXPECT_EQ(rows.at(row_of.at("replica")).size(), 1u) << "the thread's own";
}

// What comes into a device's memory, and how long the device stood still for it: they overlap.
TEST(TimelineTest, WhatADeviceAwaitsByItselfHasRowsOfItsOwn) {
  client::NodeTimeline m0{.name = "m0", .is_memory = true};
  m0.events.push_back({.start = 1'000, .end = 4'000, .part = WorkKind::kWaitQuery});
  for (const auto& [kind, start, end] :
       {std::tuple(WorkKind::kDeviceWait, 1'000, 3'500), {WorkKind::kLand, 2'500, 3'000}}) {
    m0.events.push_back(
        {.start = start, .end = end, .part = kind, .lane = 1, .peer = 0, .layer = 2, .step = 1});
  }
  const json file = json::parse(ToTraceEvents({.epoch = 1,
                                               .began = 1'000,
                                               .ended = 4'000,
                                               .nodes = {{.name = "c0"}, m0},
                                               .prefill_lane = 2}));

  std::map<std::string, std::pair<int, int>> row_of;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") {
      row_of[event["args"]["name"]] = {event["pid"], event["tid"]};
    }
  }
  const auto rows = Rows(file);
  for (const auto& [row, name, at, length] :
       {std::tuple("link m0 from c0, lane 1 awaited by the device", "device_wait", 0.0, 2.5),
        {"link m0 from c0, lane 1 into the device", "land", 1.5, 0.5}}) {
    ASSERT_EQ(row_of.count(row), 1u) << row;
    const auto& slices = rows.at(row_of.at(row));
    ASSERT_EQ(slices.size(), 1u) << row;
    EXPECT_EQ(slices.front()["name"], name);
    EXPECT_EQ(slices.front()["ts"], at);
    EXPECT_EQ(slices.front()["dur"], length);
    EXPECT_EQ(slices.front()["args"]["layer"], 2);
  }
  EXPECT_EQ(rows.at(row_of.at("memory worker")).size(), 1u) << "the thread's own";
}

// A lane goes from c0 to c1 and back: its context and its tokens have arrows, and links of their
// own.
TEST(TimelineTest, ALaneThatRotatesIsOneRowAndItsContextHasArrows) {
  client::Timeline timeline{
      .epoch = 1, .nodes = {{.name = "c0"}, {.name = "c1"}, {.name = "m0", .is_memory = true}}};
  Nanos t = 1'000;
  const auto add = [&](size_t node, WorkKind part, uint16_t layer, uint16_t peer) {
    timeline.nodes[node].events.push_back({.start = t,
                                           .end = t + 1'000,
                                           .part = part,
                                           .lane = 0,
                                           .peer = peer,
                                           .layer = layer,
                                           .rows = 1,
                                           .step = 1});
    t += 1'000;
  };
  for (const uint16_t replica : {uint16_t{0}, uint16_t{1}}) {
    const auto other = static_cast<uint16_t>(1 - replica);
    add(replica, WorkKind::kDense, replica, TraceEvent::kNoPeer);
    add(replica, WorkKind::kSend, replica, kM0);
    add(replica, WorkKind::kContext, replica, other);
    add(other, WorkKind::kTake, replica, replica);  // The context,
    add(2, WorkKind::kStore, replica, replica);
    add(2, WorkKind::kReply, replica, other);
    add(other, WorkKind::kTake, replica, kM0);  // and the outputs, to the same one.
  }
  add(0, WorkKind::kHead, 2, TraceEvent::kNoPeer);
  add(0, WorkKind::kContext, 2, 1);  // The tokens.
  add(1, WorkKind::kTake, 2, 0);
  timeline.ended = t;
  const json file = json::parse(ToTraceEvents(timeline));

  const auto slices = Rows(file);
  std::vector<std::string> in_lane;
  for (const json& slice : slices.at({2, 1})) {
    in_lane.push_back(slice["name"]);
  }
  EXPECT_EQ(in_lane, (std::vector<std::string>{"step 1", "dense 0", "attention 0", "dense 1",
                                               "attention 1", "head"}));
  std::multiset<std::string> arrows;
  std::multiset<std::string> ends;
  std::set<std::string> rows;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "s" || event["ph"] == "f") {
      (event["ph"] == "s" ? arrows : ends).insert(event["id"].get<std::string>());
    } else if (event["ph"] == "M" && event["name"] == "thread_name") {
      rows.insert(event["args"]["name"].get<std::string>());
    }
  }
  EXPECT_EQ(arrows, ends);
  for (const char* id : {"l0s1k0:c0>c1", "l0s1k1:c1>c0", "l0s1k2:c0>c1", "l0s1k0:c0>m0",
                         "l0s1k0:m0>c1", "l0s1k1:m0>c0"}) {
    EXPECT_EQ(arrows.count(id), 1u) << id;
  }
  EXPECT_EQ(rows, (std::set<std::string>{"lane 0", "replica", "memory worker", "link c0 to c1",
                                         "link c0 to m0", "link c1 to c0", "link c1 to m0",
                                         "link m0 to c0", "link m0 to c1"}));
}

TEST(TimelineTest, AnEmptyTimelineIsAFileToo) {
  const json file = json::parse(ToTraceEvents({}));
  EXPECT_TRUE(file["traceEvents"].is_array());
}

}  // namespace
}  // namespace lamina::cli
