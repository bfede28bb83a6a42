// SPDX-License-Identifier: Apache-2.0
#include "coordinator/request_metrics.h"

namespace lamina::coordinator {
namespace {

// 1 ms to 1,000 s, three a decade.
std::vector<double> Seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   25,    50,   100, 250,  1000};
}

std::vector<double> Tokens() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}

}  // namespace

RequestMetrics::RequestMetrics()
    : time_to_first_token(Seconds()),
      inter_token_latency(Seconds()),
      end_to_end(Seconds()),
      queue_time(Seconds()),
      prefill_time(Seconds()),
      decode_time(Seconds()),
      restore_read(Seconds()),
      restore_step(Seconds()),
      prompt_tokens_per_request(Tokens()),
      tokens_per_request(Tokens()) {}

void RequestMetrics::CountFailure(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  failures_[index < kCodes ? index : 2].fetch_add(1, std::memory_order_relaxed);
}

uint64_t RequestMetrics::failures(absl::StatusCode code) const {
  return failures_[static_cast<size_t>(code)].load(std::memory_order_relaxed);
}

}  // namespace lamina::coordinator
