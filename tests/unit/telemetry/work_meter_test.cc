// SPDX-License-Identifier: Apache-2.0
#include "telemetry/work_meter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "telemetry/node_counters.h"

namespace lamina::telemetry {
namespace {

TraceEvent Event(uint32_t i) {
  return {.start = i,
          .end = i + 1,
          .part = WorkKind::kSend,
          .lane = 3,
          .peer = TraceEvent::kMemoryPeer + 254,
          .layer = 500,
          .rows = 64,
          .step = i,
          .bytes = ~i};
}

TEST(TraceRingTest, AnEventIsReadAsItWasWritten) {
  TraceRing ring;
  ring.Start(INT64_MAX);
  ring.Record(Event(7));
  uint64_t dropped = 1;
  const auto events = ring.Take(dropped);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(dropped, 0u);
  EXPECT_EQ(events[0].ToWords(), Event(7).ToWords());
  EXPECT_EQ(events[0].start, 7);
  EXPECT_EQ(events[0].peer, TraceEvent::kMemoryPeer + 254);
  EXPECT_EQ(events[0].layer, 500);
  EXPECT_EQ(events[0].rows, 64);
  EXPECT_EQ(events[0].step, 7u);
  EXPECT_EQ(events[0].bytes, ~7u);
}

TEST(TraceRingTest, IsOffUntilItIsStartedAndAfterItsTime) {
  TraceRing ring;
  EXPECT_FALSE(ring.on());
  ring.Record(Event(1));
  ring.Start(10);
  EXPECT_TRUE(ring.on());
  ring.Record(Event(5));
  ring.Record(Event(20));
  EXPECT_FALSE(ring.on());
  uint64_t dropped = 0;
  EXPECT_EQ(ring.Take(dropped).size(), 1u);
}

TEST(TraceRingTest, StartForgetsWhatWasBefore) {
  TraceRing ring;
  ring.Start(INT64_MAX);
  ring.Record(Event(1));
  ring.Stop();
  ring.Record(Event(2));
  ring.Start(INT64_MAX);
  ring.Record(Event(3));
  uint64_t dropped = 0;
  const auto events = ring.Take(dropped);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, 3u);
}

TEST(TraceRingTest, TheOldestAreWrittenOverAndCounted) {
  TraceRing ring;
  ring.Start(INT64_MAX);
  constexpr uint32_t kMore = 1000;
  for (uint32_t i = 0; i < TraceRing::kEvents + kMore; ++i) {
    ring.Record(Event(i));
  }
  uint64_t dropped = 0;
  const auto events = ring.Take(dropped);
  // One place may be about to be written.
  EXPECT_EQ(events.size() + dropped, TraceRing::kEvents + kMore);
  EXPECT_EQ(dropped, kMore + 1);
  EXPECT_EQ(events.front().step, kMore + 1);
  EXPECT_EQ(events.back().step, TraceRing::kEvents + kMore - 1);
}

TEST(TraceRingTest, ReadingWhileTheWriterGoesOnGivesWholeEventsInOrder) {
  TraceRing ring;
  ring.Start(INT64_MAX);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      ring.Record(Event(i));
    }
  });
  for (int round = 0; round < 20; ++round) {
    uint64_t dropped = 0;
    const auto events = ring.Take(dropped);
    for (size_t i = 0; i < events.size(); ++i) {
      ASSERT_EQ(events[i].ToWords(), Event(events[i].step).ToWords());
      ASSERT_EQ(events[i].step, static_cast<uint32_t>(dropped + i));
    }
  }
  stop = true;
  writer.join();
}

TEST(WorkMeterTest, EveryMomentBelongsToOnePart) {
  WorkMeter meter;
  const Nanos begin = RealClock().Now();
  Nanos interval = begin;
  interval = meter.EndInterval({.start = interval, .part = WorkKind::kDense});
  interval = meter.EndInterval({.start = interval, .part = WorkKind::kWaitAttention});
  interval = meter.EndInterval({.start = interval, .part = WorkKind::kDense});
  NodeCounters counters;
  Count(meter, Refusals(), /*is_memory=*/false, counters);
  double sum = 0;
  std::set<std::string> names;
  for (const auto& [name, seconds] : counters.parts) {
    sum += seconds;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(name.rfind("wait_", 0) == 0, name == "wait_attention" || name == "wait_replica" ||
                                               name == "wait_weights" || name == "wait_plan");
  }
  EXPECT_DOUBLE_EQ(sum, ToSeconds(interval - begin));
  EXPECT_DOUBLE_EQ(counters.busy_seconds, meter.Seconds(WorkKind::kDense));
}

TEST(WorkMeterTest, LinksGoByNameAndStay) {
  WorkMeter meter;
  LinkCounters* const link = meter.Link("m0");
  LinkCounters* const other = meter.Link("m1");
  EXPECT_EQ(meter.Link("m0"), link);
  AddTo(link->bytes, 5);
  AddTo(link->waited_nanos, 2'000'000'000);
  link->exchange.Note(Seconds(1), Millis(1), 1'000);
  link->fetched.Begin(1);
  other->fetched.Begin(1);
  for (int i = 0; i < 100; ++i) {  // A MiB in 10 ms, always with another one behind it, or perhaps.
    const auto come = static_cast<uint64_t>(i);
    for (LinkCounters* const each : {link, other}) {
      each->fetched.Look(Seconds(1) + Millis(10 * i), {&come, 1});
      each->fetched.Expect(0, {.sure = each == link ? come + 2 : come, .possible = come + 2});
      each->fetched.Count(size_t{1} << 20);
    }
  }
  const auto links = meter.Links();
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].peer, "m0");
  EXPECT_EQ(links[0].bytes, 5u);
  EXPECT_EQ(links[0].waited_seconds, 2.0);
  EXPECT_DOUBLE_EQ(links[0].exchange_seconds, 1e-3);
  EXPECT_DOUBLE_EQ(links[0].exchange_bytes_per_second, 1e6);
  EXPECT_NEAR(links[0].fetched_bytes_per_second_least, 104.9e6, 5e6);
  EXPECT_NEAR(links[0].fetched_bytes_per_second_most, 104.9e6, 5e6);
  EXPECT_EQ(links[1].exchange_seconds, 0);
  EXPECT_EQ(links[0].fetched_unbounded_seconds, 0);
  EXPECT_EQ(links[1].fetched_bytes_per_second_most, 0);
  EXPECT_NEAR(links[1].fetched_unbounded_seconds, 1, 0.1);
}

TEST(FastestExchangeTest, ShowsTheShortestOfLateAndTheMostBytes) {
  FastestExchange exchange;
  EXPECT_EQ(exchange.seconds(), 0);
  exchange.Note(Seconds(1), Millis(8), 8'000'000);
  exchange.Note(Seconds(2), Millis(2), 1'000);
  exchange.Note(Seconds(3), Millis(4), 4'000);
  EXPECT_DOUBLE_EQ(exchange.seconds(), 2e-3);
  EXPECT_DOUBLE_EQ(exchange.bytes_per_second(), 1e9);
  const Nanos later = Seconds(1) + FastestExchange::kWindow;
  exchange.Note(later, Millis(16), 16'000);
  EXPECT_DOUBLE_EQ(exchange.seconds(), 2e-3) << "of the window before";
  exchange.Note(later + FastestExchange::kWindow, Millis(32), 32'000);
  EXPECT_DOUBLE_EQ(exchange.seconds(), 16e-3) << "what is older is forgotten";
  EXPECT_DOUBLE_EQ(exchange.bytes_per_second(), 1e6);
  exchange.Forget();
  EXPECT_EQ(exchange.seconds(), 0);
  EXPECT_EQ(exchange.bytes_per_second(), 0);
}

TEST(RefusalsTest, SaysWhatIsWrongWithAHeader) {
  const plan::WindowHeader good{
      .lane = 1, .epoch = 5, .step = 7, .layer = 2, .rows = 3, .sender = 1};
  const auto reason = [&good](auto change) {
    plan::WindowHeader header = good;
    change(header);
    return RefusalOf(header, good);
  };
  EXPECT_EQ(reason([](auto& h) { h.magic = 0; }), Refusal::kDamaged);
  EXPECT_EQ(reason([](auto& h) { h.epoch = 4; }), Refusal::kStale);
  EXPECT_EQ(reason([](auto& h) { h.step = 6; }), Refusal::kStale);
  EXPECT_EQ(reason([](auto& h) { h.epoch = 6; }), Refusal::kEpoch);
  EXPECT_EQ(reason([](auto& h) { h.lane = 0; }), Refusal::kLane);
  EXPECT_EQ(reason([](auto& h) { h.step = 8; }), Refusal::kStep);
  EXPECT_EQ(reason([](auto& h) { h.layer = 3; }), Refusal::kLayer);
  EXPECT_EQ(reason([](auto& h) { h.rows = 2; }), Refusal::kRows);
  EXPECT_EQ(reason([](auto& h) { h.kv_rows = 2; }), Refusal::kRows);
  EXPECT_EQ(reason([](auto& h) { h.sender = 0; }), Refusal::kSender);
  Refusals refusals;
  refusals.Count(Refusal::kStale);
  refusals.Count(Refusal::kSchedule);
  EXPECT_EQ(refusals.total(), 2u);
  EXPECT_EQ(refusals.ByReason()[1], (std::pair<std::string, uint64_t>("stale", 1)));
}

}  // namespace
}  // namespace lamina::telemetry
