// SPDX-License-Identifier: Apache-2.0
#include "planner/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "cost/token_price.h"

namespace lamina::planner {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr size_t kRequestsOfLargeBlocks = 50'000;
constexpr uint32_t kLargeBlocks = 16;  // At most so many small ones each.

struct Record {
  Nanos first = 0;
  Nanos last = 0;
  uint32_t tokens = 0;
  uint32_t cell = 0;
  enum class State : uint8_t { kOpen, kAnswered, kRefused, kFailed } state = State::kOpen;
};

// Seconds to the first token.
float TtftOf(const Record& record, const TraceRequest& what) {
  return static_cast<float>(ToSeconds(record.first - what.at));
}

// Seconds for each token behind the first; 0 where there is none.
float TpotOf(const Record& record) {
  return record.tokens > 1
             ? static_cast<float>(ToSeconds(record.last - record.first) / (record.tokens - 1))
             : 0;
}

// Counts requests that miss an SLO while they run.
class SloWatch {
 public:
  SloWatch(const std::optional<Slo>& slo, uint64_t requests) : slo_(slo), requests_(requests) {}

  bool IsLate(const Record& record, const TraceRequest& what) const {
    return slo_.has_value() && TtftOf(record, what) > slo_->ttft_seconds;
  }
  bool IsSlow(const Record& record) const {
    return slo_.has_value() && TpotOf(record) > slo_->tpot_seconds;
  }
  void OnMiss() { ++missed_; }
  // As ShareWithin() will say, whatever the others do.
  bool IsOutOfReach() const {
    return slo_.has_value() &&
           static_cast<double>(requests_ - missed_) / static_cast<double>(requests_) < slo_->at;
  }

 private:
  const std::optional<Slo> slo_;
  const uint64_t requests_;  // That are counted.
  uint64_t missed_ = 0;
};

// The first request that is counted. Those that come with the last one have no warm-up: each of
// them finds the fleet as empty.
uint64_t FirstCounted(const std::vector<TraceRequest>& requests, double warm_up) {
  size_t first = std::min(requests.size() - 1,
                          static_cast<size_t>(warm_up * static_cast<double>(requests.size())));
  while (first > 0 && requests[first - 1].at == requests.back().at) {
    --first;
  }
  return first;
}

class Fleet final : public SimListener {
 public:
  Fleet(const SimFleet& fleet, const std::vector<TraceRequest>& requests,
        const SimOptions& options);

  absl::Status Run();
  SimResult Result() const;

  void OnToken(uint64_t request, uint32_t cached, Nanos now) override;
  void OnEnd(uint64_t request, bool answered) override;

 private:
  void Arrive(uint64_t request);
  void Submit(uint64_t request);
  uint32_t Route(const TraceRequest& what) const;
  Nanos window_begin() const { return requests_[first_counted_].at; }
  // Requests that come at once leave no window between arrivals: it ends with the last answer.
  bool come_at_once() const { return window_begin() == requests_.back().at; }
  void CountMiss(uint64_t request) {
    if (request >= first_counted_) {
      watch_.OnMiss();
    }
  }
  void CountRequests(SimResult& result) const;
  void CountWork(SimResult& result) const;

  const SimFleet& fleet_;
  const std::vector<TraceRequest>& requests_;
  const SimOptions& options_;
  const uint64_t first_counted_;
  SimEvents events_;
  std::vector<std::unique_ptr<SimCell>> cells_;
  std::vector<uint64_t> outstanding_;                    // Tokens by cell.
  std::vector<absl::flat_hash_set<uint32_t>> prefixes_;  // Had by cell; never walked through.
  std::vector<Nanos> reading_until_;                     // By cell: its coordinator reads requests.
  std::vector<Record> records_;
  SloWatch watch_;
  uint64_t open_ = 0;
  uint64_t output_in_window_ = 0;
  uint64_t input_in_window_ = 0;
  uint64_t cached_in_window_ = 0;
  Nanos now_ = 0;
};

Fleet::Fleet(const SimFleet& fleet, const std::vector<TraceRequest>& requests,
             const SimOptions& options)
    : fleet_(fleet),
      requests_(requests),
      options_(options),
      first_counted_(FirstCounted(requests, options.warm_up)),
      outstanding_(fleet.cells),
      prefixes_(fleet.cells),
      reading_until_(fleet.cells),
      records_(requests.size()),
      watch_(options.give_up_beyond, requests.size() - first_counted_) {
  Prng seeds(options.seed);
  for (uint32_t i = 0; i < fleet.cells; ++i) {
    cells_.push_back(
        std::make_unique<SimCell>(fleet.cell, i, seeds(), requests.back().at, events_, *this));
  }
}

uint32_t Fleet::Route(const TraceRequest& what) const {
  if (what.prefix == 0 || !fleet_.cell.scheduler.prefix_cache) {
    return static_cast<uint32_t>(std::min_element(outstanding_.begin(), outstanding_.end()) -
                                 outstanding_.begin());
  }
  const auto work = [&](uint32_t cell) {
    return outstanding_[cell] + (prefixes_[cell].contains(what.prefix) ? 0 : what.prefix_tokens);
  };
  uint32_t best = 0;
  for (uint32_t cell = 1; cell < fleet_.cells; ++cell) {
    best = work(cell) < work(best) ? cell : best;
  }
  return best;
}

// A cell's coordinator reads requests one by one; an idle one waits a moment for the rest of a
// burst.
void Fleet::Arrive(uint64_t request) {
  const TraceRequest& what = requests_[request];
  Record& record = records_[request];
  record.cell = Route(what);
  outstanding_[record.cell] += what.input + what.output;
  if (what.prefix != 0) {
    prefixes_[record.cell].insert(what.prefix);
  }
  ++open_;
  const double seconds = fleet_.cell.coordinator.request;
  const Nanos took = seconds > 0 ? NanosOf(seconds) : 0;
  Nanos& reading_until = reading_until_[record.cell];
  reading_until = std::max(reading_until, now_) + took;
  events_.Push({.time = reading_until,
                .cell = record.cell,
                .subject = static_cast<uint32_t>(request),
                .kind = SimEventKind::kRequest});
}

void Fleet::Submit(uint64_t request) {
  const TraceRequest& what = requests_[request];
  Record& record = records_[request];
  if (!cells_[record.cell]->Submit(request, what, now_).ok()) {
    record.state = Record::State::kRefused;
    CountMiss(request);
    outstanding_[record.cell] -= what.input + what.output;
    --open_;
  }
}

void Fleet::OnToken(uint64_t request, uint32_t cached, Nanos now) {
  Record& record = records_[request];
  const bool in_window = now > window_begin() && (come_at_once() || now <= requests_.back().at);
  if (record.tokens++ == 0) {
    record.first = now;
    if (watch_.IsLate(record, requests_[request])) {
      CountMiss(request);
    }
    outstanding_[record.cell] -= requests_[request].input;
    input_in_window_ += in_window ? requests_[request].input - cached : 0;
    cached_in_window_ += in_window ? cached : 0;
  }
  record.last = now;
  --outstanding_[record.cell];
  output_in_window_ += in_window ? 1 : 0;
}

void Fleet::OnEnd(uint64_t request, bool answered) {
  Record& record = records_[request];
  const TraceRequest& what = requests_[request];
  record.state = answered ? Record::State::kAnswered : Record::State::kFailed;
  const bool was_late = record.tokens > 0 && watch_.IsLate(record, what);
  if (!was_late && (!answered || watch_.IsSlow(record))) {
    CountMiss(request);
  }
  outstanding_[record.cell] -= what.output - record.tokens + (record.tokens == 0 ? what.input : 0);
  --open_;
}

absl::Status Fleet::Run() {
  uint64_t next = 0;
  uint64_t events = 0;
  while ((next < requests_.size() || open_ > 0) && !watch_.IsOutOfReach()) {
    const bool arrival =
        next < requests_.size() && (events_.empty() || requests_[next].at <= events_.Next().time);
    if (arrival) {
      now_ = requests_[next].at;
      Arrive(next++);
      continue;
    }
    LAMINA_CHECK(!events_.empty());  // A request is open, and nothing happens any more.
    if (++events > options_.events_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the simulation had ", options_.events_max, " events after ", ToSeconds(now_), " s, ",
          next, " of ", requests_.size(), " requests had come; simulate fewer requests"));
    }
    const SimEvent event = events_.Pop();
    now_ = event.time;
    if (event.kind == SimEventKind::kRequest) {
      Submit(event.subject);
    } else {
      cells_[event.cell]->OnEvent(event);
    }
  }
  return absl::OkStatus();
}

void Fleet::CountRequests(SimResult& result) const {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  for (uint64_t i = first_counted_; i < requests_.size(); ++i) {
    const Record& record = records_[i];
    ++result.requests;
    result.tokens_asked += requests_[i].output / result.seconds;
    const bool answered = record.state == Record::State::kAnswered;
    result.answered += answered ? 1 : 0;
    result.refused += record.state == Record::State::kRefused ? 1 : 0;
    result.failed += record.state == Record::State::kFailed ? 1 : 0;
    float ttft = kNever;
    float tpot = 0;
    if (answered) {
      result.answer_tokens += record.tokens;
      result.answer_seconds =
          std::max(result.answer_seconds, ToSeconds(record.last - window_begin()));
      ttft = TtftOf(record, requests_[i]);
      result.ttft.push_back(ttft);
    }
    if (answered && record.tokens > 1) {
      tpot = TpotOf(record);
      result.tpot.push_back(tpot);
    }
    result.ttft_each.push_back(ttft);
    result.tpot_each.push_back(tpot);
  }
  std::sort(result.ttft.begin(), result.ttft.end());
  std::sort(result.tpot.begin(), result.tpot.end());
}

void Fleet::CountWork(SimResult& result) const {
  const uint32_t shards = fleet_.cell.cluster.shards;
  const bool local = fleet_.cell.cluster.policy == cost::KvPolicy::kLocal;
  const auto kept = [](const SimCellStats& stats, size_t node) {
    return node < stats.kept.size() ? stats.kept[node] : 0;
  };
  std::vector<cost::MachineWork> machines = {{.price_per_hour = fleet_.other_price}};
  double stages = 0;
  double memory = 0;
  for (const auto& cell : cells_) {
    const SimCellStats stats = cell->Stats();
    for (size_t i = 0; i < stats.stages.size(); ++i) {
      const SimWork& work = stats.stages[i];
      machines.push_back({.price_per_hour = shards * fleet_.cell.compute_price,
                          .input = work.input,
                          .output = work.busy - work.input - work.cached,
                          .cached = work.cached + (local ? kept(stats, i) : 0)});
      result.compute_busy += work.busy;
      ++stages;
    }
    for (size_t i = 0; i < stats.memory.size(); ++i) {
      const SimWork& work = stats.memory[i];
      machines.push_back({.price_per_hour = fleet_.cell.memory_price,
                          .input = work.input,
                          .output = work.busy - work.input - work.cached,
                          .cached = work.cached + kept(stats, i)});
      result.memory_busy += work.busy;
      ++memory;
    }
    result.coordinator_busy += stats.coordinator_busy;
    result.preemptions += stats.preemptions;
    result.nodes_lost += stats.nodes_lost;
    result.epochs += stats.epochs;
  }
  const double whole = std::max(1e-9, ToSeconds(now_));
  result.compute_busy /= stages * whole;
  result.memory_busy /= std::max(1.0, memory) * whole;
  result.coordinator_busy /= static_cast<double>(cells_.size()) * whole;
  result.bill = cost::ShareBill(machines, result.seconds / kSecondsPerHour,
                                {.input = static_cast<double>(input_in_window_),
                                 .output = static_cast<double>(output_in_window_),
                                 .cached = static_cast<double>(cached_in_window_)});
}

SimResult Fleet::Result() const {
  SimResult result;
  if (watch_.IsOutOfReach()) {
    result.gave_up = true;
    return result;
  }
  const Nanos window_end = come_at_once() ? now_ : requests_.back().at;
  result.seconds = std::max(1e-9, ToSeconds(window_end - window_begin()));
  result.tokens_per_second = static_cast<double>(output_in_window_) / result.seconds;
  CountRequests(result);
  const uint64_t gaps = come_at_once() ? result.requests : result.requests - 1;
  result.requests_per_second = static_cast<double>(gaps) / result.seconds;
  CountWork(result);
  result.input_tokens = input_in_window_;
  result.cached_tokens = cached_in_window_;
  result.events = events_.count();
  result.ended = now_;
  return result;
}

}  // namespace

uint32_t KeptBlockTokens(const std::vector<TraceRequest>& requests, const SimFailures& failures,
                         uint32_t block_tokens) {
  if (requests.size() < kRequestsOfLargeBlocks || failures.per_node_hour > 0) {
    return block_tokens;
  }
  uint32_t ends = 0;  // Whatever divides it, divides the ends of all that is found.
  for (const TraceRequest& request : requests) {
    if (request.prefix != 0 && request.prefix_tokens >= request.input) {
      return block_tokens;  // The last token is always computed: it finds a block less.
    }
    if (request.prefix != 0) {
      ends = std::gcd(ends, request.prefix_tokens / block_tokens);
    }
  }
  uint32_t blocks = kLargeBlocks;
  while (ends % blocks != 0) {
    --blocks;
  }
  return blocks * block_tokens;
}

absl::StatusOr<SimResult> Simulate(const SimFleet& fleet, const std::vector<TraceRequest>& requests,
                                   const SimOptions& options) {
  if (requests.empty()) {
    return absl::InvalidArgumentError("there is no request to simulate");
  }
  LAMINA_CHECK(fleet.cells > 0);
  SimFleet sized = fleet;
  uint32_t& block_tokens = sized.cell.scheduler.cached_block_tokens;
  block_tokens = KeptBlockTokens(requests, fleet.cell.failures, block_tokens);
  if (const uint32_t span_tokens = fleet.cell.scheduler.span_tokens; span_tokens > 0) {
    block_tokens = std::gcd(block_tokens, span_tokens);  // No block is in two spans.
  }
  Fleet run(sized, requests, options);
  if (const absl::Status status = run.Run(); !status.ok()) {
    return status;
  }
  return run.Result();
}

double PercentileOf(const std::vector<float>& sorted, double share) {
  if (sorted.empty()) {
    return 0;
  }
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

double ShareWithin(const SimResult& result, const Slo& slo) {
  uint64_t within = 0;
  for (size_t i = 0; i < result.ttft_each.size(); ++i) {
    within += std::isfinite(result.ttft_each[i]) && result.ttft_each[i] <= slo.ttft_seconds &&
              result.tpot_each[i] <= slo.tpot_seconds;
  }
  return result.ttft_each.empty()
             ? 0
             : static_cast<double>(within) / static_cast<double>(result.ttft_each.size());
}

}  // namespace lamina::planner
