// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace lamina::cli {
namespace {

using ::testing::HasSubstr;

client::ClusterStatus MakeStatus() {
  return {.epoch = 12,
          .state = "serving",
          .model =
              "Some model of a long name that would not fit next to the other words of its line, "
              "surely",
          .version = "0.1.0",
          .nodes = {{.name = "c0", .role = "compute", .state = "ready", .busy_share = 1.0},
                    {.name = "m0",
                     .role = "memory",
                     .state = "ready",
                     .slots_used = 50,
                     .slots_total = 200,
                     .busy_share = 0.42,
                     .bytes_sent = 1000,
                     .bandwidth_bytes_per_second = 1e9,
                     .kv_bytes_read = 1000,
                     .reports = 1}},
          .lanes = {{.lane = 0, .rows = 128, .context_tokens = 1234567, .step = 100}},
          .running = 256,
          .waiting = 1024,
          .preemptions = 12345,
          .requests_finished = 1234567,
          .requests_failed = 12345,
          .tokens_generated = 1000,
          .ttft_seconds_sum = 1,
          .ttft_count = 10,
          .uptime_seconds = 1234567};
}

// Tests have no terminal, so nothing is coloured.
std::string View(const client::ClusterStatus& now, const client::ClusterStatus* before) {
  return TopView(now, before, 2, Terminal::Output());
}

TEST(TopViewTest, FitsEightyColumns) {
  client::ClusterStatus now = MakeStatus();
  now.nodes[1].bytes_sent = uint64_t{1} << 50;
  const client::ClusterStatus before = MakeStatus();

  const std::string view = View(now, &before);
  for (const absl::string_view line : absl::StrSplit(view, '\n')) {
    EXPECT_LE(line.size(), size_t{kTopColumns}) << line;
  }
}

TEST(TopViewTest, ShowsWhatHappenedBetweenTwoLooks) {
  const client::ClusterStatus before = MakeStatus();
  client::ClusterStatus now = MakeStatus();
  now.tokens_generated += 100;
  now.ttft_seconds_sum += 0.3;
  now.ttft_count += 3;
  now.nodes[1].bytes_sent += 4096;
  now.nodes[1].kv_bytes_read += 500'000'000;
  now.lanes[0].step += 20;

  const std::string view = View(now, &before);

  EXPECT_THAT(view, HasSubstr("tokens 50.0/s"));
  EXPECT_THAT(view, HasSubstr("first 100.0 ms"));
  EXPECT_THAT(view, HasSubstr("next -"));
  EXPECT_THAT(view, HasSubstr("2.0 KiB/s"));
  EXPECT_THAT(view, HasSubstr("####......   42%   25%   25%"));
  EXPECT_THAT(view, HasSubstr("10.0 steps/s"));
}

TEST(TopViewTest, PercentilesAreOfWhatCameSinceAnEarlierLook) {
  client::ClusterStatus earlier = MakeStatus();
  earlier.time_to_first_token = {.upper_seconds = {0.1, 0.2, 0.4}, .counts = {50, 0, 0, 0}};
  client::ClusterStatus now = earlier;
  now.time_to_first_token.counts = {50, 98, 2, 0};

  EXPECT_THAT(TopView(now, nullptr, 2, Terminal::Output(), &earlier),
              HasSubstr("first  50% in 151 ms, 99% in 300 ms\nnext   -\n"));
  EXPECT_THAT(TopView(now, nullptr, 2, Terminal::Output()), HasSubstr("first  50% in 126 ms"))
      << "of all so far";
}

TEST(QuantileTest, OfNothingAndOfNonsenseThereIsNone) {
  const client::Distribution none;
  const client::Distribution some = {.upper_seconds = {1, 2}, .counts = {3, 0, 0}};
  EXPECT_EQ(Quantile(none, none, 0.5), std::nullopt);
  EXPECT_EQ(Quantile(some, some, 0.5), std::nullopt);
  EXPECT_EQ(Quantile({.upper_seconds = {1, 2}, .counts = {3}}, none, 0.5), std::nullopt);
}

TEST(QuantileTest, WhatIsAboveAllBoundsIsAtTheHighest) {
  EXPECT_EQ(Quantile({.upper_seconds = {1, 2}, .counts = {1, 0, 9}}, {}, 0.5), 2.0);
}

TEST(QuantileTest, ACoordinatorThatStartedAgainCountsFromZero) {
  const client::Distribution before = {.upper_seconds = {1, 2}, .counts = {100, 0, 0}};
  EXPECT_EQ(Quantile({.upper_seconds = {1, 2}, .counts = {0, 4, 0}}, before, 0.5), 1.5);
}

TEST(TopViewTest, ANodeThatComesBackHasNotDoneAllOfItsWorkAtOnce) {
  client::ClusterStatus before = MakeStatus();
  before.nodes[1].reports = 0;  // It was away.
  before.nodes[1].bytes_sent = 0;
  before.nodes[1].kv_bytes_read = 0;
  client::ClusterStatus now = MakeStatus();
  now.nodes[1].bytes_sent = uint64_t{1} << 40;

  EXPECT_THAT(View(now, &before), HasSubstr("   25%    0%        0 B/s        0 B/s\n"));
}

TEST(TopViewTest, TheFirstLookAndANodeThatStartedAgainHaveNoRates) {
  const client::ClusterStatus before = MakeStatus();
  client::ClusterStatus now = MakeStatus();
  now.nodes[1].bytes_sent = 5;

  EXPECT_THAT(View(now, nullptr), HasSubstr("tokens 0.0/s"));
  EXPECT_THAT(View(now, &before), HasSubstr(" 0 B/s"));
}

}  // namespace
}  // namespace lamina::cli
