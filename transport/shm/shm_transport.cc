// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_transport.h"

#include <sched.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/crowded_core.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/shm/shm_region.h"

namespace lamina::transport {
namespace {

// A message crosses in 0.1 to 2 us. Longer spinning takes the core from a peer that shares it.
constexpr Nanos kSpin = Micros(3);
// An abort word is seen at least this often.
constexpr Nanos kSleepMax = Millis(1);
// Where words are raised by devices, which wake nobody. Linux adds about as much to a sleep.
constexpr Nanos kNapMax = Micros(50);
// The clock costs about as much as looking at twenty words.
constexpr int kPollsPerClockRead = 4;

constexpr uint64_t kPutBytesMax = GiB(1);

bool Raised(const AbortWord* abort) {
  // Acquire: what was written before raising it, the reason say, is visible to the caller.
  return abort != nullptr && abort->load(std::memory_order_acquire) != 0;
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(DeviceMemory* device)
      : windows_(device),
        capabilities_{.device_memory = device != nullptr,
                      .device_sources = device != nullptr,
                      .one_sided = true,
                      .local_host_only = true,
                      .put_bytes_max = kPutBytesMax,
                      .in_flight_max = UINT32_MAX} {}

  absl::string_view scheme() const override { return "shm"; }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override {
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, ShmRegion::Create(options, &windows_));
    return region;
  }

  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override {
    LAMINA_ASSIGN_OR_RETURN(const ShmDescriptor decoded, DecodeShmDescriptor(descriptor));
    if (decoded.epoch != epoch) {
      return absl::AbortedError(absl::StrCat("shm: descriptor of epoch ", decoded.epoch,
                                             ", this is epoch ", epoch,
                                             ": ask the peer for a new one"));
    }
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<RemoteRegion> remote,
                            ShmRemoteRegion::Open(decoded, windows_.device()));
    return remote;
  }

  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kHost) {
      return absl::OkStatus();
    }
    if (windows_.device() == nullptr) {
      return absl::InvalidArgumentError(
          "shm: this shm:// was made without a device: puts read host memory only");
    }
    windows_.AddSource(bytes);
    return absl::OkStatus();
  }

  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override {
    if (source.size() > kPutBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("shm: put of ", FormatBytes(source.size()),
                                                     ", at most ", FormatBytes(kPutBytesMax)));
    }
    return static_cast<ShmRemoteRegion&>(target).Put(
        offset, source, signal, /*from_device=*/!source.empty() && windows_.Holds(source));
  }

  uint32_t Pending(const RemoteRegion&) const override { return 0; }
  uint32_t Progress() override { return 0; }

  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

 private:
  DeviceWindows windows_;
  const Capabilities capabilities_;
};

absl::StatusOr<size_t> ShmTransport::Wait(const Region& region,
                                          absl::Span<const SignalCondition> conditions,
                                          const WaitOptions& options) {
  const auto& own = static_cast<const ShmRegion&>(region);
  for (const SignalCondition& condition : conditions) {
    LAMINA_CHECK(condition.word < own.signal_words());
  }
  const Nanos sleep_max = own.written_by_devices() ? kNapMax : kSleepMax;
  const Clock& clock = RealClock();
  Nanos start = 0;  // Read when the first round found nothing.
  Nanos yield = 0;
  for (;;) {
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      if (const std::optional<size_t> holding = own.FirstHolding(conditions)) {
        return *holding;
      }
    }
    if (Raised(options.abort)) {
      return absl::CancelledError("shm: the wait was aborted");
    }
    const Nanos now = clock.Now();
    if (start == 0) {
      start = now;
      yield = YieldTime(now);
    }
    if (now >= options.deadline) {
      return absl::DeadlineExceededError("shm: no signal came by the deadline");
    }
    if (now - start >= kSpin + yield) {
      own.Sleep(conditions, std::min(sleep_max, options.deadline - now));
    } else if (now - start >= kSpin) {
      sched_yield();
    }
  }
}

}  // namespace

std::unique_ptr<Transport> MakeShmTransport(DeviceMemory* device) {
  return std::make_unique<ShmTransport>(device);
}

}  // namespace lamina::transport
