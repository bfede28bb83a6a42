// SPDX-License-Identifier: Apache-2.0
//
// Evaluate: what one configuration does under a load, in the steady state: by the cost model's
// formulas, without queues, variance or failures. Goodput is therefore a bound: no more requests a
// second than this keep the latencies in the mean.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cost/estimate.h"
#include "cost/step_cost.h"
#include "planner/configuration.h"

namespace lamina::planner {

// What keeps a configuration from decoding more rows at a time, or from any at all.
enum class Limit : uint8_t {
  kWeights,     // The weights do not fit into a compute node.
  kKvCapacity,  // K and V do not fit.
  kTpot,
  kTtft,
  kPrompts,     // Prompt replicas, or chunks of 8192 tokens, would not keep up with more rows.
  kRunningMax,  // limits.running_max allows 4096 sequences.
};

std::string LimitName(Limit limit);

// Where the figures behind an evaluation come from.
struct Basis {
  cost::Provenance dense = cost::Provenance::kMeasured;
  cost::Provenance attention = cost::Provenance::kMeasured;
  std::optional<cost::Provenance> network;  // None where nothing is carried.
  cost::Provenance capacity = cost::Provenance::kMeasured;
  cost::Provenance price = cost::Provenance::kMeasured;
};

cost::Provenance WorstOf(const Basis& basis);

struct Evaluation {
  bool feasible = false;  // Holds the model and a row in each lane, within the latencies.
  bool carries = false;   // Goodput reaches the load's rate, if it has one.
  double rows = 0;        // Sequences that decode at once, at most.
  cost::StepTimes times;  // At `rows`; where latencies are missed, at one row in each lane.
  cost::Estimate ttft;
  cost::Estimate tokens_per_second;  // Generated, at most.
  cost::Estimate goodput;            // Requests a second, at most.
  cost::Estimate price_per_hour;
  // Prices of 1,000,000 computed prompt tokens and of as many generated ones, at the rate that is
  // served: the load's rate, or the goodput if that is less, times the mean load of the catalogue.
  cost::Estimate input_price;
  cost::Estimate output_price;
  // Price of 1,000,000 prompt tokens that were found; 0 where none are. What attends to them, and
  // the slots that `rows` rows leave to prefixes nobody uses.
  cost::Estimate cached_price;
  double hit = 0;                   // Share of prompt tokens that are found: the load's, or 0.
  cost::Estimate tokens_per_price;  // Tokens a second for one unit of currency per hour.
  Limit limit = Limit::kKvCapacity;
  uint32_t chunk_tokens = 512;  // prefill.chunk_tokens
  Basis basis;

  // By how much the latencies are missed, or memory; at most 1 where it is feasible.
  double shortfall = 0;
};

Evaluation Evaluate(const Problem& problem, const Rates& rates, const Configuration& configuration);

// Machines of both kinds, with their spares.
cost::Estimate PricePerHour(const Problem& problem, const Hardware& hardware);

// Says which of two evaluations is the better plan. Plans that carry the rate come first, the
// cheapest before the others; those that do not come by goodput. Without a rate: by price of a
// request, and by goodput where that is 0. Returns below 0 where `a` is better, above 0 where `b`
// is, 0 where neither is.
struct Rank {
  bool carries = false;
  double cost = 0;  // Lower is better.
};
Rank RankOf(const Problem& problem, const Evaluation& evaluation);
int Compare(const Rank& a, const Rank& b);

// No configuration of this hardware ranks before this.
Rank BestPossibleRank(const Problem& problem, const Rates& rates, const Hardware& hardware);

// Evaluate() does not rank this configuration before this. It takes the time of one step, where
// Evaluate() searches for the most rows. Says nothing where the model was measured on the compute
// nodes: a measured curve may have more tokens a second at fewer rows.
Rank BestPossibleRank(const Problem& problem, const Rates& rates,
                      const Configuration& configuration);

}  // namespace lamina::planner
