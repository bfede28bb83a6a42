// SPDX-License-Identifier: Apache-2.0
//
// LinkBelief: what is believed of a link: it was measured once, when the epoch began, perhaps at a
// bad moment, and each exchange over it since bounds it (telemetry/fastest_exchange.h).
//
// Determinism: pure functions.

#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace lamina::core {

struct KnownLink {
  std::string path;  // What carries the data: "shm", "ucx tcp/eth0".
  // What the link was measured as when the epoch began.
  double latency_seconds = 0;
  double bytes_per_second = 0;
  // The fastest exchange of late bounds both; 0 says that there was none.
  double exchange_seconds = 0;
  double exchange_bytes_per_second = 0;
  // What came of K and V had so many bytes a second at least and at most, of late; 0: not known.
  double fetched_bytes_per_second_least = 0;
  double fetched_bytes_per_second_most = 0;
};

// One way, in seconds: the measured one, but no more than half of an exchange.
double BelievedLatency(const KnownLink& link);

// The measured one, but no less than an exchange had. Requires: a measured one above 0.
double BelievedBandwidth(const KnownLink& link);

// What comes over the link when K and V are fetched: as believed above, but within the bounds by
// such use, which knows a link that has become slower too. Requires: a measured one above 0.
double FetchBandwidth(const KnownLink& link);

// For each link what is odd about it, in words; empty for most. A link that was measured several
// times worse than it was used; one that is still far slower than the fastest of its kind, of
// shared memory also far slower than that is anywhere. Links that are slowed down on purpose, by a
// decorator, are never odd.
std::vector<std::string> OddLinks(absl::Span<const KnownLink> links);

}  // namespace lamina::core
