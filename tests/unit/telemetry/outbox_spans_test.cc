// SPDX-License-Identifier: Apache-2.0
#include "telemetry/outbox_spans.h"

#include <gtest/gtest.h>

#include <deque>

namespace lamina::telemetry {
namespace {

constexpr uint32_t kFirstWord = 8;
constexpr Nanos kForever = Seconds(1'000'000);

class ToyOutbox final : public Outbox {
 public:
  absl::Status Announce(const OutboxSend&) override { return absl::OkStatus(); }
  void Forget() override {}
  void NoteTimes(bool wanted) override { notes = wanted; }
  std::optional<OutboxTimes> TakeTimes() override {
    if (times.empty()) {
      return std::nullopt;
    }
    const OutboxTimes first = times.front();
    times.pop_front();
    return first;
  }

  bool notes = true;
  std::deque<OutboxTimes> times;
};

class OutboxSpansTest : public testing::Test {
 protected:
  OutboxSpansTest() {
    spans_.Add(&outbox_, 3);
    spans_.Add(nullptr, 4);
  }
  OutboxTimes TimesOf(uint32_t lane, uint64_t step, uint32_t layer) const {
    return {.word = kFirstWord + lane,
            .value = layout_.SignalValue(step, layer),
            .bytes = 640,
            .unraised = 1'000,
            .posted = 1'200,
            .complete = 1'900};
  }
  std::vector<TraceEvent> Events() {
    uint64_t dropped = 0;
    return ring_.Take(dropped);
  }

  const plan::WindowLayout layout_{{.compute_nodes = 1,
                                    .memory_nodes = 1,
                                    .lanes = 2,
                                    .rows_max = 1,
                                    .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16},
                                               {.query_heads = 1, .kv_heads = 1, .head_dim = 16}}}};
  TraceRing ring_;
  ToyOutbox outbox_;
  OutboxSpans spans_{ring_, layout_, kFirstWord};
};

TEST_F(OutboxSpansTest, ASendIsTheTimeUntilItsPutAndTheTimeUntilThatIsComplete) {
  ring_.Start(kForever);
  spans_.Record();
  outbox_.times.push_back(TimesOf(1, 5, 1));

  spans_.Record();

  const std::vector<TraceEvent> events = Events();
  ASSERT_EQ(events.size(), 2u);
  for (const TraceEvent& event : events) {
    EXPECT_EQ(event.lane, 1);
    EXPECT_EQ(event.step, 5u);
    EXPECT_EQ(event.layer, 1);
    EXPECT_EQ(event.peer, 3);
    EXPECT_EQ(event.bytes, 640u);
  }
  EXPECT_EQ(events[0].part, WorkKind::kPost);
  EXPECT_EQ(events[0].start, 1'000);
  EXPECT_EQ(events[0].end, 1'200);
  EXPECT_EQ(events[1].part, WorkKind::kInFlight);
  EXPECT_EQ(events[1].start, 1'200);
  EXPECT_EQ(events[1].end, 1'900);
}

TEST_F(OutboxSpansTest, OutboxesNoteTimesWhileATimelineIsRecorded) {
  EXPECT_FALSE(outbox_.notes);
  spans_.Record();
  EXPECT_FALSE(outbox_.notes);

  ring_.Start(kForever);
  spans_.Record();
  EXPECT_TRUE(outbox_.notes);

  ring_.Stop();
  spans_.Record();
  EXPECT_FALSE(outbox_.notes);
}

TEST_F(OutboxSpansTest, WhatAnEarlierTimelineLeftIsNotOfTheNextOne) {
  outbox_.times.push_back(TimesOf(0, 1, 0));
  ring_.Start(kForever);

  spans_.Record();
  EXPECT_TRUE(Events().empty());

  outbox_.times.push_back(TimesOf(0, 2, 0));
  spans_.Record();
  EXPECT_EQ(Events().size(), 2u);
}

}  // namespace
}  // namespace lamina::telemetry
