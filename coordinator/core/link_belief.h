// SPDX-License-Identifier: Apache-2.0
//
// LinkBelief: what is believed of a link: it was measured once, when the epoch began, perhaps at a
// bad moment, and each exchange over it since bounds it (telemetry/fastest_exchange.h), and so does
// what was fetched over it (telemetry/fetched_bandwidth.h).
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
  // For so long rows have hardly waited for what came (FetchedBandwidth::unbounded_seconds()).
  double fetched_unbounded_seconds = 0;
};

// One way, in seconds: the measured one, but no more than half of an exchange.
double BelievedLatency(const KnownLink& link);

// The measured one, but no less than an exchange had, or than what came of K and V. Requires: a
// measured one above 0.
double BelievedBandwidth(const KnownLink& link);

// What comes over the link when K and V are fetched: as believed above, but within the bounds by
// such use, which knows a link that has become slower too. Where rows hardly wait for the link it
// may be faster than anything has shown, and a minute of that doubles what is believed, up to 64
// times and to the upper bound: whoever splits work by it then sends more over the link, until rows
// wait for it. Requires: a measured one above 0.
double FetchBandwidth(const KnownLink& link);

// Over all of a node's links together, without those that were not measured. Rows that wait for one
// link cannot wait for the others, so that none is believed to be faster for not being waited for.
double FetchBandwidthOfAll(absl::Span<const KnownLink> links);

// For each link what is odd about it, in words; empty for most. A link that was measured several
// times worse than it was used; one that is still far slower than the fastest of its kind, of
// shared memory also far slower than that is anywhere. Links that are slowed down on purpose, by a
// decorator, are never odd.
std::vector<std::string> OddLinks(absl::Span<const KnownLink> links);

}  // namespace lamina::core
