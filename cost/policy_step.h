// SPDX-License-Identifier: Apache-2.0
//
// PolicyStep: seconds of a decode step of each policy, by what compute nodes have measured of what
// they run: with KV on compute nodes (policy local), with attention on memory nodes, and with KV
// that memory nodes send to the compute node. What a lane takes on a replica, which one or several
// compute nodes hold, is replica_seconds.h's; of several replicas the slowest counts.
//
// A step of `local`, of which each of R replicas has n lanes of rows / (n R), whose path through
// its stages takes P, on the busiest of them B, attention included:
//
//   max(P, n * B)                    of one node, which has one lane: slices, tail and attention
//
// A step of `attend_remote` over n lanes of rows / n each, no more lanes than rows, since one
// without rows makes no step; where P and B are what their dense layers take, on the threads that
// are left to compute, and A the attention of one, on memory nodes:
//
//   max(n * B / min(n, R), n * A, P + A), and with several lanes a part of the shorter side
//   (kUnhidden)
//
// A step of the policies that fetch, of which one lane suffices, since the transfer of a layer's KV
// overlaps with the layer before: by the equations of kv_policies.h for each layer, with dense
// layers and attention on the threads that the compute node has while memory nodes have theirs; and
// the exchange. One compute node alone has them. With fetch_recompute one lane's activations come
// while K and V of the layer before are made if windows have room for both. What is made from token
// numbers instead follows token_layer.h: a token takes the slice of a block of rows, in which
// tokens run together, and attends to those before it as decode rows do.
//
// Attention and slices that share a memory are measured side by side, so that what they take from
// each other is in the figures; that memory nodes attend as fast as the compute node does with as
// much bandwidth, and what a layer waits for the exchange (kExchangeSeconds), is assumed. Tokens of
// prompts are no part of a step: what one takes is PromptTokenSeconds().
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "cost/replica_seconds.h"
#include "cost/step_cost.h"

namespace lamina::cost {

// Decode rows of a step; tokens of context of each, all that have slots, also those that windows
// hide; and prompts that come with them.
struct PolicyLoad {
  double rows = 0;
  double context = 0;
  double prompts = 0;  // Tokens of prompts that are computed for each token that a row gets.
};

struct PolicyModel {
  uint32_t layers = 0;
  double kv_bytes_per_token = 0;          // Bytes of a token in all layers; links carry them all.
  double activation_bytes_per_token = 0;  // Bytes of what its K and V are made from; 0: not kept.
  double read_share = 1;  // Which share of K and V a row reads: less where layers have windows.
};

// The compute nodes of a cluster, by replica.
struct PolicyCompute {
  std::vector<MeasuredReplica> replicas;  // That there are.
  PartLink link = {};                     // Between nodes of one replica, where any has several.
  uint32_t lanes_each = 1;                // Lanes of each that has K and V.
};

// The other policy's side.
struct PolicyPools {
  double attention = 0;    // Bytes of K and V a second of all memory nodes; 0: there are none.
  uint32_t lanes_max = 1;  // With `lanes_auto` any number up to it.
  bool lanes_auto = false;
  double link = 0;  // Bytes a second that all memory nodes send to the compute node.
  double room = 0;  // RoomForNextLayer(), with fetch_recompute.
  // With fetch_recompute from token numbers: EpochConfig::made_tokens_max, of a lane.
  uint32_t made_tokens_max = 0;
};

// Seconds of a step, and of its parts.
struct PolicyStep {
  double seconds = 0;
  double dense = 0;      // Slices and tails of all its lanes, on the busiest compute node.
  double attention = 0;  // Attention of all lanes, the exchange included.
  uint32_t lanes = 1;
  // Policies that fetch: what the links take, and making K and V from activations, or from token
  // numbers.
  double transfer = 0;
  double making = 0;
  double share = 0;  // Share of the tokens that come as activations, or whose K and V are made.
  // From token numbers, K and V of one token in one layer: making them so, from its activation (0:
  // not measured), and their transfer; and the step with one tile of each row made (0: rows have
  // less).
  double make_token = 0;
  double from_activation = 0;
  double send_token = 0;
  double tile_seconds = 0;
};

// Requires: at least one replica, whose times are measured(); load.rows > 0. Of the functions below
// too.
PolicyStep LocalStep(const PolicyCompute& compute, const PolicyLoad& load);

// With the fastest number of lanes. Requires: pools.attention > 0.
PolicyStep PoolsStep(const PolicyCompute& compute, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

// Requires: fetch_heads, fetch_recompute, from token numbers too, or fetch_hybrid, from activations
// with these and make_seconds; one replica, of one node; pools.link > 0, attention_pools > 0.
PolicyStep FetchStep(KvPolicy policy, const PolicyCompute& compute, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

// Seconds of the dense layers of one token of a prompt, where many run together, over all replicas:
// on all threads of their nodes with local, and on those that they have together with memory nodes
// with the others. What its attention takes is left out: it runs on the same threads, and is
// shorter. 0: nothing was measured. Requires: as LocalStep().
double PromptTokenSeconds(KvPolicy policy, const PolicyCompute& compute);

}  // namespace lamina::cost
