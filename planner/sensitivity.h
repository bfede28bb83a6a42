// SPDX-License-Identifier: Apache-2.0
//
// Sensitivity: how far the best plan depends on what is not known well: prices, bandwidths, the
// load's lengths and its hit rate, each changed by itself. And the plans between latency and cost.
//
// By the formulas alone, without simulation.
//
// Threading: pure.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/optimiser.h"

namespace lamina::planner {

// By how much a quantity is changed, down and up.
inline constexpr double kSensitivitySpan = 0.25;

struct Sensitivity {
  std::string what;  // "price of h100-1".
  double value = 0;  // As it stands, in `unit`.
  std::string unit;
  std::string by;  // Where the value is from: "load", or a provenance's name.
  // Cost of a request, best plan's over what it is now, at the lower and the upper value; and the
  // plans' machines there. Empty where no plan fits. `basis`: the worst of both plans' figures.
  struct End {
    double cost = 0;
    std::string machines;
    cost::Provenance basis = cost::Provenance::kMeasured;
  };
  End lower;
  End upper;
  cost::Provenance basis = cost::Provenance::kMeasured;  // The worst of the figures of all plans.
  // The value nearest to the present one at which other machines win; beyond the span none is
  // looked for.
  std::optional<double> winner_changes_at;
  std::string new_winner;
};

// All is about one plan: the best by the formulas, of which simulations may think less.
struct SensitivityStudy {
  std::string machines;
  std::string arrangement;
  bool is_first = true;  // It has the machines of the first of the plans that the study came with.
  std::vector<Sensitivity> quantities = {};
};

// Varies what the formulas' best plan depends on: a runnable one where `plans` has one that is.
// Requires: Optimise() or OptimiseAndSimulate() has made `plans` of the problem.
// Errors: those of Optimise(), for the unchanged problem.
absl::StatusOr<SensitivityStudy> SensitivityOf(const Problem& problem, const Plans& plans,
                                               const WhyNot& why_not);

// The cheapest plan for a mean time per token, over a range of such times; only those that no other
// beats in both.
struct ParetoPoint {
  double tpot_seconds = 0;
  double cost = 0;  // Cost of a request.
  std::string machines;
  cost::Provenance basis = cost::Provenance::kMeasured;  // The worst of the plan's figures.
};
struct Pareto {
  std::vector<ParetoPoint> runnable;
  std::vector<ParetoPoint> others;
  std::vector<ParetoPoint> one_pool;
};
Pareto ParetoOf(const Problem& problem, const WhyNot& why_not);

}  // namespace lamina::planner
