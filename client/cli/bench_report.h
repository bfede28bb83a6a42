// SPDX-License-Identifier: Apache-2.0
//
// The figures of `lamina bench`: times of requests as the client saw them, and what the nodes did.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/client.h"
#include "common/clock.h"
#include "planner/request.h"

namespace lamina::cli {

// One request from its arrival on.
class RequestTimes {
 public:
  explicit RequestTimes(Nanos arrival) : arrival_(arrival) {}
  void AddTokens(size_t count, Nanos now);

  size_t tokens() const { return tokens_; }
  double ttft_ms() const;
  // Mean time per token after the first. Requires: at least two tokens.
  double tpot_ms() const;
  // Time before each token after the first; tokens that come together have 0 between them.
  const std::vector<float>& gaps_ms() const { return gaps_ms_; }

 private:
  Nanos arrival_;
  Nanos first_ = 0;
  Nanos last_ = 0;
  size_t tokens_ = 0;
  std::vector<float> gaps_ms_;
};

class BenchReport {
 public:
  explicit BenchReport(const planner::Slo& slo = {}) : slo_(slo) {}

  void AddFinished(uint32_t input_tokens, const RequestTimes& times);
  void AddFailed(const absl::Status& status);

  uint64_t finished() const { return finished_; }
  uint64_t failed() const { return failed_; }
  uint64_t output_tokens() const { return output_tokens_; }
  // The first failure's.
  const absl::Status& first_error() const { return first_error_; }

  // The object that interfaces document; `nodes` from the difference of two statuses.
  // `several`: as of LargestBubble().
  Json ToJson(double seconds, const client::ClusterStatus& before,
              const client::ClusterStatus& after, bool several = true) const;

 private:
  Json SloToJson(double seconds) const;

  uint64_t finished_ = 0;
  uint64_t failed_ = 0;
  uint64_t input_tokens_ = 0;
  uint64_t output_tokens_ = 0;
  std::vector<float> ttft_ms_;
  std::vector<float> tpot_ms_;
  std::vector<float> itl_ms_;
  planner::Slo slo_;
  uint64_t within_slo_ = 0;  // Requests that kept both latencies.
  std::map<std::string, uint64_t> errors_;
  absl::Status first_error_;
};

// {p50, p90, p99} by the nearest rank. Empty: all 0.
Json Percentiles(std::vector<float> values);

// What a person reads.
std::string FormatReport(const Json& report);

}  // namespace lamina::cli
