// SPDX-License-Identifier: Apache-2.0
//
// BenchRunner: sends a load to a cluster and times the answers.
//
// Threading: Run() in one thread; answers arrive in threads of the client library.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bench_load.h"
#include "client/cli/bench_report.h"
#include "client/client.h"
#include "common/clock.h"

namespace lamina::cli {

struct BenchRunOptions {
  std::vector<Arrival> arrivals;
  // Closed loop: the concurrency. Open loop: a bound, reached = wait. A conversation counts as one.
  uint32_t in_flight_max = 1;
  uint32_t vocabulary = 1;
  uint64_t prompt_seed = 0;  // Prompts of text are shared with those of the same seed only.
  // How tokens are drawn; none greedily. A request's seed is `seed` and its index, so that the same
  // load gets the same answers.
  uint64_t seed = 0;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::string policy;  // Every request asks for it; empty: the cluster's own.
  std::string kv;      // As `policy`, the form of K and V.
  planner::Slo slo;    // For the report's goodput.
};

struct BenchProgress {
  uint64_t finished = 0;
  uint64_t failed = 0;
  uint32_t in_flight = 0;
  uint64_t output_tokens = 0;
  double seconds = 0;
};

class BenchRunner {
 public:
  // All outlive the runner.
  BenchRunner(const BenchRunOptions& options, client::Client& client, const Clock& clock);

  // Returns when every request has ended, or after `cancellation` those that had begun. Times of
  // requests count from their arrival, so that a late start shows.
  void Run(const std::function<void(const BenchProgress&)>& on_progress,
           const client::Cancellation& cancellation);

  double seconds() const { return seconds_; }
  const BenchReport& report() const { return report_; }

 private:
  struct Request;
  void Start(size_t index, const client::Cancellation& cancellation);
  void Send(size_t index, const client::Cancellation& cancellation);
  // Cancelled by the user of the benchmark, a request has not failed. Goes on with the next turn of
  // its conversation.
  void Finish(size_t index, const Request& request, const absl::Status& status,
              const client::Cancellation& cancellation);
  // Whether the arrival is a further turn of the conversation of the one before it.
  bool Follows(size_t index) const {
    return index < options_.arrivals.size() && options_.arrivals[index].follows;
  }
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return in_flight_ < options_.in_flight_max;
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return in_flight_ == 0; }
  BenchProgress Progress() ABSL_LOCKS_EXCLUDED(mu_);

  const BenchRunOptions& options_;
  client::Client& client_;
  const Clock& clock_;
  Nanos start_ = 0;
  double seconds_ = 0;

  absl::Mutex mu_;
  BenchReport report_;  // Guarded by mu_ while Run() runs.
  uint32_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t tokens_streamed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lamina::cli
