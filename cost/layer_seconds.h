// SPDX-License-Identifier: Apache-2.0
//
// Seconds that one attention layer of a step takes, from times that nodes have measured while they
// served: over lanes, and over a link that rows cross in chunks.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

namespace lamina::cost {

// Mean times of one lane's unit, in seconds, as straight lines over its size.
struct LaneCosts {
  double slice_fixed = 0;          // A slice on a replica, the step's tail spread over its slices.
  double slice_per_row = 0;        // Added for each row of the lane.
  double attention_fixed = 0;      // An attention on the pool of memory nodes.
  double attention_per_token = 0;  // Added for each token of the lane's context.
  uint32_t replicas = 1;
  double busiest_share = 1;  // Share of a replica's slices on the busiest of its stages.
  bool measured = false;     // Else the others mean nothing.
};

// What runs, spread evenly over lanes.
struct LaneWork {
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
};

// Seconds that one layer of all rows takes with `lanes` lanes: the longest of what a replica, the
// pool, and one lane after itself need.
double LayerSeconds(const LaneCosts& costs, const LaneWork& work, uint32_t lanes);

// What the nodes of a cluster have measured of their units, as straight lines over rows (compute
// nodes) and over tokens of context (memory nodes). Zeros: nothing yet.
struct UnitTimes {
  double fixed = 0;
  double slope = 0;
};
struct PoolTimes {
  std::vector<UnitTimes> compute;  // Nodes for prefill only measure none, and do not count.
  std::vector<UnitTimes> memory;   // Empty: none attend, and lanes hide nothing.
  uint32_t replicas = 1;
  uint32_t shards = 1;        // Shards of each replica: a lane's attention comes in as many parts.
  bool heads_spread = false;  // Each memory node computes its heads of all tokens.
  double busiest_share = 1;
};

// The mean slice of the compute nodes, and the attention of the memory nodes together: they share a
// lane's context by their speed, or, with heads spread, wait for the slowest. Not `measured` as
// long as either pool has measured nothing, unless that of memory nodes is empty.
LaneCosts LaneCostsOf(const PoolTimes& pools);

// What is known of the way between compute and memory nodes.
struct LinkCosts {
  double seconds_per_row = 0;      // q, k, v out and the output back, at the slowest link.
  double seconds_per_message = 0;  // One way, of an empty one.
  bool measured = false;           // Else these mean nothing.
  uint32_t kv_heads = 1;           // The fewest of any window: no more chunks of heads than that,
  uint32_t threads = 1;            // nor such as leave threads of a memory node without work.
};

// Seconds of one layer, from the first row leaving to the last output arriving, where rows leave in
// `chunks` chunks: each beyond the first costs a message, and all but a `chunks`-th of the shorter
// of link and attention is hidden behind the other. Requires: chunks >= 1.
double ExchangeSeconds(uint32_t chunks, double link, double attention, double message);

}  // namespace lamina::cost
