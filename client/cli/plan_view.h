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

// How the best plan's price of a request follows prices, bandwidths and lengths.
Json SensitivityToJson(const std::vector<planner::Sensitivity>& results);
std::string SensitivityText(const std::vector<planner::Sensitivity>& results);

// Cost of a request against the mean time per token, as one chart in SVG.
std::string ParetoSvg(const planner::Problem& problem, const planner::Pareto& pareto);

}  // namespace lamina::cli
