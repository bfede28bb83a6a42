// SPDX-License-Identifier: Apache-2.0
//
// FittedSeconds: times as a straight line over their size, and how much of their variance it
// explains.

#pragma once

#include <atomic>

namespace lamina::telemetry {

// All zero: nothing has been fitted.
struct FittedSeconds {
  double fixed = 0;
  double slope = 0;
  double r_squared = 0;
  bool fitted() const { return fixed + slope > 0; }
  // A line that explains less of the times' variance is no better than their mean.
  bool explains() const { return fitted() && r_squared >= 0.8; }
  friend bool operator==(const FittedSeconds&, const FittedSeconds&) = default;
};

// Written by one thread, read by others, which may see parts of two lines that followed each other.
class SharedFit {
 public:
  void Set(const FittedSeconds& line) {
    fixed_.store(line.fixed, std::memory_order_relaxed);
    slope_.store(line.slope, std::memory_order_relaxed);
    r_squared_.store(line.r_squared, std::memory_order_relaxed);
  }
  FittedSeconds Get() const {
    return {.fixed = fixed_.load(std::memory_order_relaxed),
            .slope = slope_.load(std::memory_order_relaxed),
            .r_squared = r_squared_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<double> fixed_{0};
  std::atomic<double> slope_{0};
  std::atomic<double> r_squared_{0};
};

}  // namespace lamina::telemetry
