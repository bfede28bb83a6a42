// SPDX-License-Identifier: Apache-2.0
//
// ReadsSeen: what a measurement of several turns has seen of the host's reads. On a host that is
// shared they have two speeds or more, which last for seconds to minutes: turns with slow reads and
// turns with fast ones are then two measurements, of which neither is noise of the other.
//
// Threading: plain values.   Determinism: pure functions.

#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace lamina::compute_node {

// Reads are alike where the fastest are no faster than this multiple of the slowest.
inline constexpr double kReadsAlike = 1.2;

bool ReadsAlike(double a, double b);

struct ReadsSeen {
  double low = 0;   // The lowest of all,
  double high = 0;  // and the highest.
  // Which turns belong together, as indices that ascend: all of them; or where reads differ those
  // that are nearer to the lowest, by factors, and behind them those nearer to the highest.
  std::vector<std::vector<size_t>> groups;
};

// What turns with these reads have seen. Of two groups one of fewer than `group_min` turns is left
// out: too few to be more than a moment in which something else ran. Where reads are 0, not known,
// all turns belong together.
// Requires: at least one turn; reads >= 0.
ReadsSeen SeenIn(absl::Span<const double> reads, size_t group_min);

// Returns the middle value, of an even number the lower of both. Requires: not empty.
double LowerMedian(std::vector<double> values);

// Returns the middle value, of an even number the higher of both. Requires: not empty.
double UpperMedian(std::vector<double> values);

}  // namespace lamina::compute_node
