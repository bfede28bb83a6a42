// SPDX-License-Identifier: Apache-2.0
//
// LineFit: a straight line through what was measured of late: time over size.
//
// Sizes fall into buckets, a new one at each doubling; each bucket keeps means that forget, so one
// size that comes all the time does not drown the others. The line is that of least squares through
// the buckets, which weigh as many samples as they remember. A bucket that has not come for long
// weighs less and less, and never nothing: what comes now says how high the line lies, and old
// buckets how steep it is, which no single size can say (ADR 0259).
//
// Threading: one thread.   Memory: fixed.   Cost: Add() O(1), Line() O(buckets).

#pragma once

#include <array>
#include <cstdint>

namespace lamina {

class LineFit {
 public:
  struct Values {
    double fixed = 0;  // At size 0; not negative.
    double slope = 0;  // For each unit of size; not negative.
  };

  // Requires: size >= 0, value >= 0.
  void Add(double size, double value);

  bool empty() const { return samples_ == 0; }

  // With sizes of one bucket only: all of it is slope if `proportional`, else all is fixed. A
  // proportional line comes to the first in time where the other buckets are old.
  // Requires: not empty().
  Values Line(bool proportional) const;

 private:
  struct Bucket {
    double size = 0;
    double value = 0;
    double samples = 0;   // What the means weigh, when the last one came; up to kMemory.
    uint64_t latest = 0;  // The number of its last sample among all.
  };
  // How many samples it weighs now.
  double WeightOf(const Bucket& bucket) const;

  std::array<Bucket, 33> buckets_ = {};
  uint64_t samples_ = 0;
};

}  // namespace lamina
