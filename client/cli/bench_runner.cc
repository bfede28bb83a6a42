// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace lamina::cli {
namespace {
constexpr Nanos kProgressPeriod = Millis(250);
}

struct BenchRunner::Request {
  uint32_t input_tokens = 0;
  RequestTimes times;
};

BenchRunner::BenchRunner(const BenchRunOptions& options, client::Client& client, const Clock& clock)
    : options_(options), client_(client), clock_(clock), report_(options.slo) {}

void BenchRunner::Start(size_t index, const client::Cancellation& cancellation) {
  {
    const absl::MutexLock lock(&mu_);
    ++in_flight_;
  }
  Send(index, cancellation);
}

void BenchRunner::Send(size_t index, const client::Cancellation& cancellation) {
  const Arrival& arrival = options_.arrivals[index];
  // An arrival of a closed loop is when there is room for it, and a further turn's now.
  const Nanos arrived = arrival.at == 0 ? clock_.Now() : start_ + arrival.at;
  const auto request = std::make_shared<Request>(
      Request{.input_tokens = arrival.input_tokens, .times = RequestTimes(arrived)});
  client::GenerateOptions options;
  if (arrival.text.empty()) {
    options.prompt = PromptOf(options_.prompt_seed, index, arrival, options_.vocabulary);
  } else {
    options.prompt = arrival.text;
    options.cache_salt = absl::StrCat("bench ", options_.prompt_seed);
  }
  options.max_tokens = arrival.output_tokens;
  options.ignore_eos = true;
  options.temperature = options_.temperature;
  options.policy = options_.policy;
  options.kv = options_.kv;
  options.top_k = options_.top_k;
  options.top_p = options_.top_p;
  options.seed = options_.seed + index;
  client_.StartGenerate(
      options,
      [this, request](const client::Chunk& chunk) {
        const Nanos now = clock_.Now();
        request->times.AddTokens(chunk.tokens.size(), now);
        const absl::MutexLock lock(&mu_);
        tokens_streamed_ += chunk.tokens.size();
      },
      [this, index, request, cancellation](const absl::Status& status) {
        Finish(index, *request, status, cancellation);
      },
      cancellation);
}

void BenchRunner::Finish(size_t index, const Request& request, const absl::Status& status,
                         const client::Cancellation& cancellation) {
  const bool interrupted = cancellation.cancelled();
  const bool goes_on = Follows(index + 1) && !interrupted;
  {
    const absl::MutexLock lock(&mu_);
    if (status.ok()) {
      report_.AddFinished(request.input_tokens, request.times);
    } else if (!interrupted || !absl::IsCancelled(status)) {
      report_.AddFailed(status);
    }
    if (!goes_on) {
      --in_flight_;  // At 0 the runner may be gone.
    }
  }
  if (goes_on) {
    Send(index + 1, cancellation);
  }
}

BenchProgress BenchRunner::Progress() {
  const absl::MutexLock lock(&mu_);
  return {.finished = report_.finished(),
          .failed = report_.failed(),
          .in_flight = in_flight_,
          .output_tokens = tokens_streamed_,
          .seconds = ToSeconds(clock_.Now() - start_)};
}

void BenchRunner::Run(const std::function<void(const BenchProgress&)>& on_progress,
                      const client::Cancellation& cancellation) {
  start_ = clock_.Now();
  size_t next = 0;
  while (!cancellation.cancelled()) {
    on_progress(Progress());
    const Nanos now = clock_.Now();
    const bool more = next < options_.arrivals.size();
    const Nanos due = more ? start_ + options_.arrivals[next].at : now;
    Nanos wait = kProgressPeriod;
    if (more && due > now) {
      wait = std::min(wait, due - now);
      absl::SleepFor(absl::Nanoseconds(wait));
      continue;
    }
    bool ready = false;
    {
      const absl::MutexLock lock(&mu_);
      ready = mu_.AwaitWithTimeout(
          absl::Condition(this, more ? &BenchRunner::HasRoom : &BenchRunner::Idle),
          absl::Nanoseconds(wait));
    }
    if (ready && !more) {
      break;
    }
    if (ready) {
      Start(next++, cancellation);
      while (Follows(next)) {
        ++next;
      }
    }
  }
  const absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &BenchRunner::Idle));
  seconds_ = ToSeconds(clock_.Now() - start_);
}

}  // namespace lamina::cli
