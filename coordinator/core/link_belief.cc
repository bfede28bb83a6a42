// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/link_belief.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace lamina::core {
namespace {

// Measured so many times worse than used: the measurement, not the link, was bad.
constexpr double kDisproved = 3;
// So many times the latency of the fastest link of its kind is far.
constexpr double kFar = 10;
// One way between two processes that poll, on a host that is not crowded. Assumed: 1 to 20 us were
// measured (docs/performance.md).
constexpr double kSharedMemorySeconds = 20e-6;
// A link that rows do not wait for is believed to be twice as fast after so many seconds of
// fetching, and so on, so many times at most: probes were up to 30 times too low.
constexpr double kDoublesInSeconds = 60;
constexpr double kDoublingsMost = 6;

bool IsSlowedDown(const KnownLink& link) { return absl::StrContains(link.path, "(decorated)"); }

// Links that should be alike: by shm, by ucx over one of its transports, by verbs.
std::string KindOf(const KnownLink& link) { return link.path.substr(0, link.path.find('/')); }

std::string Disproof(const KnownLink& link) {
  if (link.latency_seconds > kDisproved * BelievedLatency(link)) {
    return absl::StrFormat(
        "measured as %.1f us when the epoch began, a bad moment: exchanges took %.1f us there and "
        "back since",
        link.latency_seconds * 1e6, link.exchange_seconds * 1e6);
  }
  if (const double believed = BelievedBandwidth(link);
      believed > kDisproved * link.bytes_per_second) {
    return absl::StrFormat(
        "measured as %.2f GB/s when the epoch began, a bad moment: %s had %.2f GB/s since",
        link.bytes_per_second * 1e-9,
        believed > link.exchange_bytes_per_second ? "K and V that came" : "exchanges",
        believed * 1e-9);
  }
  return "";
}

}  // namespace

double BelievedLatency(const KnownLink& link) {
  return link.exchange_seconds > 0 ? std::min(link.latency_seconds, link.exchange_seconds / 2)
                                   : link.latency_seconds;
}

double BelievedBandwidth(const KnownLink& link) {
  return std::max(
      {link.bytes_per_second, link.exchange_bytes_per_second, link.fetched_bytes_per_second_least});
}

double FetchBandwidth(const KnownLink& link) {
  const double doublings =
      std::min(link.fetched_unbounded_seconds / kDoublesInSeconds, kDoublingsMost);
  const double believed = BelievedBandwidth(link) * std::exp2(doublings);
  return link.fetched_bytes_per_second_most > 0
             ? std::min(believed, link.fetched_bytes_per_second_most)
             : believed;
}

double FetchBandwidthOfAll(absl::Span<const KnownLink> links) {
  double unbounded_seconds = std::numeric_limits<double>::infinity();
  for (const KnownLink& link : links) {
    if (link.fetched_bytes_per_second_least > 0) {  // Else nothing came over it that says anything.
      unbounded_seconds = std::min(unbounded_seconds, link.fetched_unbounded_seconds);
    }
  }
  double sum = 0;
  for (KnownLink link : links) {
    if (link.bytes_per_second > 0) {
      link.fetched_unbounded_seconds = std::min(link.fetched_unbounded_seconds, unbounded_seconds);
      sum += FetchBandwidth(link);
    }
  }
  return sum;
}

std::vector<std::string> OddLinks(absl::Span<const KnownLink> links) {
  std::map<std::string, double> fastest = {{"shm", kSharedMemorySeconds}};
  for (const KnownLink& link : links) {
    if (!IsSlowedDown(link)) {
      const double latency = BelievedLatency(link);
      const auto [kind, is_new] = fastest.try_emplace(KindOf(link), latency);
      kind->second = std::min(kind->second, latency);
    }
  }
  std::vector<std::string> odd;
  for (const KnownLink& link : links) {
    odd.push_back(IsSlowedDown(link) ? "" : Disproof(link));
    if (IsSlowedDown(link) || !odd.back().empty()) {
      continue;
    }
    // What has lasted for no time is not the measure of others.
    const double usual = std::max(fastest.at(KindOf(link)), 1e-6);
    if (BelievedLatency(link) > kFar * usual) {
      odd.back() = absl::StrFormat(
          "far from its kind, which takes %.1f us: a busy host, or another path", usual * 1e6);
    }
  }
  return odd;
}

}  // namespace lamina::core
