// SPDX-License-Identifier: Apache-2.0
#include "compute_node/policy_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
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
#include "kernels/compute_device.h"
#include "kernels/k_tiles.h"
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
constexpr uint32_t kSequences = 8;
// So long attention is measured on the threads that are left beside memory nodes' cores.
constexpr Nanos kFetchingTime = Millis(60);

// Requires: not empty.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

using Work = absl::FunctionRef<absl::Status()>;

// Where attention is measured: what makes its K and V, and memory for its rows, and by what clock.
struct AttentionPlace {
  kernels::KvDeviceMaker make;
  std::function<absl::StatusOr<kernels::Buffer>(size_t)> allocate;
  std::function<absl::StatusOr<double>(Work)> seconds_of;
};

// The device outlives the place.
AttentionPlace OnDevice(kernels::ComputeDevice& device) {
  return {.make = [&device](const auto& options) { return device.MakeKvDevice(options); },
          .allocate = [&device](size_t bytes) { return device.Allocate(bytes); },
          .seconds_of = [&device](Work work) { return device.SecondsOf(work); }};
}

// Cores of memory nodes; the pool outlives the place.
AttentionPlace OnCores(ThreadPool& pool) {
  return {.make = kernels::CpuKvDevices(kernels::CpuAttention(), pool),
          .allocate = [](size_t bytes) -> absl::StatusOr<kernels::Buffer> {
            auto owner = std::make_shared<std::vector<std::byte>>(bytes);
            return kernels::Buffer{.data = owner->data(), .bytes = bytes, .owner = owner};
          },
          .seconds_of = [](Work work) -> absl::StatusOr<double> {
            const Nanos start = RealClock().Now();
            LAMINA_RETURN_IF_ERROR(work());
            return ToSeconds(RealClock().Now() - start);
          }};
}

// A clock may be too coarse for what it measures.
double AtLeastANano(double seconds) { return std::max(1e-9, seconds); }

// K and V of a few sequences, and queries over them.
class AttentionLoad {
 public:
  static absl::StatusOr<std::unique_ptr<AttentionLoad>> Create(const PolicyMeasurement& what,
                                                               AttentionPlace place) {
    auto load = std::make_unique<AttentionLoad>(what, std::move(place));
    LAMINA_ASSIGN_OR_RETURN(load->device_, load->place_.make({.layers = what.layers,
                                                              .slots = kSequences * load->tokens_,
                                                              .context_tokens_max = load->tokens_,
                                                              .items_max = kSequences}));
    LAMINA_RETURN_IF_ERROR(load->device_->Begin());
    LAMINA_RETURN_IF_ERROR(load->MakeItems());
    return load;
  }

  AttentionLoad(const PolicyMeasurement& what, AttentionPlace place)
      : layers_(what.layers), place_(std::move(place)) {
    uint64_t slot_bytes = 0;
    for (const AttentionDescriptor& layer : layers_) {
      slot_bytes += 2 * uint64_t{layer.kv_width()} * sizeof(BFloat16);
    }
    const uint64_t fit = what.kv_bytes / (slot_bytes * kSequences);
    tokens_ = static_cast<uint32_t>(std::max<uint64_t>(1, fit / kernels::kTileSlots)) *
              static_cast<uint32_t>(kernels::kTileSlots);
  }

  // Attends the next layer. Returns how many bytes of K and V that read.
  absl::StatusOr<uint64_t> Attend() {
    const auto layer = static_cast<uint32_t>(next_++ % layers_.size());
    LAMINA_RETURN_IF_ERROR(device_->Attend(layer, AllHeads(layers_[layer]), items_));
    const uint64_t seen =
        layers_[layer].window == 0 ? tokens_ : std::min<uint64_t>(tokens_, layers_[layer].window);
    return kSequences * seen * 2 * layers_[layer].kv_width() * sizeof(BFloat16);
  }

  // Bytes a second of one Attend().
  absl::StatusOr<double> AttendTimed() {
    uint64_t bytes = 0;
    LAMINA_ASSIGN_OR_RETURN(const double seconds, place_.seconds_of([&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(bytes, Attend());
      return absl::OkStatus();
    }));
    return static_cast<double>(bytes) / AtLeastANano(seconds);
  }

  // Bytes a second, the median of calls, until `done` says so.
  template <typename Done>
  absl::StatusOr<double> Rate(const Done& done) {
    LAMINA_RETURN_IF_ERROR(Attend().status());  // Wakes the threads.
    std::vector<double> rates;
    do {
      LAMINA_ASSIGN_OR_RETURN(const double rate, AttendTimed());
      rates.push_back(rate);
    } while (!done());
    return Median(std::move(rates));
  }

 private:
  absl::Status MakeItems() {
    size_t width = 0;
    for (const AttentionDescriptor& layer : layers_) {
      width = std::max<size_t>(width, layer.q_width());
    }
    LAMINA_ASSIGN_OR_RETURN(queries_, place_.allocate(kSequences * width * sizeof(BFloat16)));
    LAMINA_ASSIGN_OR_RETURN(outputs_, place_.allocate(kSequences * width * sizeof(BFloat16)));
    for (uint32_t i = 0; i < kSequences; ++i) {
      extents_[i] = {.first_slot = i * tokens_, .tokens = tokens_};
      items_.push_back({.extents = {&extents_[i], 1},
                        .first_position = tokens_ - 1,
                        .q = reinterpret_cast<const BFloat16*>(queries_.data) + i * width,
                        .q_stride = width,
                        .out = reinterpret_cast<BFloat16*>(outputs_.data) + i * width,
                        .out_stride = width});
    }
    return absl::OkStatus();
  }

  const std::vector<AttentionDescriptor> layers_;
  const AttentionPlace place_;
  uint32_t tokens_ = 1;  // Context of each sequence.
  kernels::Buffer queries_;
  kernels::Buffer outputs_;
  std::array<Extent, kSequences> extents_;
  std::vector<kernels::AttentionItem> items_;
  std::unique_ptr<kernels::KvDevice> device_;
  size_t next_ = 0;
};

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
    auto load = AttentionLoad::Create(what_, OnCores(pool));
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
  explicit SliceMeter(SliceExecutor& executor) : executor_(executor) {}

  absl::Status Prepare() {
    LAMINA_RETURN_IF_ERROR(executor_.Prepare(kRows.back()));
    LAMINA_ASSIGN_OR_RETURN(buffers_, executor_.MakeBuffers(kRows.back()));
    LAMINA_ASSIGN_OR_RETURN(tail_, executor_.head().MakeBuffers());
    if (const absl::Status captured = executor_.Capture(kRows.back(), buffers_); !captured.ok()) {
      LogWarning("slices are measured op by op, since they cannot be captured: ",
                 captured.message());
    }
    for (uint32_t i = 0; i < kRows.back(); ++i) {
      rows_.push_back(i);
    }
    return absl::OkStatus();
  }

  // Medians. With `attention` it follows each slice, as in a step of policy local, and its rates in
  // bytes a second are added.
  absl::StatusOr<std::vector<plan::SliceTimes>> Measure(AttentionLoad* attention,
                                                        std::vector<double>* rates) {
    std::array<std::vector<double>, kRows.size()> slices;
    std::array<std::vector<double>, kRows.size()> tails;
    for (int round = 0; round < kRounds; ++round) {
      for (size_t size = 0; size < kRows.size(); ++size) {
        const auto zeros = absl::MakeConstSpan(zeros_).first(kRows[size]);
        LAMINA_RETURN_IF_ERROR(
            executor_.SetRows({.token_ids = zeros, .positions = zeros}, buffers_));
        LAMINA_RETURN_IF_ERROR(RunSlices(attention, slices[size], rates));
        LAMINA_ASSIGN_OR_RETURN(const double tail, TailSeconds(kRows[size]));
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
  // Slice 0 is shorter than the others.
  absl::Status RunSlices(AttentionLoad* attention, std::vector<double>& seconds,
                         std::vector<double>* rates) {
    const uint32_t slices = executor_.slice_count() - 1;
    const uint32_t first = std::min(1u, slices - 1);
    const Nanos begin = RealClock().Now();
    Nanos start = begin;
    for (uint32_t run = 0; run < kSlicesLeast || start - begin < kSlicesMax; ++run) {
      next_ = next_ < first || next_ >= slices ? first : next_;
      LAMINA_ASSIGN_OR_RETURN(const double slice, executor_.device().SecondsOf([this] {
        executor_.RunBeforeSend(next_, buffers_);
        executor_.RunAfterSend(next_, buffers_);
        return absl::OkStatus();
      }));
      seconds.push_back(AtLeastANano(slice));
      ++next_;
      if (attention != nullptr) {
        LAMINA_ASSIGN_OR_RETURN(const double rate, attention->AttendTimed());
        rates->push_back(rate);
      }
      start = RealClock().Now();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> TailSeconds(uint32_t rows) {
    LAMINA_ASSIGN_OR_RETURN(const double seconds, executor_.device().SecondsOf([&] {
      executor_.head().Begin(buffers_, absl::MakeConstSpan(rows_).first(rows), tail_);
      for (size_t column = 0; column < executor_.head().width();) {
        column = executor_.head().Run(rows, column, tail_);
      }
      return absl::OkStatus();
    }));
    return AtLeastANano(seconds);
  }

  SliceExecutor& executor_;
  ValueBuffers buffers_;
  ValueBuffers tail_;
  uint32_t next_ = 0;           // Slice.
  std::vector<uint32_t> rows_;  // 0, 1, 2, ...
  const std::array<uint32_t, kRows.back()> zeros_ = {};
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
absl::Status MeasureFetching(const PolicyMeasurement& what, AttentionLoad& attention,
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
  SliceMeter meter(executor);
  LAMINA_RETURN_IF_ERROR(meter.Prepare());
  LAMINA_ASSIGN_OR_RETURN(times.read_bandwidth, executor.device().MeasureReads());
  {
    LAMINA_ASSIGN_OR_RETURN(const auto attention,
                            AttentionLoad::Create(what, OnDevice(executor.device())));
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
