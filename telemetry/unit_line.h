// SPDX-License-Identifier: Apache-2.0
//
// UnitLine: seconds of a worker's units as a straight line over their size.

#pragma once

#include <atomic>

#include "common/line_fit.h"

namespace lamina::telemetry {

// The line of a worker's units, written by the worker alone and read by others.
struct UnitLine {
  std::atomic<double> fixed{0};
  std::atomic<double> slope{0};
  void Set(const LineFit::Values& seconds) {
    fixed.store(seconds.fixed, std::memory_order_relaxed);
    slope.store(seconds.slope, std::memory_order_relaxed);
  }
};

}  // namespace lamina::telemetry
