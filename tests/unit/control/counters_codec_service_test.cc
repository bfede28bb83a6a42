// SPDX-License-Identifier: Apache-2.0
#include "control/counters_codec_service.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace lamina::control {
namespace {

telemetry::NodeCounters ThereAndBack(const telemetry::NodeCounters& sent) {
  v1::NodeDetail detail;
  ToProto(sent, &detail);
  telemetry::NodeCounters got;
  ReportedFigures figures;
  FromProto(detail, got, figures);
  EXPECT_EQ(figures.refused(), "");
  return got;
}

// All but what the message around it has: other numbers in each field.
TEST(CountersCodecTest, EveryFieldArrivesAsItWasCounted) {
  const telemetry::NodeCounters sent{
      .replayed_units = 1,
      .device_units = 2,
      .recomputed_tokens = 3,
      .weight_bytes = 4,
      .streamed_bytes = 42,
      .memory = {{"kv", 5}, {"weights", 6}},
      .memory_budget = 7,
      .memory_formula = {.paper = telemetry::MemoryPaper::kKvpr,
                         .weights = 44,
                         .windows = 45,
                         .activations = 46,
                         .resident = 49,
                         .heads = 47},
      .spill = {.capacity_bytes = 8,
                .used_bytes = 9,
                .bytes_out = 10,
                .bytes_in = 11,
                .sequences_out = 12,
                .sequences_in = 13,
                .cached_tokens_out = 14,
                .cached_tokens_in = 15,
                .failures = 16,
                .seconds_out = 17.5,
                .seconds_in = 18.5,
                .reads = {.queued_seconds = 50.5,
                          .reading_seconds = 51.5,
                          .behind_seconds = 52.5,
                          .copying_seconds = 53.5,
                          .ahead_bytes = 54},
                .write_bytes_per_second = 19.5,
                .read_bytes_per_second = 20.5},
      .buses = {{"to", 21, 22.5, {{"kv", 23}, {"weights", 24}}}, {"from", 25, 26.5, {}}},
      .making = {.fixed = 27.5, .slope = 28.5, .r_squared = 0.75},
      .activity = ThreadActivity::kLoading,
      .beats = 29,
      .parts = {{"attention", 30.5}, {"waits", 31.5}},
      .refusals = {{"stale", 32}, {"rows", 33}},
      .links = {{.peer = "m0",
                 .bytes = 34,
                 .puts = 35,
                 .seconds = 36.5,
                 .failures = 37,
                 .waited_seconds = 38.5,
                 .exchange_seconds = 39.5,
                 .exchange_bytes_per_second = 40.5,
                 .fetched_bytes_per_second_least = 42.5,
                 .fetched_bytes_per_second_most = 43.5,
                 .fetched_unbounded_seconds = 48.5},
                {.peer = "m1", .bytes = 41}}};

  const telemetry::NodeCounters got = ThereAndBack(sent);

  EXPECT_TRUE(got.spill == sent.spill);
  EXPECT_TRUE(got.buses == sent.buses);
  EXPECT_TRUE(got.links == sent.links);
  EXPECT_EQ(got.activity, sent.activity);
  EXPECT_EQ(got.beats, sent.beats);
  EXPECT_TRUE(got == sent);
  EXPECT_TRUE(ThereAndBack({}) == telemetry::NodeCounters());
}

TEST(CountersCodecTest, EveryActivityOfADataThreadArrives) {
  for (size_t i = 0; i < kThreadActivityNames.size(); ++i) {
    const auto activity = static_cast<ThreadActivity>(i);
    EXPECT_EQ(ThereAndBack({.activity = activity}).activity, activity) << kThreadActivityNames[i];
  }
}

TEST(CountersCodecTest, AFittedLineArrives) {
  v1::NodeDetail detail;
  ToProto(telemetry::NodeCounters{.making = {1e-6, 2e-9, 0.75}}, &detail);
  telemetry::NodeCounters got;
  ReportedFigures figures;
  FromProto(detail, got, figures);
  EXPECT_EQ(got.making, (telemetry::FittedSeconds{1e-6, 2e-9, 0.75}));

  detail.Clear();
  ToProto(telemetry::NodeCounters(), &detail);
  EXPECT_FALSE(detail.has_making());
  FromProto(detail, got, figures);
  EXPECT_FALSE(got.making.fitted());
}

TEST(CountersCodecTest, NamesAndTheirNumberAreBounded) {
  v1::NodeDetail detail;
  for (int i = 0; i < 10'000; ++i) {
    detail.add_parts()->set_part("part");
    detail.add_refusals()->set_reason("reason");
    detail.add_links()->set_peer("m0");
  }
  detail.mutable_parts(0)->set_part(std::string(1 << 20, 'x'));
  detail.mutable_refusals(0)->set_reason(std::string(1 << 20, 'x'));
  detail.mutable_links(0)->set_peer("m0\nm1");
  telemetry::NodeCounters counters;
  ReportedFigures figures;

  FromProto(detail, counters, figures);

  EXPECT_EQ(counters.parts.size(), 256u);
  EXPECT_EQ(counters.refusals.size(), 256u);
  EXPECT_EQ(counters.links.size(), 256u);
  EXPECT_LT(counters.parts[0].first.size(), 300u);
  EXPECT_LT(counters.refusals[0].first.size(), 300u);
  EXPECT_EQ(counters.links[0].peer, "m0\\nm1");
}

// A time or rate of each message, in turn.
TEST(CountersCodecTest, FiguresThatCannotBeCountAsNotMeasured) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const telemetry::NodeCounters sound{.spill = {.capacity_bytes = 1, .write_bytes_per_second = 2},
                                      .buses = {{"to", 3, 4, {}}},
                                      .making = {.fixed = 5, .slope = 6, .r_squared = -0.5},
                                      .parts = {{"attend", 7}},
                                      .links = {{.peer = "m0",
                                                 .exchange_seconds = 8,
                                                 .exchange_bytes_per_second = 9,
                                                 .fetched_bytes_per_second_most = 10}}};
  for (const auto& [set, refused] :
       std::vector<std::pair<void (*)(telemetry::NodeCounters&, double), std::string>>{
           {[](auto&c, double x) { c.spill.write_bytes_per_second = x; },
            "spill.write_bytes_per_second"},
           {[](auto&c, double x) { c.buses[0].busy_seconds = x; }, "buses.busy_seconds"},
           {[](auto&c, double x) { c.making.slope = x; }, "making.slope"},
           {[](auto&c, double x) { c.parts[0].second = x; }, "parts.seconds"},
           {[](auto&c, double x) { c.links[0].exchange_bytes_per_second = x; },
            "links.exchange_bytes_per_second"},
           {[](auto&c, double x) { c.links[0].fetched_bytes_per_second_most = x; },
            "links.fetched_bytes_per_second_most"},
           {[](auto&c, double x) { c.links[0].fetched_unbounded_seconds = x; },
            "links.fetched_unbounded_seconds"}}) {
    SCOPED_TRACE(refused);
    telemetry::NodeCounters wanted = sound;
    set(wanted, 0);
    for (const auto& [figure, word] : std::vector<std::pair<double, std::string>>{
             {nan, "nan"}, {infinite, "inf"}, {-infinite, "-inf"}, {-1, "-1"}}) {
      telemetry::NodeCounters sent = sound;
      set(sent, figure);
      v1::NodeDetail detail;
      ToProto(sent, &detail);
      detail.mutable_making()->set_fixed(sent.making.fixed);
      detail.mutable_making()->set_slope(sent.making.slope);
      detail.mutable_making()->set_r_squared(sent.making.r_squared);
      telemetry::NodeCounters got;
      ReportedFigures figures;

      FromProto(detail, got, figures);

      EXPECT_TRUE(got == wanted) << word;
      EXPECT_EQ(figures.refused(), refused + " " + word);
    }
  }
  EXPECT_TRUE(ThereAndBack(sound) == sound) << "R squared may be negative";
}

}  // namespace
}  // namespace lamina::control
