// SPDX-License-Identifier: Apache-2.0
#include "telemetry/landing_spans.h"

#include <gtest/gtest.h>

#include <deque>

namespace lamina::telemetry {
namespace {

constexpr Nanos kForever = Seconds(1'000'000);

class ToyLandings final : public Landings {
 public:
  void NoteTimes(bool wanted) override { notes = wanted; }
  std::optional<LandingTimes> TakeTimes() override {
    if (times.empty()) {
      return std::nullopt;
    }
    const LandingTimes first = times.front();
    times.pop_front();
    return first;
  }

  bool notes = true;
  std::deque<LandingTimes> times;
};

class LandingSpansTest : public testing::Test {
 protected:
  LandingSpansTest() {
    spans_.Watch(&landings_);
    for (uint32_t node = 0; node < 2; ++node) {
      spans_.Add(static_cast<uint16_t>(node), layout_.query_word(node, 0));
    }
  }
  LandingTimes TimesOf(uint32_t node, uint32_t lane, uint64_t step, uint32_t layer) const {
    return {.word = layout_.query_word(node, lane),
            .value = layout_.SignalValue(step, layer),
            .unraised = 1'000,
            .landed = 1'700};
  }
  std::vector<TraceEvent> Events() {
    uint64_t dropped = 0;
    return ring_.Take(dropped);
  }

  const plan::WindowLayout layout_{{.compute_nodes = 2,
                                    .memory_nodes = 1,
                                    .lanes = 2,
                                    .rows_max = 1,
                                    .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16},
                                               {.query_heads = 1, .kv_heads = 1, .head_dim = 16}}}};
  TraceRing ring_;
  ToyLandings landings_;
  LandingSpans spans_{ring_, layout_};
};

TEST_F(LandingSpansTest, ALandingIsTheTimeFromTheHostsWordToTheDevices) {
  ring_.Start(kForever);
  spans_.Record();
  landings_.times.push_back(TimesOf(1, 1, 5, 1));

  spans_.Record();

  const std::vector<TraceEvent> events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].part, WorkKind::kLand);
  EXPECT_EQ(events[0].lane, 1);
  EXPECT_EQ(events[0].peer, 1);
  EXPECT_EQ(events[0].step, 5u);
  EXPECT_EQ(events[0].layer, 1);
  EXPECT_EQ(events[0].start, 1'000);
  EXPECT_EQ(events[0].end, 1'700);
}

TEST_F(LandingSpansTest, WordsOfNobodyAreLeftOut) {
  ring_.Start(kForever);
  spans_.Record();
  landings_.times.push_back({.word = layout_.query_probe_word(0), .value = 1});

  spans_.Record();

  EXPECT_TRUE(Events().empty());
  EXPECT_TRUE(landings_.times.empty());
}

TEST_F(LandingSpansTest, TimesAreNotedWhileATimelineIsRecorded) {
  EXPECT_FALSE(landings_.notes);
  spans_.Record();
  EXPECT_FALSE(landings_.notes);

  ring_.Start(kForever);
  spans_.Record();
  EXPECT_TRUE(landings_.notes);

  ring_.Stop();
  spans_.Record();
  EXPECT_FALSE(landings_.notes);
}

TEST_F(LandingSpansTest, WhatAnEarlierTimelineLeftIsNotOfTheNextOne) {
  landings_.times.push_back(TimesOf(0, 0, 1, 0));
  ring_.Start(kForever);

  spans_.Record();
  EXPECT_TRUE(Events().empty());

  landings_.times.push_back(TimesOf(0, 0, 2, 0));
  spans_.Record();
  EXPECT_EQ(Events().size(), 1u);
}

TEST_F(LandingSpansTest, WithoutLandingsNothingIsRecorded) {
  spans_.Watch(nullptr);
  ring_.Start(kForever);

  spans_.Record();

  EXPECT_TRUE(Events().empty());
}

}  // namespace
}  // namespace lamina::telemetry
