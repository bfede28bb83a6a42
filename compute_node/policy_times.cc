// SPDX-License-Identifier: Apache-2.0
#include "compute_node/policy_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/attention.h"
#include "kernels/attention_load.h"
#include "kernels/compute_device.h"
#include "kernels/kv_device.h"

namespace lamina::compute_node {
namespace {

constexpr std::array<uint32_t, 6> kRows = {1, 4, 8, 16, 32, 64};
static_assert(kRows.back() <= LmHead::kRows, "a tail runs in one piece");
// Rounds go over all sizes, so that what else runs meanwhile does not meet one alone.
constexpr int kRounds = 3;
// A round measures one size for so long; at least kSlicesLeast slices all the same.
constexpr Nanos kSlicesMax = Millis(12);
constexpr uint32_t kSlicesLeast = 2;
// So long attention is measured on the threads that are left beside memory nodes' cores.
constexpr Nanos kFetchingTime = Millis(60);

// Requires: not empty.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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

// Attention on other cores for as long as it lives.
class ConcurrentAttention {
 public:
  explicit ConcurrentAttention(const PolicyMeasurement& what)
      : what_(what), thread_([this] { rate_ = Run(); }) {
    started_.wait(false);
  }
  ~ConcurrentAttention() { static_cast<void>(End()); }
  ConcurrentAttention(const ConcurrentAttention&) = delete;
  ConcurrentAttention& operator=(const ConcurrentAttention&) = delete;

  // Ends it. Returns the bytes a second that it reached.
  absl::StatusOr<double> End() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) {
      thread_.join();
    }
    return rate_;
  }

 private:
  absl::StatusOr<double> Run() {
    const std::vector<int>& cores = what_.shared_cores;
    ThreadPoolOptions options = {.threads = cores.size(), .cores = cores};
    PinThisThread({cores.front()});
    ThreadPool pool(options);
    auto load =
        kernels::AttentionLoad::Create({.layers = what_.layers, .kv_bytes = what_.kv_bytes},
                                       kernels::CpuKvDevices(kernels::CpuAttention(), pool));
    started_.store(true);
    started_.notify_one();
    LAMINA_RETURN_IF_ERROR(load.status());
    return (*load)->Rate([this] { return stop_.load(std::memory_order_relaxed); });
  }

  const PolicyMeasurement what_;
  std::atomic<bool> started_{false};
  std::atomic<bool> stop_{false};
  absl::StatusOr<double> rate_ = 0.0;
  std::thread thread_;  // Last: it uses the others.
};

// Slices and tails in turn, of batches of each size.
class SliceMeter {
 public:
  SliceMeter(SliceExecutor& executor, const SliceRange& range) : slices_(executor, range) {}

  absl::Status Prepare() { return slices_.Prepare(kRows.back()); }

  // Medians. With `attention` it follows each slice, as in a step of policy local, and its rates in
  // bytes a second are added.
  absl::StatusOr<std::vector<plan::SliceTimes>> Measure(kernels::AttentionLoad* attention,
                                                        std::vector<double>* rates) {
    std::array<std::vector<double>, kRows.size()> slices;
    std::array<std::vector<double>, kRows.size()> tails;
    for (int round = 0; round < kRounds; ++round) {
      for (size_t size = 0; size < kRows.size(); ++size) {
        LAMINA_RETURN_IF_ERROR(slices_.SetRows(kRows[size]));
        LAMINA_RETURN_IF_ERROR(RunSlices(attention, slices[size], rates));
        LAMINA_ASSIGN_OR_RETURN(const double tail, TailSeconds());
        tails[size].push_back(tail);
      }
    }
    std::vector<plan::SliceTimes> times;
    for (size_t size = 0; size < kRows.size(); ++size) {
      times.push_back({.rows = kRows[size],
                       .slice_seconds = Median(std::move(slices[size])),
                       .tail_seconds = Median(std::move(tails[size]))});
    }
    return times;
  }

 private:
  // As many slices as there is time for, each with its seconds, on from where the last call ended.
  absl::Status RunSlices(kernels::AttentionLoad* attention, std::vector<double>& seconds,
                         std::vector<double>* rates) {
    const Nanos begin = RealClock().Now();
    Nanos start = begin;
    for (uint32_t run = 0; run < kSlicesLeast || start - begin < kSlicesMax; ++run) {
      LAMINA_ASSIGN_OR_RETURN(const double slice,
                              slices_.device().SecondsOf([this] { return slices_.RunNext(); }));
      seconds.push_back(AtLeastANano(slice));
      if (attention != nullptr) {
        LAMINA_ASSIGN_OR_RETURN(const double rate, attention->AttendTimed());
        rates->push_back(rate);
      }
      start = RealClock().Now();
    }
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
  for (int round = 0; round <= kRounds; ++round) {
    uint32_t tokens = 0;
    const absl::StatusOr<double> run = device.SecondsOf([&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(tokens, what.make_kv());
      return absl::OkStatus();
    });
    if (!run.ok()) {
      return 0;
    }
    if (round > 0) {  // The first one wakes the threads.
      seconds.push_back(AtLeastANano(*run) / tokens);
    }
  }
  return Median(std::move(seconds));
}

// Attention and making K and V on the threads that are in use now, where memory nodes have theirs.
absl::Status MeasureFetching(const PolicyMeasurement& what, kernels::AttentionLoad& attention,
                             kernels::ComputeDevice& device, plan::PolicyTimes& times) {
  const Nanos end = RealClock().Now() + kFetchingTime;
  LAMINA_ASSIGN_OR_RETURN(times.attention_pools,
                          attention.Rate([end] { return RealClock().Now() >= end; }));
  times.make_seconds = MakeSeconds(what, device);
  return absl::OkStatus();
}

std::string Words(const std::vector<plan::SliceTimes>& times) {
  return absl::StrJoin(times, ", ", [](std::string* out, const plan::SliceTimes& size) {
    absl::StrAppendFormat(out, "%d rows %.2f and %.1f", size.rows, size.slice_seconds * 1e3,
                          size.tail_seconds * 1e3);
  });
}

}  // namespace

absl::StatusOr<plan::PolicyTimes> MeasurePolicyTimes(const PolicyMeasurement& what,
                                                     SliceExecutor& executor, ThreadPool& pool) {
  const Nanos start = RealClock().Now();
  plan::PolicyTimes times;
  SliceMeter meter(executor, what.slices);
  LAMINA_RETURN_IF_ERROR(meter.Prepare());
  LAMINA_ASSIGN_OR_RETURN(times.read_bandwidth, executor.device().MeasureReads());
  {
    LAMINA_ASSIGN_OR_RETURN(const auto attention, LoadOnDevice(what, executor.device()));
    std::vector<double> rates;
    LAMINA_ASSIGN_OR_RETURN(times.local, meter.Measure(attention.get(), &rates));
    times.attention_local = Median(std::move(rates));
    pool.UseThreads(what.shared_cores.empty() ? pool.threads() : what.pools_threads);
    const absl::Status fetching = MeasureFetching(what, *attention, executor.device(), times);
    pool.UseThreads(pool.threads());
    LAMINA_RETURN_IF_ERROR(fetching);
  }
  if (what.shared_cores.empty()) {
    times.pools = times.local;
  } else {
    pool.UseThreads(what.pools_threads);
    ConcurrentAttention concurrent(what);
    absl::StatusOr<std::vector<plan::SliceTimes>> measured = meter.Measure(nullptr, nullptr);
    const absl::StatusOr<double> rate = concurrent.End();
    pool.UseThreads(pool.threads());
    LAMINA_RETURN_IF_ERROR(measured.status());
    LAMINA_RETURN_IF_ERROR(rate.status());
    times.pools = *std::move(measured);
    times.attention_shared = *rate;
  }
  LogInfo("for policy auto, slice and tail in ms: local ", Words(times.local),
          "; together with memory nodes ", Words(times.pools),
          absl::StrFormat("; attention %.1f GB/s, on cores of memory nodes %.1f GB/s, without them "
                          "%.1f GB/s; K and V made in %.2f us a token and layer",
                          times.attention_local / 1e9, times.attention_shared / 1e9,
                          times.attention_pools / 1e9, times.make_seconds * 1e6),
          "; measured in ", absl::StrFormat("%.1f", ToSeconds(RealClock().Now() - start)), " s");
  return times;
}

}  // namespace lamina::compute_node
