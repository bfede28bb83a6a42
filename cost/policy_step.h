// SPDX-License-Identifier: Apache-2.0
//
// PolicyStep: seconds of a decode step with KV on the compute nodes (policy local), and on memory
// nodes, by what a compute node measured when it started. Of several, each a replica, the slowest
// one's is the cluster's.
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
// Attention and slices that share a memory are measured side by side, so that what they take from
// each other is in the figures; that memory nodes attend as fast as the compute node does with as
// much bandwidth, and what a layer waits for the exchange (kExchangeSeconds), is assumed. Prompts
// are left out.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "plan/policy_times.h"

namespace lamina::cost {

// Decode rows of a step, and tokens of context of each.
struct PolicyLoad {
  double rows = 0;
  double context = 0;
};

struct PolicyModel {
  uint32_t layers = 0;
  double kv_bytes_per_token = 0;  // Bytes of a token in all layers.
};

// The other policy's side.
struct PolicyPools {
  double attention = 0;    // Bytes of K and V a second of all memory nodes; 0: there are none.
  uint32_t lanes_max = 1;  // With `lanes_auto` any number up to it.
  bool lanes_auto = false;
  uint32_t replicas = 1;  // Compute nodes over which lanes rotate.
};

// Seconds of a step, and of its parts.
struct PolicyStep {
  double seconds = 0;
  double dense = 0;      // Slices and tails of all lanes, on one compute node.
  double attention = 0;  // Attention of all lanes, the exchange included.
  uint32_t lanes = 1;
};

// By straight lines between the sizes that were measured, and on beyond the last one.
// Requires: times not empty, rows > 0.
plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows);

// One of so many replicas, which have the rows in equal parts, takes that.
PolicyStep LocalStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyLoad& load, uint32_t replicas = 1);

// With the fastest number of lanes. Requires: pools.attention > 0.
PolicyStep PoolsStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

}  // namespace lamina::cost
