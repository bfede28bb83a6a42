// SPDX-License-Identifier: Apache-2.0
#include "transport/outbox/landing_proxy.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/idle_naps.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::transport {
namespace {

constexpr char kThreadName[] = "lamina-landing";
constexpr size_t kPageBytes = 4096;
constexpr size_t kWordStride = 64;  // A cache line each.
constexpr Nanos kSpin = Micros(20);
constexpr Nanos kYield = Millis(1);

}  // namespace

absl::StatusOr<std::unique_ptr<LandingProxy>> LandingProxy::Start(Region& region) {
  const size_t words = std::max<size_t>(region.signal_words(), 1);
  const size_t bytes = (words * kWordStride + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes for a device's words: ", std::strerror(errno)));
  }
  std::unique_ptr<LandingProxy> proxy(
      new LandingProxy(region, {static_cast<std::byte*>(base), bytes}));
  for (uint32_t index = 0; index < region.signal_words(); ++index) {
    new (&proxy->word(index)) std::atomic<uint64_t>(0);
  }
  proxy->thread_ = std::thread([raw = proxy.get()] { raw->Run(); });
  pthread_setname_np(proxy->thread_.native_handle(), kThreadName);
  return proxy;
}

LandingProxy::~LandingProxy() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) {
    thread_.join();
  }
  munmap(pages_.data(), pages_.size());
}

DirectMemory LandingProxy::memory() {
  return {.bytes = region_.bytes(),
          .words = pages_.data(),
          .word_stride = kWordStride,
          .pages = pages_,
          .landings = this};
}

std::atomic<uint64_t>& LandingProxy::word(uint32_t index) const {
  return *reinterpret_cast<std::atomic<uint64_t>*>(pages_.data() + index * kWordStride);
}

// A value is read before the data is landed, so that it is covered. One that comes meanwhile is the
// next look's.
bool LandingProxy::LandRaised(Nanos looked) {
  bool landed = false;
  for (uint32_t index = 0; index < region_.signal_words() && !failed_; ++index) {
    const uint64_t value = region_.LoadSignal(index);
    if (value == word(index).load(std::memory_order_relaxed)) {
      continue;
    }
    if (const absl::Status status = region_.Land(0, region_.bytes().size()); !status.ok()) {
      LogWarning("a device's windows are not landed any more: ", status.message());
      failed_ = true;
      break;
    }
    // Release: what the value covers has been landed.
    word(index).store(value, std::memory_order_release);
    landed = true;
    if (looked != 0) {
      Note({.word = index, .value = value, .unraised = looked, .landed = RealClock().Now()});
    }
  }
  return landed;
}

void LandingProxy::Note(const LandingTimes& times) {
  const uint64_t noted = noted_.load(std::memory_order_relaxed);
  // Acquire: the place has been read.
  if (noted - taken_.load(std::memory_order_acquire) < kTimesKept) {
    times_[noted % kTimesKept] = times;
    // Release: the entry is written.
    noted_.store(noted + 1, std::memory_order_release);
  }
}

std::optional<LandingTimes> LandingProxy::TakeTimes() {
  const uint64_t taken = taken_.load(std::memory_order_relaxed);
  // Acquire: the entry is written before.
  if (taken == noted_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const LandingTimes times = times_[taken % kTimesKept];
  // Release: the place has been read.
  taken_.store(taken + 1, std::memory_order_release);
  return times;
}

void LandingProxy::Run() {
  const Clock& clock = RealClock();
  Nanos idle_since = clock.Now();
  Nanos looked = 0;
  IdleNaps naps;
  while (!stop_.load(std::memory_order_relaxed)) {
    const Nanos looks = wanted_.load(std::memory_order_relaxed) ? clock.Now() : 0;
    if (LandRaised(std::exchange(looked, looks))) {
      idle_since = clock.Now();
      naps.Came();
      continue;
    }
    const Nanos now = clock.Now();
    const Nanos idle = now - idle_since;
    if (idle >= kYield) {
      std::this_thread::sleep_for(naps.Next(now));
    } else if (idle >= kSpin) {
      sched_yield();
    }
  }
}

}  // namespace lamina::transport
