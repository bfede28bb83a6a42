// SPDX-License-Identifier: Apache-2.0
//
// RequestMetrics: times and counts of requests, for scraping.
//
// Threading: the engine's thread writes, without a lock; any thread reads.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics/histogram.h"

namespace lamina::coordinator {

class RequestMetrics {
 public:
  static constexpr size_t kCodes = 17;  // So many has absl::StatusCode, OK included.

  RequestMetrics();

  // All times in seconds. A choice counts as a request of its own, as clients see its times.
  Histogram time_to_first_token;
  Histogram inter_token_latency;
  Histogram end_to_end;
  Histogram queue_time;    // From arrival to the first step that works on it.
  Histogram prefill_time;  // From there to the first token.
  Histogram decode_time;   // From there to the last.
  // What comes back from a spill tier: from the plan that has it read to the last node's report,
  // and from there to the plan of a step that works on the sequence.
  Histogram restore_read;
  Histogram restore_step;
  Histogram prompt_tokens_per_request;
  Histogram tokens_per_request;

  std::atomic<uint64_t> prompt_tokens{0};
  std::atomic<uint64_t> generated_tokens{0};
  std::atomic<uint64_t> scored{0};  // Texts, which are none of the following.
  // The following count choices.
  std::atomic<uint64_t> stopped{0};
  std::atomic<uint64_t> reached_length{0};
  std::atomic<uint64_t> aborted{0};

  // Requests that were not taken, or that ended with an error, by its code.
  void CountFailure(absl::StatusCode code);
  uint64_t failures(absl::StatusCode code) const;

 private:
  std::array<std::atomic<uint64_t>, kCodes> failures_{};
};

}  // namespace lamina::coordinator
