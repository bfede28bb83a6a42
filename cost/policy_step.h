// SPDX-License-Identifier: Apache-2.0
//
// PolicyStep: seconds of a decode step of each policy, by what the compute node measured when it
// started: with KV on the compute node (policy local), with attention on memory nodes, and with KV
// that memory nodes send to the compute node. Of several compute nodes, each of which has the whole
// model, the slowest counts (SlowestOf()).
//
// A step of `local`, with all cores of the compute node, of which each of R has a lane of rows / R:
//
//   (layers - 1) * slice(rows / R) + tail(rows / R) + their bytes of K and V / attention
//
// A step of `attend_remote` over n lanes of rows / n each, where D and A are what dense layers and
// attention of one lane take, in the memory nodes' cores and in those that are left to compute:
//
//   max(n * D / R, n * A, D + A), and with several lanes a part of the shorter side (kUnhidden)
//
// A step of the policies that fetch, of which one lane suffices, since the transfer of a layer's KV
// overlaps with the layer before: by the equations of kv_policies.h for each layer, with D and A on
// the threads that the compute node has while memory nodes have theirs; and the exchange.
//
// Attention and slices that share a memory are measured side by side, so that what they take from
// each other is in the figures; that memory nodes attend as fast as the compute node does with as
// much bandwidth, and what a layer waits for the exchange (kExchangeSeconds), is assumed. Prompts
// are left out.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cost/step_cost.h"
#include "plan/policy_times.h"

namespace lamina::cost {

// Decode rows of a step, and tokens of context of each.
struct PolicyLoad {
  double rows = 0;
  double context = 0;
};

struct PolicyModel {
  uint32_t layers = 0;
  double kv_bytes_per_token = 0;          // Bytes of a token in all layers.
  double activation_bytes_per_token = 0;  // Bytes of what its K and V are made from; 0: not kept.
  uint32_t replicas = 1;                  // Compute nodes, each with all of it.
};

// The other policy's side.
struct PolicyPools {
  double attention = 0;    // Bytes of K and V a second of all memory nodes; 0: there are none.
  uint32_t lanes_max = 1;  // With `lanes_auto` any number up to it.
  bool lanes_auto = false;
  double link = 0;  // Bytes a second that all memory nodes send to the compute node.
};

// Seconds of a step, and of its parts.
struct PolicyStep {
  double seconds = 0;
  double dense = 0;      // Slices and tails of all its lanes, on a compute node.
  double attention = 0;  // Attention of all lanes, the exchange included.
  uint32_t lanes = 1;
  // Policies that fetch: what the links take, and making K and V from activations.
  double transfer = 0;
  double making = 0;
  double share = 0;  // Share of the tokens that come as activations.
};

// By straight lines between the sizes that were measured, and on beyond the last one.
// Requires: times not empty, rows > 0.
plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows);

// What the slowest of these nodes takes, at the sizes that the first has measured.
// Requires: not empty, all measured().
plan::PolicyTimes SlowestOf(absl::Span<const plan::PolicyTimes> nodes);

PolicyStep LocalStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyLoad& load);

// With the fastest number of lanes. Requires: pools.attention > 0.
PolicyStep PoolsStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

// Requires: fetch_heads, fetch_recompute or fetch_hybrid, the last two with activations and
// times.make_seconds; pools.link > 0.
PolicyStep FetchStep(KvPolicy policy, const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

}  // namespace lamina::cost
