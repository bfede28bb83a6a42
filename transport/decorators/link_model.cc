// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/link_model.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::transport {
namespace {

constexpr double kNanosPerSecond = 1e9;

Nanos Draw(Prng& prng, Nanos most) {
  return most == 0 ? 0 : static_cast<Nanos>(prng.Below(static_cast<uint64_t>(most) + 1));
}

}  // namespace

Throttle::Throttle(const ThrottleOptions& options, std::shared_ptr<SharedBus> bus)
    : options_(options), prng_(options.seed), bus_(std::move(bus)) {}

PutFate Throttle::Judge(uint64_t bytes, Nanos now) {
  free_at_ = std::max(free_at_, static_cast<double>(now));
  if (bus_ != nullptr) {
    free_at_ = static_cast<double>(bus_->Take(bytes, now));
  } else if (options_.bytes_per_second > 0) {
    free_at_ += static_cast<double>(bytes) * kNanosPerSecond /
                static_cast<double>(options_.bytes_per_second);
  }
  const Nanos due = static_cast<Nanos>(free_at_) + options_.latency + Draw(prng_, options_.jitter);
  last_due_ = std::max(last_due_, due);
  return {.due = last_due_};
}

Fault::Fault(const FaultOptions& options) : options_(options), prng_(options.seed) {}

PutFate Fault::Judge(uint64_t, Nanos now) {
  ++puts_;
  PutFate fate{.due = now + Draw(prng_, options_.delay)};
  // Always drawn, so that one option does not change what another one draws.
  fate.dropped = prng_.Chance(options_.drop);
  fate.corrupt = prng_.Chance(options_.corrupt);
  fate.dropped = fate.dropped || (options_.cut > 0 && puts_ >= options_.cut);
  return fate;
}

absl::StatusOr<std::unique_ptr<LinkModel>> MakeLinkModel(absl::string_view name,
                                                         absl::string_view options) {
  if (name == "throttle") {
    LAMINA_ASSIGN_OR_RETURN(const ThrottleOptions throttle, ParseThrottle(options));
    std::shared_ptr<SharedBus> bus;
    if (!throttle.bus.empty()) {
      LAMINA_ASSIGN_OR_RETURN(bus, SharedBus::Open(throttle.bus, throttle.bytes_per_second));
    }
    return std::make_unique<Throttle>(throttle, std::move(bus));
  }
  if (name == "fault") {
    LAMINA_ASSIGN_OR_RETURN(const FaultOptions fault, ParseFault(options));
    return std::make_unique<Fault>(fault);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown decorator \"", name, "\"; known are throttle, fault"));
}

}  // namespace lamina::transport
