// SPDX-License-Identifier: Apache-2.0
#include "compute_node/policy_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/policy_turns.h"
#include "compute_node/reads_seen.h"
#include "kernels/attention.h"
#include "kernels/attention_load.h"
#include "kernels/compute_device.h"
#include "kernels/kv_device.h"
#include "kernels/read_bandwidth.h"

namespace lamina::compute_node {
namespace {

constexpr std::array<uint32_t, 6> kRows = {1, 4, 8, 16, 32, 64};
static_assert(kRows.back() <= LmHead::kRows, "a tail runs in one piece");
// A turn goes over all sizes, with the threads of each policy (policy_turns.h).
constexpr size_t kTurns = 4;
// It measures one size for so long; a slice all the same.
constexpr Nanos kSlicesMax = Millis(9);
// So long attention is measured on the threads that are left beside memory nodes' cores.
constexpr Nanos kFetchingTime = Millis(15);
// K and V of some tokens are made so often, after once that is not timed.
constexpr int kMakings = 3;
// Reads between turns: the better of so many passes.
constexpr int kReadPasses = 2;
constexpr size_t kReadBytesMin = size_t{64} << 20;

// A clock may be too coarse for what it measures.
double AtLeastANano(double seconds) { return std::max(1e-9, seconds); }

// K and V, and rows, in the memory of the device, which outlives the load.
absl::StatusOr<std::unique_ptr<kernels::AttentionLoad>> LoadOnDevice(
    const PolicyMeasurement& what, kernels::ComputeDevice& device) {
  return kernels::AttentionLoad::Create(
      {.layers = what.layers, .kv_bytes = what.kv_bytes, .share_kinds = !device.is_host()},
      [&device](const auto& options) { return device.MakeKvDevice(options); },
      [&device](size_t bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
        LAMINA_ASSIGN_OR_RETURN(kernels::Buffer buffer, device.Allocate(bytes));
        return std::shared_ptr<std::byte>(std::move(buffer.owner), buffer.data);
      });
}

// Attention on other cores, from each Begin() to the End() behind it; between them these cores
// sleep.
class ConcurrentAttention {
 public:
  explicit ConcurrentAttention(const PolicyMeasurement& what)
      : what_(what), thread_([this] { Run(); }) {
    phase_.wait(Phase::kStarting);
  }
  ~ConcurrentAttention() {
    phase_.store(Phase::kOver);
    phase_.notify_all();
    thread_.join();
  }
  ConcurrentAttention(const ConcurrentAttention&) = delete;
  ConcurrentAttention& operator=(const ConcurrentAttention&) = delete;

  // Requires: it does not attend.
  void Begin() {
    phase_.store(Phase::kAttending);
    phase_.notify_all();
  }

  // Returns the bytes a second since Begin(). Requires: it attends.
  absl::StatusOr<double> End() {
    phase_.store(Phase::kEnding);
    phase_.notify_all();
    phase_.wait(Phase::kEnding);
    return rate_;
  }

 private:
  enum class Phase : int { kStarting, kAsleep, kAttending, kEnding, kOver };

  void Run() {
    const std::vector<int>& cores = what_.shared_cores;
    PinThisThread({cores.front()});
    ThreadPool pool({.threads = cores.size(), .cores = cores});
    const auto load =
        kernels::AttentionLoad::Create({.layers = what_.layers, .kv_bytes = what_.kv_bytes},
                                       kernels::CpuKvDevices(kernels::CpuAttention(), pool));
    Phase now = Phase::kStarting;
    // It has begun, or ended what it was to do; unless all is over.
    while (phase_.compare_exchange_strong(now, Phase::kAsleep)) {
      phase_.notify_all();
      phase_.wait(Phase::kAsleep);
      if (phase_.load() == Phase::kOver) {
        return;
      }
      if (load.ok()) {
        rate_ = (*load)->Rate([this] { return phase_.load() != Phase::kAttending; });
      } else {
        rate_ = load.status();
      }
      phase_.wait(Phase::kAttending);
      now = Phase::kEnding;
    }
  }

  const PolicyMeasurement what_;
  std::atomic<Phase> phase_{Phase::kStarting};
  absl::StatusOr<double> rate_ = 0.0;
  std::thread thread_;  // Last: it uses the others.
};

// What all threads of the pool read of the host's memory between turns. A GPU reads memory of its
// own, which nobody else has: once suffices.
class ReadMeter {
 public:
  ReadMeter(kernels::ComputeDevice& device, ThreadPool& pool, size_t bytes)
      : device_(device), pool_(pool) {
    if (device.is_host()) {
      reads_.emplace(bytes);
    }
  }

  // Bytes a second; 0: the host has no pages for it. Errors: the device's.
  absl::StatusOr<double> Read() {
    if (reads_.has_value() && reads_->ok()) {
      double best = 0;
      for (int pass = 0; pass < kReadPasses; ++pass) {
        const Nanos start = RealClock().Now();
        reads_->Read(pool_);
        best = std::max(best, static_cast<double>(reads_->bytes()) /
                                  AtLeastANano(ToSeconds(RealClock().Now() - start)));
      }
      return best;
    }
    if (!once_.has_value()) {
      LAMINA_ASSIGN_OR_RETURN(once_, device_.MeasureReads());
    }
    return *once_;
  }

 private:
  kernels::ComputeDevice& device_;
  ThreadPool& pool_;
  std::optional<kernels::PlainReads> reads_;
  std::optional<double> once_;
};

// Slices and tails in turn, of batches of each size.
class SliceMeter {
 public:
  SliceMeter(SliceExecutor& executor, const SliceRange& range) : slices_(executor, range) {}

  absl::Status Prepare() { return slices_.Prepare(kRows.back()); }

  kernels::ComputeDevice& device() const { return slices_.device(); }

  // One turn, with medians of slices. With `attention` it follows each slice, as in a step of
  // policy local, and its rates in bytes a second are added.
  absl::StatusOr<std::vector<plan::SliceTimes>> Measure(kernels::AttentionLoad* attention,
                                                        std::vector<double>* rates) {
    LAMINA_RETURN_IF_ERROR(slices_.SetRows(kRows.front()));
    LAMINA_RETURN_IF_ERROR(slices_.RunNext());  // Threads that slept wake; it is not timed.
    std::vector<plan::SliceTimes> times;
    for (const uint32_t rows : kRows) {
      LAMINA_RETURN_IF_ERROR(slices_.SetRows(rows));
      std::vector<double> slices;
      LAMINA_RETURN_IF_ERROR(RunSlices(attention, slices, rates));
      LAMINA_ASSIGN_OR_RETURN(const double tail, TailSeconds());
      times.push_back(
          {.rows = rows, .slice_seconds = LowerMedian(std::move(slices)), .tail_seconds = tail});
    }
    return times;
  }

 private:
  // As many slices as there is time for, each with its seconds, on from where the last call ended.
  absl::Status RunSlices(kernels::AttentionLoad* attention, std::vector<double>& seconds,
                         std::vector<double>* rates) {
    const Nanos begin = RealClock().Now();
    Nanos now = begin;
    do {
      LAMINA_ASSIGN_OR_RETURN(const double slice,
                              slices_.device().SecondsOf([this] { return slices_.RunNext(); }));
      seconds.push_back(AtLeastANano(slice));
      if (attention != nullptr) {
        LAMINA_ASSIGN_OR_RETURN(const double rate, attention->AttendTimed());
        rates->push_back(rate);
      }
      now = RealClock().Now();
    } while (now - begin < kSlicesMax);
    return absl::OkStatus();
  }

  // 0: the step ends elsewhere.
  absl::StatusOr<double> TailSeconds() {
    if (!slices_.range().tail) {
      return 0.0;
    }
    LAMINA_ASSIGN_OR_RETURN(const double seconds,
                            slices_.device().SecondsOf([this] { return slices_.RunTail(); }));
    return AtLeastANano(seconds);
  }

  OwnSlices slices_;
};

// Seconds to make K and V of one token; 0: it cannot be done.
double MakeSeconds(const PolicyMeasurement& what, kernels::ComputeDevice& device) {
  if (what.make_kv == nullptr) {
    return 0;
  }
  std::vector<double> seconds;
  for (int making = 0; making <= kMakings; ++making) {
    uint32_t tokens = 0;
    const absl::StatusOr<double> run = device.SecondsOf([&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(tokens, what.make_kv());
      return absl::OkStatus();
    });
    if (!run.ok()) {
      return 0;
    }
    if (making > 0) {  // The first one wakes the threads.
      seconds.push_back(AtLeastANano(*run) / tokens);
    }
  }
  return LowerMedian(std::move(seconds));
}

// Measures, turn by turn. The pool's threads in use are those of the last part measured.
class TurnMeter {
 public:
  TurnMeter(const PolicyMeasurement& what, SliceExecutor& executor, ThreadPool& pool)
      : what_(what),
        pool_(pool),
        slices_(executor, what.slices),
        reads_(executor.device(), pool, what.read_bytes) {}

  // Errors: those of the executor; kResourceExhausted  no memory for K and V.
  absl::Status Prepare() {
    LAMINA_RETURN_IF_ERROR(slices_.Prepare());
    LAMINA_ASSIGN_OR_RETURN(attention_, LoadOnDevice(what_, slices_.device()));
    if (!what_.shared_cores.empty()) {
      concurrent_.emplace(what_);
    }
    pool_.UseThreads(PoolsThreads());
    make_seconds_ = MakeSeconds(what_, slices_.device());
    pool_.UseThreads(pool_.threads());
    LAMINA_ASSIGN_OR_RETURN(reads_last_, reads_.Read());
    return absl::OkStatus();
  }

  absl::StatusOr<PolicyTurn> Measure() {
    PolicyTurn turn = {.reads_before = reads_last_};
    turn.times.make_seconds = make_seconds_;
    pool_.UseThreads(pool_.threads());
    LAMINA_RETURN_IF_ERROR(MeasureLocal(turn.times));
    pool_.UseThreads(PoolsThreads());
    LAMINA_RETURN_IF_ERROR(MeasurePools(turn.times));
    pool_.UseThreads(pool_.threads());
    LAMINA_ASSIGN_OR_RETURN(turn.reads_after, reads_.Read());
    reads_last_ = turn.reads_after;
    return turn;
  }

 private:
  size_t PoolsThreads() const {
    return what_.shared_cores.empty() ? pool_.threads() : what_.pools_threads;
  }

  absl::Status MeasureLocal(plan::PolicyTimes& times) {
    std::vector<double> rates;
    LAMINA_ASSIGN_OR_RETURN(times.local, slices_.Measure(attention_.get(), &rates));
    times.attention_local = UpperMedian(std::move(rates));
    return absl::OkStatus();
  }

  absl::Status MeasurePools(plan::PolicyTimes& times) {
    const Nanos end = RealClock().Now() + kFetchingTime;
    LAMINA_ASSIGN_OR_RETURN(times.attention_pools,
                            attention_->Rate([end] { return RealClock().Now() >= end; }));
    if (!concurrent_.has_value()) {
      times.pools = times.local;
      return absl::OkStatus();
    }
    concurrent_->Begin();
    absl::StatusOr<std::vector<plan::SliceTimes>> measured = slices_.Measure(nullptr, nullptr);
    LAMINA_ASSIGN_OR_RETURN(times.attention_shared, concurrent_->End());
    LAMINA_RETURN_IF_ERROR(measured.status());
    times.pools = *std::move(measured);
    return absl::OkStatus();
  }

  const PolicyMeasurement& what_;
  ThreadPool& pool_;
  SliceMeter slices_;
  ReadMeter reads_;
  std::unique_ptr<kernels::AttentionLoad> attention_;  // On the device.
  std::optional<ConcurrentAttention> concurrent_;      // On cores of memory nodes, if any.
  double reads_last_ = 0;
  double make_seconds_ = 0;
};

std::string Words(const std::vector<plan::SliceTimes>& times) {
  return absl::StrJoin(times, ", ", [](std::string* out, const plan::SliceTimes& size) {
    absl::StrAppendFormat(out, "%d rows %.2f and %.1f", size.rows, size.slice_seconds * 1e3,
                          size.tail_seconds * 1e3);
  });
}

// "slice and tail in ms: local 1 rows 0.31 and 1.2, ...; ...; attention 30.1 GB/s, ..."
std::string Words(const plan::PolicyTimes& times) {
  return absl::StrCat(
      "slice and tail in ms: local ", Words(times.local), "; together with memory nodes ",
      Words(times.pools),
      absl::StrFormat("; attention %.1f GB/s, on cores of memory nodes %.1f GB/s, without them "
                      "%.1f GB/s; K and V made in %.2f us a token and layer",
                      times.attention_local / 1e9, times.attention_shared / 1e9,
                      times.attention_pools / 1e9, times.make_seconds * 1e6));
}

absl::StatusOr<plan::PolicyTimes> MeasureTurns(const PolicyMeasurement& what,
                                               SliceExecutor& executor, ThreadPool& pool) {
  TurnMeter meter(what, executor, pool);
  LAMINA_RETURN_IF_ERROR(meter.Prepare());
  std::vector<PolicyTurn> turns;
  while (turns.size() < kTurns) {
    LAMINA_ASSIGN_OR_RETURN(PolicyTurn turn, meter.Measure());
    turns.push_back(std::move(turn));
  }
  return TimesOfTurns(turns);
}

}  // namespace

size_t BytesToRead(uint64_t cache_bytes) {
  return cache_bytes == 0
             ? kernels::PlainReads::kBytes
             : std::clamp<size_t>(2 * cache_bytes, kReadBytesMin, kernels::PlainReads::kBytes);
}

absl::StatusOr<plan::PolicyTimes> MeasurePolicyTimes(const PolicyMeasurement& what,
                                                     SliceExecutor& executor, ThreadPool& pool) {
  const Nanos start = RealClock().Now();
  absl::StatusOr<plan::PolicyTimes> times = MeasureTurns(what, executor, pool);
  pool.UseThreads(pool.threads());
  LAMINA_RETURN_IF_ERROR(times.status());
  LogInfo("for policy auto, ", Words(*times),
          absl::StrFormat("; reads %.1f to %.1f GB/s in %d turns, measured in %.1f s",
                          times->reads_low / 1e9, times->reads_high / 1e9, kTurns,
                          ToSeconds(RealClock().Now() - start)));
  for (size_t end = 0; end < times->ends.size(); ++end) {
    LogInfo("for policy auto, where reads were ", end == 0 ? "slow" : "fast", ", ",
            Words(times->ends[end]));
  }
  return times;
}

}  // namespace lamina::compute_node
