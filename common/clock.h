// SPDX-License-Identifier: Apache-2.0
//
// Clock: time as an argument, so that simulation can supply it.

#pragma once

#include <cstdint>

namespace lamina {

// Nanoseconds since an arbitrary start, never going back.
using Nanos = int64_t;

constexpr Nanos Micros(int64_t n) { return n * 1'000; }
constexpr Nanos Millis(int64_t n) { return n * 1'000'000; }
constexpr Nanos Seconds(int64_t n) { return n * 1'000'000'000; }
constexpr double ToSeconds(Nanos t) { return static_cast<double>(t) * 1e-9; }

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos Now() const = 0;
};

// The monotonic clock of the host. Lives for the whole process.
const Clock& RealClock();

}  // namespace lamina
