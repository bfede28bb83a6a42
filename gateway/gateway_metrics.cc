// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway_metrics.h"

#include "absl/strings/str_cat.h"
#include "daemon/metrics_page.h"

namespace lamina::gateway {
namespace {

constexpr int kFirstError = 400;
constexpr int kClientGone = 499;

// Error codes of answers, and statuses of those without: each has its count from the start, since a
// rate does not see one that begins at 1.
constexpr absl::string_view kRefusals[] = {"array_above_max_length",
                                           "bad_http",
                                           "body_too_large",
                                           "context_length_exceeded",
                                           "decimal_above_max_value",
                                           "decimal_below_min_value",
                                           "empty_array",
                                           "empty_string",
                                           "headers_too_large",
                                           "integer_above_max_value",
                                           "integer_below_min_value",
                                           "invalid_api_key",
                                           "invalid_json",
                                           "invalid_type",
                                           "invalid_value",
                                           "method_not_supported",
                                           "missing_required_parameter",
                                           "model_not_found",
                                           "not_found",
                                           "object_above_max_properties",
                                           "rate_limit_exceeded",
                                           "request_cancelled",
                                           "request_timeout",
                                           "service_unavailable",
                                           "status_400",
                                           "status_404",
                                           "status_409",
                                           "status_500",
                                           "string_above_max_length",
                                           "timeout",
                                           "unknown_parameter",
                                           "unsupported_endpoint",
                                           "unsupported_media_type",
                                           "unsupported_parameter"};
constexpr char kNoReason[] = "error";  // A stream broke for an error without a code.
constexpr absl::string_view kBreaks[] = {
    "client_gone",       "context_length_exceeded", kNoReason, "rate_limit_exceeded",
    "request_cancelled", "service_unavailable",     "timeout"};

// The coordinator's buckets, so that both can be laid over each other: 1 ms to 1,000 s.
std::vector<double> Seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   25,    50,   100, 250,  1000};
}

}  // namespace

GatewayMetrics::GatewayMetrics()
    : time_to_first_token(Seconds()), inter_token_latency(Seconds()), completion_time(Seconds()) {
  for (const absl::string_view reason : kRefusals) {
    refused_[std::string(reason)] = 0;
  }
  for (const absl::string_view reason : kBreaks) {
    broken_streams_[std::string(reason)] = 0;
  }
}

void GatewayMetrics::CountAnswer(absl::string_view route, int status,
                                 absl::string_view error_code) {
  ++answers_[{std::string(route), status}];
  if (status >= kFirstError) {
    ++refused_[error_code.empty() ? absl::StrCat("status_", status) : std::string(error_code)];
  }
}

void GatewayMetrics::CountGone(absl::string_view route) {
  ++answers_[{std::string(route), kClientGone}];
}

void GatewayMetrics::CountBrokenStream(absl::string_view reason) {
  ++broken_streams_[reason.empty() ? kNoReason : std::string(reason)];
}

std::string GatewayMetrics::Text() const {
  daemon::MetricsPage page;
  for (const auto& [key, count] : answers_) {
    page.Counter("lamina_gateway_requests_total", "Requests by path and HTTP status.",
                 {{"path", key.first}, {"code", absl::StrCat(key.second)}},
                 static_cast<double>(count));
  }
  for (const auto& [reason, count] : refused_) {
    page.Counter("lamina_gateway_refused_total", "Answers of 400 or more, by error code.",
                 {{"reason", reason}}, static_cast<double>(count));
  }
  for (const auto& [reason, count] : broken_streams_) {
    page.Counter("lamina_gateway_broken_streams_total",
                 "Streams that ended with an error, or whose client went.", {{"reason", reason}},
                 static_cast<double>(count));
  }
  page.Counter("lamina_gateway_received_bytes_total", "Bytes of HTTP from clients, before TLS.", {},
               static_cast<double>(received_bytes_));
  page.Counter("lamina_gateway_sent_bytes_total", "Bytes of HTTP to clients, before TLS.", {},
               static_cast<double>(sent_bytes_));
  page.Gauge("lamina_gateway_connections", "Connections that are open.", {},
             static_cast<double>(connections_));
  page.Gauge("lamina_gateway_streams", "Streams that are open.", {}, static_cast<double>(streams_));
  page.Histogram("lamina_gateway_time_to_first_token_seconds",
                 "Of streams: from the whole request to its first token.", {},
                 time_to_first_token.Take());
  page.Histogram("lamina_gateway_inter_token_latency_seconds",
                 "Of streams: from one token to the next.", {}, inter_token_latency.Take());
  page.Histogram("lamina_gateway_completion_seconds",
                 "Completions and chats: from the whole request to its end.", {},
                 completion_time.Take());
  return page.Text();
}

void TokenTimes::Observe(GatewayMetrics& metrics, TimePoint began, TimePoint now, size_t tokens) {
  if (tokens == 0) {
    return;
  }
  const auto seconds = [](TimePoint from, TimePoint to) {
    return std::chrono::duration<double>(to - from).count();
  };
  if (!begun_) {
    metrics.time_to_first_token.Observe(seconds(began, now));
    begun_ = true;
    // What comes with the first has no time of its own.
  } else {
    metrics.inter_token_latency.ObserveMany(seconds(last_, now) / static_cast<double>(tokens),
                                            tokens);
  }
  last_ = now;
}

}  // namespace lamina::gateway
