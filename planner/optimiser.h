// SPDX-License-Identifier: Apache-2.0
//
// Optimise: the best plans for a problem. Hardware is looked at in the order of the best that it
// could do; what cannot come before the plans that were found is left out, and so are arrangements
// of what is looked at.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/evaluation.h"

namespace lamina::planner {

// What the simulator says of a plan (simulated_plan.h).
struct SimulatedFigures {
  double rate = 0;       // Requests a second that came; the latencies and prices are at this rate.
  double goodput = 0;    // The most requests a second of which the SLO's share keeps the latencies.
  bool carries = false;  // The load's rate is within it.
  double tokens_per_second = 0;
  double ttft_p50 = 0;  // Seconds;
  double ttft_at = 0;   // at the SLO's percentile.
  double tpot_p50 = 0;
  double tpot_at = 0;
  // Prices of 1,000,000 tokens, at the rate times the mean load of the catalogue, as in Evaluation.
  double input_price = 0;
  double output_price = 0;
  double cached_price = 0;
  double hit = 0;  // Share of prompt tokens that were found.
  double compute_busy = 0;
  double memory_busy = 0;
  double coordinator_busy = 0;
  uint64_t requests = 0;       // Counted, of one run.
  bool drawn_lengths = false;  // Lengths have a spread that is assumed (arrivals.h).
};

struct Plan {
  Configuration configuration;
  Evaluation evaluation;
  std::string why_not;  // Why this software does not run it; empty where it does.
  std::optional<SimulatedFigures> simulated = {};
  // Why it has no figures of a simulation, where others of its list have; empty where it has some.
  std::string why_not_simulated = {};
};

struct Plans {
  // The best arrangement of each choice of machines, best first.
  std::vector<Plan> runnable;
  std::vector<Plan> others;  // Plans that this software does not run.
  // The best plan of one pool alone: the homogeneous baseline.
  std::vector<Plan> one_pool;
  uint64_t hardware = 0;   // Choices of machines.
  uint64_t looked_at = 0;  // Choices looked at by the formulas; a bound ruled out the others.
};

// Both find the same plans; the second looks at all.
enum class Search : uint8_t { kBounded, kExhaustive };

// Why this software does not run a configuration; empty where it does.
using WhyNot = std::function<std::string(const Configuration&, const Evaluation&)>;

// Up to `count` plans of each list, and up to `baselines` of one pool.
//
// Errors: kNotFound          no configuration within the budget, or none holds the model and the
//                            latencies: names the nearest one, and what limits it.
absl::StatusOr<Plans> Optimise(const Problem& problem, size_t count, const WhyNot& why_not,
                               Search search, size_t baselines = 1);

}  // namespace lamina::planner
