// SPDX-License-Identifier: Apache-2.0
//
// LinkModel: what a decorated link does to each Put. Throttle makes it slow, Fault makes it fail.
//
//   throttle(bandwidth=1GiB,latency=20us,jitter=5us,seed=1)+shm://
//   throttle(bandwidth=1GiB,bus=pcie0)+shm://
//   fault(delay=100us,drop=0.01,corrupt=0.01,cut=1000,seed=1)+ucx://
//
// Threading: one thread. A model is a function of its options, of the times and of the sizes.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/link_options.h"
#include "common/philox.h"
#include "common/shared_bus.h"

namespace lamina::transport {

// What becomes of one Put.
struct PutFate {
  Nanos due = 0;         // When it is handed to the link below.
  bool dropped = false;  // It never is; its signal is not raised.
  bool corrupt = false;  // One bit of its first 16 bytes is flipped.
};

class LinkModel {
 public:
  virtual ~LinkModel() = default;
  virtual PutFate Judge(uint64_t bytes, Nanos now) = 0;
};

class Throttle final : public LinkModel {
 public:
  // `bus`: of options.bus; null without one.
  explicit Throttle(const ThrottleOptions& options, std::shared_ptr<SharedBus> bus = nullptr);
  PutFate Judge(uint64_t bytes, Nanos now) override;

 private:
  const ThrottleOptions options_;
  Prng prng_;
  const std::shared_ptr<SharedBus> bus_;
  double free_at_ = 0;  // In nanoseconds; a fraction of one is kept.
  Nanos last_due_ = 0;
};

class Fault final : public LinkModel {
 public:
  explicit Fault(const FaultOptions& options);
  PutFate Judge(uint64_t bytes, Nanos now) override;

 private:
  const FaultOptions options_;
  Prng prng_;
  uint64_t puts_ = 0;
};

// `name` is "throttle" or "fault"; `options` what stands between its brackets.
// Errors: kInvalidArgument  unknown name, option or value; lists those there are.
absl::StatusOr<std::unique_ptr<LinkModel>> MakeLinkModel(absl::string_view name,
                                                         absl::string_view options);

}  // namespace lamina::transport
