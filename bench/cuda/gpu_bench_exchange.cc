// SPDX-License-Identifier: Apache-2.0
//
// What a unit takes besides its slice and its attention: rows from the device's memory into a
// window of the host's, an answer by a thread of the host that was only waiting for it, and that
// back to the device. By kernels that were launched before, and by the host.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_bench.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "kernels/cuda/compute_device.h"
#include "kernels/window_channel.h"

namespace lamina::bench {
namespace {

using kernels::Buffer;
using kernels::ComputeDevice;
using kernels::HostWindows;
using kernels::WindowChannel;

constexpr uint64_t kUnits = 1000;
constexpr size_t kRowsMax = 64;
constexpr size_t kQueryRowBytes = size_t{2} * (32 + 2 * 8) * 128;  // A row of LLaMA-3-8B.
constexpr size_t kReplyRowBytes = size_t{2} * 32 * 128;
constexpr size_t kHeaderBytes = kernels::kWindowHeaderBytes;
constexpr size_t kPageBytes = 4096;
constexpr size_t kWindowBytes = size_t{1} << 20;
constexpr Nanos kTimeout = Seconds(5);

// Two windows behind a page with their one signal word, as two processes would share them.
class Windows {
 public:
  static absl::StatusOr<std::unique_ptr<Windows>> Create() {
    void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                             /*fd=*/-1, /*offset=*/0);
    if (pages == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("mmap of ", kBytes, " bytes"));
    }
    return std::unique_ptr<Windows>(new Windows(static_cast<std::byte*>(pages)));
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;
  ~Windows() { munmap(pages_, kBytes); }

  HostWindows View() const {
    return {.bytes = {pages_ + kPageBytes, 2 * kWindowBytes},
            .words = pages_,
            .word_stride = kHeaderBytes,
            .pages = {pages_, kBytes}};
  }
  std::byte* At(uint64_t unit) const { return pages_ + kPageBytes + OffsetOf(unit); }
  static size_t OffsetOf(uint64_t unit) { return unit % 2 * kWindowBytes; }
  std::atomic_ref<uint64_t> word() const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(pages_));
  }

 private:
  static constexpr size_t kBytes = kPageBytes + 2 * kWindowBytes;
  explicit Windows(std::byte* pages) : pages_(pages) {}

  std::byte* const pages_;
};

kernels::WindowStamp StampOf(uint64_t unit) { return {.step = unit}; }

class Exchange {
 public:
  static absl::StatusOr<std::unique_ptr<Exchange>> Create(ComputeDevice& device) {
    std::unique_ptr<Exchange> exchange(new Exchange(device));
    LAMINA_ASSIGN_OR_RETURN(exchange->query_, Windows::Create());
    LAMINA_ASSIGN_OR_RETURN(exchange->reply_, Windows::Create());
    LAMINA_ASSIGN_OR_RETURN(exchange->made_, device.Allocate(kRowsMax * kQueryRowBytes));
    LAMINA_ASSIGN_OR_RETURN(exchange->attended_, device.Allocate(kRowsMax * kReplyRowBytes));
    LAMINA_ASSIGN_OR_RETURN(exchange->host_out_, device.AllocateHost(kRowsMax * kQueryRowBytes));
    LAMINA_ASSIGN_OR_RETURN(exchange->host_in_, device.AllocateHost(kRowsMax * kReplyRowBytes));
    LAMINA_ASSIGN_OR_RETURN(
        exchange->channel_,
        device.MakeChannel(
            {.own = exchange->reply_->View(), .peers = 1, .lanes = 1, .timeout = kTimeout}));
    const HostWindows peer = exchange->query_->View();
    LAMINA_RETURN_IF_ERROR(exchange->channel_->SetPeers({&peer, 1}));
    return exchange;
  }

  // Microseconds of a unit; units go on counting.
  template <typename Unit>
  absl::StatusOr<double> Measure(const Unit& unit) {
    std::atomic<bool> over{false};
    const uint64_t first = units_ + 1;
    std::thread peer([&] { Answer(first, over); });
    const auto started = std::chrono::steady_clock::now();
    absl::Status status;
    for (uint64_t i = 0; i < kUnits && status.ok(); ++i) {
      status = unit(++units_);
    }
    status.Update(device_.Synchronize());
    const auto ended = std::chrono::steady_clock::now();
    over.store(true);
    peer.join();
    LAMINA_RETURN_IF_ERROR(status);
    return std::chrono::duration<double, std::micro>(ended - started).count() / kUnits;
  }

  // The next unit is ordered when the device has come to the one before, as a compute node does.
  absl::Status ByDevice(uint64_t unit, size_t rows) {
    LAMINA_RETURN_IF_ERROR(channel_->Send(0, unit,
                                          {.window = Windows::OffsetOf(unit),
                                           .stamp = StampOf(unit),
                                           .rows = made_.data,
                                           .bytes = rows * kQueryRowBytes,
                                           .value = unit}));
    for (;;) {
      LAMINA_ASSIGN_OR_RETURN(const bool taken, channel_->HasTaken(0));
      if (taken) {
        break;
      }
    }
    if (channel_->FailureOf(0).has_value()) {
      return absl::InternalError(absl::StrCat("the take of unit ", unit - 1, " failed"));
    }
    const kernels::RowsIn answer{.window = Windows::OffsetOf(unit),
                                 .stamp = StampOf(unit),
                                 .rows = attended_.data,
                                 .bytes = rows * kReplyRowBytes,
                                 .value = unit};
    return channel_->Take(0, unit, {&answer, 1});
  }

  absl::Status ByHost(uint64_t unit, size_t rows) {
    device_.Copy(host_out_.data, made_.data, rows * kQueryRowBytes);
    LAMINA_RETURN_IF_ERROR(device_.Synchronize());
    std::byte* const query = query_->At(unit);
    const kernels::WindowStamp stamp = StampOf(unit);
    std::memcpy(query, &stamp, sizeof(stamp));
    std::memcpy(query + kHeaderBytes, host_out_.data, rows * kQueryRowBytes);
    query_->word().store(unit, std::memory_order_release);
    const Nanos deadline = RealClock().Now() + kTimeout;
    while (reply_->word().load(std::memory_order_acquire) < unit) {
      if (RealClock().Now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("no answer to unit ", unit));
      }
    }
    std::memcpy(host_in_.data, reply_->At(unit) + kHeaderBytes, rows * kReplyRowBytes);
    device_.Copy(attended_.data, host_in_.data, rows * kReplyRowBytes);
    return absl::OkStatus();
  }

 private:
  explicit Exchange(ComputeDevice& device) : device_(device) {}

  void Answer(uint64_t first, const std::atomic<bool>& over) {
    for (uint64_t unit = first; unit < first + kUnits; ++unit) {
      while (query_->word().load(std::memory_order_acquire) < unit) {
        if (over.load()) {
          return;
        }
      }
      std::memcpy(reply_->At(unit), query_->At(unit), kHeaderBytes);
      reply_->word().store(unit, std::memory_order_release);
    }
  }

  ComputeDevice& device_;
  std::unique_ptr<Windows> query_, reply_;
  Buffer made_, attended_, host_out_, host_in_;
  std::unique_ptr<WindowChannel> channel_;
  uint64_t units_ = 0;
};

}  // namespace

absl::StatusOr<std::string> BenchExchange(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(const auto device,
                          kernels::cuda::MakeCudaComputeDevice({.index = bench.device.index}));
  LAMINA_RETURN_IF_ERROR(device->Begin());
  LAMINA_ASSIGN_OR_RETURN(const auto exchange, Exchange::Create(*device));
  std::string lines;
  for (const size_t rows : {1, 16, 64}) {
    const auto device_exchange = [&](uint64_t unit) { return exchange->ByDevice(unit, rows); };
    const auto by_host = [&](uint64_t unit) { return exchange->ByHost(unit, rows); };
    LAMINA_ASSIGN_OR_RETURN(const double device_us, exchange->Measure(device_exchange));
    LAMINA_ASSIGN_OR_RETURN(const double host_us, exchange->Measure(by_host));
    absl::StrAppendFormat(&lines, "%s{\"rows\": %d, \"device_us\": %.2f, \"host_us\": %.2f}",
                          lines.empty() ? "" : ", ", rows, device_us, host_us);
  }
  return absl::StrCat("[", lines, "]");
}

}  // namespace lamina::bench
