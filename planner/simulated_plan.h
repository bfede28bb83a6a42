// SPDX-License-Identifier: Apache-2.0
//
// SimulatePlans: what plans do with queues, unequal requests and the coordinator's own time: the
// best few of the formulas' plans, simulated. A plan of one pool is as many cells as it has
// replicas, behind a router; one of two pools is one cell.
//
// Threading: pure.   Determinism: same problem and seed, same figures.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/optimiser.h"
#include "planner/simulation.h"

namespace lamina::planner {

struct PlanSimulationOptions {
  uint32_t plans = 3;          // The most plans of each list.
  uint64_t requests = 20'000;  // The most requests of one run.
  uint64_t seed = 0;
  SimFailures failures;
  // Instead of the load's, by arrival: at its own rate. Goodput stretches it.
  std::vector<TraceRequest> trace;
};

// The cells of a plan, with the limits that its cluster file has.
SimFleet FleetOf(const Problem& problem, const Configuration& configuration,
                 const Evaluation& evaluation, const SimFailures& failures);

// Errors: kUnimplemented      the policy fetches K and V: no scheduler of this software does that.
//         kInvalidArgument    all requests of the trace arrive at one instant.
//         kResourceExhausted  of Simulate().
absl::StatusOr<SimulatedFigures> SimulatePlan(const Problem& problem, const Plan& plan,
                                              const PlanSimulationOptions& options);

// Optimise() with the best plans simulated and in the order of what the simulation says: those that
// carry the rate first, by price; without a rate by price of a request. Plans of two pools are
// simulated with fewer lanes too, and keep the number that does best. Where none of the runnable
// ones carries the rate, it looks again for plans with a greater bound (Problem::margin), a few
// times.
// Errors: as of Optimise() and SimulatePlan().
absl::StatusOr<Plans> OptimiseAndSimulate(Problem& problem, size_t count, const WhyNot& why_not,
                                          const PlanSimulationOptions& options);

}  // namespace lamina::planner
