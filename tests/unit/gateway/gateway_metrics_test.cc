// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(GatewayMetricsTest, CountsAnswersByRouteAndStatus) {
  GatewayMetrics metrics;
  metrics.CountAnswer("/version", 200, "");
  metrics.CountAnswer("/version", 200, "");
  metrics.CountAnswer("other", 404, "not_found");
  metrics.CountAnswer("/v1/completions", 500, "");
  metrics.CountGone("/v1/completions");
  const std::string page = metrics.Text();
  EXPECT_THAT(page, HasSubstr("lamina_gateway_requests_total{path=\"/version\",code=\"200\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_requests_total{path=\"other\",code=\"404\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("{path=\"/v1/completions\",code=\"499\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_refused_total{reason=\"not_found\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_refused_total{reason=\"status_500\"} 1\n"));
  EXPECT_THAT(page, Not(HasSubstr("status_499")));
}

// A rate does not see a count that begins at 1.
TEST(GatewayMetricsTest, CountsByReasonBeginAtZero) {
  const std::string page = GatewayMetrics().Text();
  for (const char* reason : {"rate_limit_exceeded", "service_unavailable", "status_500"}) {
    EXPECT_THAT(page, HasSubstr(std::string("lamina_gateway_refused_total{reason=\"") + reason +
                                "\"} 0\n"));
  }
  for (const char* reason : {"client_gone", "error", "service_unavailable"}) {
    EXPECT_THAT(page, HasSubstr(std::string("lamina_gateway_broken_streams_total{reason=\"") +
                                reason + "\"} 0\n"));
  }
}

TEST(GatewayMetricsTest, CountsBytesAndWhatIsOpen) {
  GatewayMetrics metrics;
  metrics.CountReceived(10);
  metrics.CountSent(3);
  metrics.CountSent(4);
  metrics.AddConnections(2);
  metrics.AddStreams(2);
  metrics.AddStreams(-1);
  metrics.CountBrokenStream("client_gone");
  metrics.CountBrokenStream("");
  const std::string page = metrics.Text();
  EXPECT_THAT(page, HasSubstr("lamina_gateway_received_bytes_total 10\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_sent_bytes_total 7\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_connections 2\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_streams 1\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_broken_streams_total{reason=\"client_gone\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("lamina_gateway_broken_streams_total{reason=\"error\"} 1\n"));
}

TEST(TokenTimesTest, TheFirstEventHasALatencyAndEachTokenAfterItAGap) {
  GatewayMetrics metrics;
  TokenTimes times;
  const auto began = TokenTimes::TimePoint() + std::chrono::hours(1);
  times.Observe(metrics, began, began + std::chrono::seconds(1), 0);  // Text without a token.
  EXPECT_EQ(metrics.time_to_first_token.Take().count, 0u);
  times.Observe(metrics, began, began + std::chrono::seconds(2), 3);
  times.Observe(metrics, began, began + std::chrono::seconds(6), 2);
  times.Observe(metrics, began, began + std::chrono::seconds(7), 1);
  const Histogram::Snapshot first = metrics.time_to_first_token.Take();
  EXPECT_EQ(first.count, 1u);
  EXPECT_DOUBLE_EQ(first.sum, 2);
  const Histogram::Snapshot gaps = metrics.inter_token_latency.Take();
  EXPECT_EQ(gaps.count, 3u);
  EXPECT_DOUBLE_EQ(gaps.sum, 5);
}

}  // namespace
}  // namespace lamina::gateway
