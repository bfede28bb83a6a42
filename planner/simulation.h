// SPDX-License-Identifier: Apache-2.0
//
// Simulate: a fleet of like cells behind a router, in virtual time: real schedulers, the cost
// model's times, and requests that arrive one by one. A request goes to the cell with the fewest
// tokens still to be computed, of equal ones to the first; where cells keep prefixes, tokens of one
// that the cell had before count as computed.
//
// Threading: one thread, pure.   Determinism: same arguments, same result, to the bit.
// Cost: events in proportion to steps times layers; memory to requests, and to what is in flight.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cost/token_price.h"
#include "planner/arrivals.h"
#include "planner/request.h"
#include "planner/sim_cell.h"

namespace lamina::planner {

struct SimFleet {
  SimCellSpec cell;
  uint32_t cells = 1;
  double other_price = 0;  // Per hour: spares, and whatever no node's price has.
};

struct SimOptions {
  uint64_t seed = 0;
  // Requests at the beginning, as a share of all, that find the fleet emptier than later ones do;
  // they are answered and not counted. Those that come at the time of the last one are counted.
  double warm_up = 0.1;
  uint64_t events_max = 2'000'000'000;
  // Where it is given, the run ends as soon as so many of the counted requests have missed it that
  // its share cannot keep it any more.
  std::optional<Slo> give_up_beyond = {};
};

// What was counted. Times in seconds, sorted.
struct SimResult {
  // The run ended early (SimOptions::give_up_beyond), and nothing else was counted.
  bool gave_up = false;
  uint64_t requests = 0;
  uint64_t answered = 0;
  uint64_t refused = 0;  // The queue was full, or no cell could ever hold them.
  uint64_t failed = 0;   // Ended by losses of nodes.
  // From the first counted arrival to the last one, or to the last answer where they come at once;
  // figures are of these.
  double seconds = 0;
  double tokens_per_second = 0;
  double requests_per_second = 0;  // Requests offered in a second.
  double tokens_asked = 0;         // Generated tokens that these ask for in a second.
  // Generated tokens of the requests that were answered, and the time from the first counted
  // arrival to the last of these answers: what `lamina bench` counts by, unlike the figures above.
  uint64_t answer_tokens = 0;
  double answer_seconds = 0;
  uint64_t input_tokens = 0;   // Prompt tokens computed in `seconds`.
  uint64_t cached_tokens = 0;  // Prompt tokens found computed.
  std::vector<float> ttft;
  std::vector<float> tpot;       // Mean of each request with two tokens or more.
  std::vector<float> ttft_each;  // By request, unsorted: infinite where there was no answer.
  std::vector<float> tpot_each;  // By request, unsorted: 0 where there was one token only.
  cost::TokenBill bill;          // What `seconds` cost.
  // Shares of the whole run for which nodes were busy, in the mean.
  double compute_busy = 0;
  double memory_busy = 0;
  double coordinator_busy = 0;
  uint64_t preemptions = 0;
  uint64_t nodes_lost = 0;
  uint64_t epochs = 0;
  uint64_t events = 0;
  Nanos ended = 0;  // When the last request was answered.
};

// Tokens of the blocks in which a fleet keeps prefixes: where requests are many, as many times
// `block_tokens` as change nothing of what is found of the prefixes they share, since a block takes
// memory and time. Preempted sequences then find a block less of their own tokens. With failures
// `block_tokens`, since all that ran finds its own tokens then.
uint32_t KeptBlockTokens(const std::vector<TraceRequest>& requests, const SimFailures& failures,
                         uint32_t block_tokens);

// Requires: requests in the order of their arrival.
// Errors: kInvalidArgument    no requests.
//         kResourceExhausted  more events than events_max.
absl::StatusOr<SimResult> Simulate(const SimFleet& fleet, const std::vector<TraceRequest>& requests,
                                   const SimOptions& options);

// The value that a share of all values does not exceed, by the nearest rank; 0 of none.
double PercentileOf(const std::vector<float>& sorted, double share);

// Share of the counted requests whose TTFT and TPOT both hold.
double ShareWithin(const SimResult& result, const Slo& slo);

}  // namespace lamina::planner
