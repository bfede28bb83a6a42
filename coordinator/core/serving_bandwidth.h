// SPDX-License-Identifier: Apache-2.0
//
// Serving bandwidth: how fast memory nodes attend, by which new sequences and heads are shared out.
// At first what each node measured when it started, plain reads; once all have attended for a
// while, what their attentions reach, which differs from reads where a kernel computes more than it
// reads, or where other programs run at the same time.
//
// Determinism: a pure function.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina::core {

// What a node has reached of late, from its counters.
class AttentionRate {
 public:
  // Totals since the node started: bytes of K and V read, and seconds in attention.
  void Update(uint64_t bytes, double seconds);

  // 0 until a second of attention has been seen.
  double bytes_per_second() const { return seen_ < kSecondsMin ? 0 : bytes_ / seconds_; }

 private:
  static constexpr double kSecondsMin = 1;
  // What was measured so many seconds of attention ago counts a third.
  static constexpr double kMemorySeconds = 10;

  uint64_t bytes_total_ = 0;
  double seconds_total_ = 0;
  double bytes_ = 0;  // Recent attention: bytes read, and the seconds that it took.
  double seconds_ = 0;
  double seen_ = 0;
};

struct NodeSpeed {
  std::string name;
  double at_start = 0;   // Bytes a second that it read when it started.
  double attending = 0;  // AttentionRate.
};

struct ServingBandwidth {
  std::vector<double> bytes_per_second;  // One entry for each node, comparable with each other.
  bool measured = false;  // All were measured by their attentions; else each when it started.
  std::string words;      // "by attention of late m0 62%, m1 38%"; empty before.
};

// The two kinds of figures are not mixed: a node would gain or lose by the kind alone.
ServingBandwidth BandwidthOf(const std::vector<NodeSpeed>& nodes);

}  // namespace lamina::core
