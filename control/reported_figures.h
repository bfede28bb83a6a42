// SPDX-License-Identifier: Apache-2.0
//
// ReportedFigures: times, rates and shares that a node has reported, as far as they can be such.
// One that cannot counts as not measured, so that what is computed from it for the whole cluster
// (lanes, splits, policies) does not come out as no number.
//
// Threading: plain values.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina::control {

class ReportedFigures {
 public:
  // The figure; 0 for one that is negative, infinite or no number. `name` is that of its field.
  double Take(absl::string_view name, double figure);
  // The figure, which may be negative (R squared of a line that explains nothing); 0 for one that
  // is infinite or no number.
  double TakeSigned(absl::string_view name, double figure);

  // The first of those that count as not measured: "unit_seconds_slope nan". Empty: there is none.
  const std::string& refused() const { return refused_; }

 private:
  double Refuse(absl::string_view name, double figure);

  std::string refused_;
};

}  // namespace lamina::control
