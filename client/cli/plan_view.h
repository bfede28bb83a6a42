// SPDX-License-Identifier: Apache-2.0
//
// Plans for people and for programs.

#pragma once

#include <string>
#include <vector>

#include "client/cli/command.h"
#include "planner/optimiser.h"
#include "planner/sensitivity.h"

namespace lamina::cli {

// `today` (2026-11-24) marks prices that are older than cost::kPriceDaysMax days.
Json PlansToJson(const planner::Problem& problem, const planner::Plans& plans,
                 const std::string& today);

std::string PlansText(const planner::Problem& problem, const planner::Plans& plans,
                      const std::string& today);

// Why the second of the list lost against the first; a sentence where there is no second.
std::string ExplainText(const planner::Problem& problem, const planner::Plans& plans);

// How the price of a request of the formulas' best plan follows prices, bandwidths and lengths:
// a list of quantities, and the plan that they are of.
Json SensitivityToJson(const planner::SensitivityStudy& study);
Json SensitivityPlanToJson(const planner::SensitivityStudy& study);
std::string SensitivityText(const planner::SensitivityStudy& study);

// A sentence on the plans that run where the first of them stays behind the load or the SLO: what
// is nearest, and what limits it. Empty otherwise.
std::string ShortfallText(const planner::Problem& problem, const planner::Plans& plans);

// Cost of a request against the mean time per token, as one chart in SVG.
std::string ParetoSvg(const planner::Problem& problem, const planner::Pareto& pareto);

}  // namespace lamina::cli
