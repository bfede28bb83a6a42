// SPDX-License-Identifier: Apache-2.0
//
// What stands between the brackets of an emulated link, "throttle(bandwidth=1GiB,latency=20us)",
// so that a cluster file is refused where a transport would refuse it.
// See: transport/decorators/link_model.h.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina {

// Slower links carry no step before nodes take each other for dead.
inline constexpr uint64_t kLinkBandwidthLeast = 1 << 10;
inline constexpr Nanos kLinkDelayMost = Seconds(60);

// One link for all peers: Puts leave one after the other, in order. A bucket that holds nothing:
// an idle link saves no bandwidth for later.
struct ThrottleOptions {
  uint64_t bytes_per_second = 0;  // 0: as fast as the link below.
  Nanos latency = 0;
  Nanos jitter = 0;  // Up to so much more, drawn for each Put.
  uint64_t seed = 1;
  std::string bus;  // The bus whose bandwidth it shares (shared_bus.h); empty: it has its own.
};

// Puts to different regions may overtake each other, where no strong signal forbids it.
struct FaultOptions {
  Nanos delay = 0;     // Up to so much, drawn for each Put.
  double drop = 0;     // Share of Puts that vanish.
  double corrupt = 0;  // Share of Puts whose head arrives with a bit flipped.
  uint64_t cut = 0;    // From this Put on, all vanish; 0: never.
  uint64_t seed = 1;
};

// `text` is what stands between the brackets.
// Errors: kInvalidArgument  an unknown option, one given twice, or a value out of its range; says
//         what there is.
absl::StatusOr<ThrottleOptions> ParseThrottle(absl::string_view text);
absl::StatusOr<FaultOptions> ParseFault(absl::string_view text);

// A bus has two directions, which share nothing: the URI of a throttled transport with the name of
// its bus lengthened by the direction, "to" the compute node or "from" it. Other URIs as they are.
std::string WithBusDirection(absl::string_view uri, absl::string_view direction);

}  // namespace lamina
