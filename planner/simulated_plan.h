// SPDX-License-Identifier: Apache-2.0
//
// SimulatePlans: what plans do with queues, unequal requests and the coordinator's own time: the
// best few of the formulas' plans, simulated. A plan of one pool is as many cells as it has
// replicas, behind a router; one of two pools is one cell.
//
// Threading: pure.   Determinism: same problem and seed, same figures.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/optimiser.h"
#include "planner/simulation.h"

namespace lamina::planner {

struct PlanSimulationOptions {
  uint32_t plans = 3;          // The most plans of each list, and baselines that are tried.
  uint64_t requests = 20'000;  // The most requests of one run.
  uint64_t seed = 0;
  SimFailures failures;
  // Instead of the load's, by arrival: at its own rate. Goodput stretches it.
  std::vector<TraceRequest> trace;
};

// The cells of a plan, with the limits that its cluster file has.
SimFleet FleetOf(const Problem& problem, const Configuration& configuration,
                 const Evaluation& evaluation, const SimFailures& failures);

// Errors: kUnimplemented      the policy sends K and V to compute nodes: no simulated step does
// that.
//         kInvalidArgument    all requests of the trace arrive at one instant.
//         kResourceExhausted  of Simulate().
absl::StatusOr<SimulatedFigures> SimulatePlan(const Problem& problem, const Plan& plan,
                                              const PlanSimulationOptions& options);

// Optimise() with the best plans simulated and in the order of what the simulation says: those that
// carry the rate first, by price; without a rate by price of a request. Plans that no rate keeps
// within the SLO come behind them, the nearest first, and then those that were not simulated, which
// say why. Plans of two pools are simulated with fewer lanes too, and keep the number that does
// best. Where none of the runnable ones carries the rate, it looks again for plans with a greater
// bound (Problem::margin), a few times; the problem keeps the margin of those that it returns.
// The baseline is the plan of one pool that does best in the simulation. It is looked for with
// greater margins as long as it does not carry the rate, whether or not others do.
// Errors: as of Optimise() and SimulatePlan().
absl::StatusOr<Plans> OptimiseAndSimulate(Problem& problem, size_t count, const WhyNot& why_not,
                                          const PlanSimulationOptions& options);

// How far the first of some plans stays behind what was asked for.
struct Shortfall {
  std::string limit;   // "TTFT", "TPOT", or "goodput" for both; by formula as of LimitName().
  double goodput = 0;  // Requests a second within the SLO, at most.
  // "simulated, it answers 1.20 requests/s within the SLO; at 5.00 requests/s TTFT limits it: ...".
  std::string text = {};
};

// What the first plan lacks: simulated, it keeps no rate or not the load's within the SLO; not
// simulated, its bound is below the load's rate. Nothing where it does what was asked for, or where
// there is no plan.
std::optional<Shortfall> ShortfallOf(const Problem& problem, const std::vector<Plan>& plans);

}  // namespace lamina::planner
