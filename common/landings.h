// SPDX-License-Identifier: Apache-2.0
//
// Landings: when what a NIC wrote into a device's memory became visible there, as a thread tells
// that looks at the host's words, has the device flush, and raises the device's.
//
// Implementation: transport/outbox/landing_proxy.h. Users: telemetry/landing_spans.h.

#pragma once

#include <cstdint>
#include <optional>

#include "common/clock.h"

namespace lamina {

// By this host's clock.
struct LandingTimes {
  uint32_t word = 0;
  uint64_t value = 0;
  Nanos unraised = 0;  // The last moment at which the host's word was known not to show the value.
  Nanos landed = 0;    // The device's word shows it.
};

class Landings {
 public:
  virtual ~Landings() = default;

  // Whether to note times from now on; not at first. By the thread that takes them.
  virtual void NoteTimes(bool wanted) = 0;

  // The times of one more landing, in their order; none: there is no other yet. Some hundred that
  // nobody takes are kept, the later ones are dropped. Never waits.
  virtual std::optional<LandingTimes> TakeTimes() = 0;
};

}  // namespace lamina
