// SPDX-License-Identifier: Apache-2.0
//
// Estimate: a number the cost model computes with, and how far it can be trusted.
//
// The provenance of a result is the worst of its inputs: a time that comes from a measured
// bandwidth and an assumed utilisation is assumed.
//
// Threading: values.

#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina::cost {

// A count as a number to compute with.
constexpr double Real(uint32_t count) { return count; }

// From the best to the worst. kScaled was measured of another model or another part of a step, and
// is taken to grow with bytes and operations.
enum class Provenance : uint8_t { kMeasured, kDatasheet, kScaled, kAssumed };

constexpr Provenance Worse(Provenance a, Provenance b) { return std::max(a, b); }

constexpr absl::string_view ProvenanceName(Provenance provenance) {
  switch (provenance) {
    case Provenance::kMeasured:
      return "measured";
    case Provenance::kDatasheet:
      return "datasheet";
    case Provenance::kScaled:
      return "scaled";
    case Provenance::kAssumed:
      return "assumed";
  }
  return "?";
}

// Plain numbers in these operators are facts of the model or of the plan (shapes, counts), which
// need no trust.
struct Estimate {
  double value = 0;
  Provenance provenance = Provenance::kMeasured;
};

constexpr Estimate operator+(Estimate a, Estimate b) {
  return {a.value + b.value, Worse(a.provenance, b.provenance)};
}
constexpr Estimate operator-(Estimate a, Estimate b) {
  return {a.value - b.value, Worse(a.provenance, b.provenance)};
}
constexpr Estimate operator*(Estimate a, Estimate b) {
  return {a.value * b.value, Worse(a.provenance, b.provenance)};
}
constexpr Estimate operator/(Estimate a, Estimate b) {
  return {a.value / b.value, Worse(a.provenance, b.provenance)};
}
constexpr Estimate operator*(double a, Estimate b) { return {a * b.value, b.provenance}; }
constexpr Estimate operator/(double a, Estimate b) { return {a / b.value, b.provenance}; }
constexpr Estimate operator/(Estimate a, double b) { return {a.value / b, a.provenance}; }

constexpr Estimate Max(Estimate a, Estimate b) {
  return {std::max(a.value, b.value), Worse(a.provenance, b.provenance)};
}
constexpr Estimate Min(Estimate a, Estimate b) {
  return {std::min(a.value, b.value), Worse(a.provenance, b.provenance)};
}

}  // namespace lamina::cost
