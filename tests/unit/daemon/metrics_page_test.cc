// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsPageTest, MetricsOfOneNameStandTogether) {
  MetricsPage page;
  page.Gauge("lamina_a", "Help.", {{"node", "x"}}, 1.5);
  page.Counter("lamina_b_total", "Other.", {}, 7);
  page.Gauge("lamina_a", "Help.", {{"node", "y\"\n"}}, 2);

  EXPECT_EQ(page.Text(),
            "# HELP lamina_a Help.\n# TYPE lamina_a gauge\n"
            "lamina_a{node=\"x\"} 1.5\nlamina_a{node=\"y\\\"\\n\"} 2\n"
            "# HELP lamina_b_total Other.\n# TYPE lamina_b_total counter\nlamina_b_total 7\n");
}

TEST(MetricsPageTest, BucketsOfAHistogramAreCumulative) {
  Histogram histogram({1, 2});
  histogram.Observe(0.5);
  histogram.Observe(1.5);
  histogram.Observe(9);
  MetricsPage page;
  page.Histogram("lamina_t_seconds", "Times.", {}, histogram.Take());

  const std::string text = page.Text();

  EXPECT_THAT(text, HasSubstr("lamina_t_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("lamina_t_seconds_sum 11\n"));
  EXPECT_THAT(text, HasSubstr("lamina_t_seconds_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lamina_t_seconds_bucket{le=\"2\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("lamina_t_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(MetricsPageTest, ShowsTheCountersOfANode) {
  MetricsPage page;
  AddNodeCounters(page, "lamina_", {{"node", "m0"}},
                  {.busy_seconds = 2.5,
                   .bytes_sent = 3,
                   .refused_messages = 1,
                   .units = 8,
                   .replayed_units = 5,
                   .device_units = 6,
                   .memory = {{"weights", 1024}},
                   .parts = {{"attend", 0.5}},
                   .refusals = {{"stale", 1}, {"rows", 0}},
                   .links = {{.peer = "c0", .bytes = 9, .puts = 2, .failures = 1}}});

  EXPECT_THAT(page.Text(), HasSubstr("lamina_busy_seconds_total{node=\"m0\"} 2.5\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_sent_bytes_total{node=\"m0\"} 3\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_units_total{node=\"m0\"} 8\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_replayed_units_total{node=\"m0\"} 5\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_device_units_total{node=\"m0\"} 6\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_memory_bytes{node=\"m0\",part=\"weights\"} 1024\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_refused_messages_total{node=\"m0\",reason=\"stale\"} 1\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_refused_messages_total{node=\"m0\",reason=\"rows\"} 0\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_part_seconds_total{node=\"m0\",part=\"attend\"} 0.5\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_link_sent_bytes_total{node=\"m0\",peer=\"c0\"} 9\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_link_put_failures_total{node=\"m0\",peer=\"c0\"} 1\n"));
}

TEST(MetricsPageTest, ASpillTierHasItsFailures) {
  MetricsPage page;
  AddNodeCounters(page, "lamina_", {{"node", "m0"}},
                  {.spill = {.capacity_bytes = 4096,
                             .used_bytes = 1024,
                             .bytes_out = 300,
                             .bytes_in = 200,
                             .failures = 3,
                             .reads = {.reading_seconds = 1.5, .ahead_bytes = 100}}});
  MetricsPage without;
  AddNodeCounters(without, "lamina_", {{"node", "m1"}}, {});

  EXPECT_THAT(page.Text(), HasSubstr("lamina_spill_failures_total{node=\"m0\"} 3\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_spill_capacity_bytes{node=\"m0\"} 4096\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_spill_used_bytes{node=\"m0\"} 1024\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_spill_bytes_total{node=\"m0\",direction=\"out\"} 300\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_spill_bytes_total{node=\"m0\",direction=\"in\"} 200\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_spill_read_seconds_total{node=\"m0\",part=\"reading\"} 1.5\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_spill_ahead_bytes_total{node=\"m0\"} 100\n"));
  EXPECT_THAT(without.Text(), Not(HasSubstr("spill")));
}

TEST(MetricsPageTest, ABusHasItsBytesByKind) {
  MetricsPage page;
  AddNodeCounters(page, "lamina_", {{"node", "c0"}},
                  {.buses = {{"to", 1000, 0.5, {{"kv", 300}, {"weights", 200}}}}});

  EXPECT_THAT(
      page.Text(),
      HasSubstr("lamina_bus_bandwidth_bytes_per_second{node=\"c0\",direction=\"to\"} 1000\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_bus_busy_seconds_total{node=\"c0\",direction=\"to\"} 0.5\n"));
  EXPECT_THAT(page.Text(),
              HasSubstr("lamina_bus_bytes_total{node=\"c0\",direction=\"to\",kind=\"kv\"} 300\n"));
  EXPECT_THAT(
      page.Text(),
      HasSubstr("lamina_bus_bytes_total{node=\"c0\",direction=\"to\",kind=\"weights\"} 200\n"));
}

TEST(MetricsPageTest, TheShareOfTheBandwidthIsThatOfAttentionWhileItRuns) {
  MetricsPage page;
  AddBandwidth(page, "lamina_", {{"node", "m0"}}, 1e9,
               {.kv_bytes_read = 250'000'000, .parts = {{"attend", 0.5}, {"wait_query", 9}}});
  AddBandwidth(page, "lamina_", {{"node", "m1"}}, 1e9, {});

  EXPECT_THAT(page.Text(), HasSubstr("lamina_read_bandwidth_share{node=\"m0\"} 0.5\n"));
  EXPECT_THAT(page.Text(), HasSubstr("lamina_read_bandwidth_share{node=\"m1\"} 0\n"));
}

}  // namespace
}  // namespace lamina::daemon
