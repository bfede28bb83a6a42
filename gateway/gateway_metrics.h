// SPDX-License-Identifier: Apache-2.0
//
// GatewayMetrics: what the gateway counts of its own traffic, for scraping. Times are as close to
// the client as the gateway can see: from the whole request to the event that is handed to the
// socket, the coordinator's queue and a slow reader's pauses included.
//
// Threading: the gateway's.
// Limits:    labels are paths of routes, HTTP statuses and error codes of this source: no word of a
//            client's becomes one.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/metrics/histogram.h"

namespace lamina::gateway {

class GatewayMetrics {
 public:
  GatewayMetrics();

  // A request was answered. `route`: its path as the router knows it, or "other". A stream counts
  // when it begins, as 200. `error_code`: of an answer of 400 or more.
  void CountAnswer(absl::string_view route, int status, absl::string_view error_code);
  // Its client went before any answer; counts with status 499.
  void CountGone(absl::string_view route);
  // A stream ended without its last event: an error, or "client_gone".
  void CountBrokenStream(absl::string_view reason);
  void CountReceived(size_t bytes) { received_bytes_ += bytes; }
  void CountSent(size_t bytes) { sent_bytes_ += bytes; }
  void AddConnections(int change) { connections_ += change; }
  void AddStreams(int change) { streams_ += change; }

  // The page in Prometheus's text format.
  std::string Text() const;

  // Seconds. Of streams, choice by choice; an event with several tokens counts for each of them.
  Histogram time_to_first_token;
  Histogram inter_token_latency;
  // Seconds, of completions and chats that ended well, streamed or not: from the whole request on.
  Histogram completion_time;

 private:
  std::map<std::pair<std::string, int>, uint64_t> answers_;  // By route and status.
  std::map<std::string, uint64_t> refused_;                  // By error code.
  std::map<std::string, uint64_t> broken_streams_;           // By reason.
  uint64_t received_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  int64_t connections_ = 0;
  int64_t streams_ = 0;
};

// Tells the times of one choice's tokens to the metrics.
class TokenTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `tokens` were handed on at `now`; the request was whole at `began`.
  void Observe(GatewayMetrics& metrics, TimePoint began, TimePoint now, size_t tokens);

 private:
  TimePoint last_;
  bool begun_ = false;
};

}  // namespace lamina::gateway
