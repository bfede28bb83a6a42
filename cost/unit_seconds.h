// SPDX-License-Identifier: Apache-2.0
//
// Seconds of the pieces that a step is made of: a slice, the LM head, an attention, a hop between
// stages. StepOf() adds them up for the steady state; the simulator schedules them one by one.
//
// Threading: pure.

#pragma once

#include "cost/estimate.h"
#include "cost/model_shape.h"
#include "cost/rates.h"
#include "cost/step_cost.h"

namespace lamina::cost {

inline constexpr double kReducesOfLayer = 2;  // Behind attention's output and behind the MLP.

// One layer's dense part for a lane; every shard has its share of weights and operations, and puts
// its part of the sums to each other shard. Attention of prompt tokens, which is causal over
// `prompt_length`, is in it.
Estimate SliceSeconds(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane);

// The LM head over `rows` rows; it is whole on one shard.
Estimate HeadSeconds(const ModelShape& shape, const Cluster& cluster, double rows);

// Attention of one call of `rows` rows that read `bytes` of K and V together.
Estimate AttentionSeconds(const AttentionRates& rates, double rows, double bytes);

// What a layer's `rows` rows wait for the way to memory nodes and back, in addition to attention
// and to the transfer of their bytes.
Estimate ExchangeSeconds(const Cluster& cluster, double rows);

// One hop of the residual of `tokens` rows to the next stage.
Estimate HopSeconds(const ModelShape& shape, const Cluster& cluster, double tokens);

// Share of all K and V that the busiest memory node reads. Partition head: by whole heads;
// token_range: even; request: even, but no less than one of `rows` rows.
double BusiestShare(const ModelShape& shape, const Cluster& cluster, double rows);

// What a step of `rows` rows waits for at its border although other lanes run; 0 where it was not
// measured.
double BorderSeconds(const Cluster& cluster, double rows);

// Bytes of a lane's rows in one layer, over all memory nodes.
struct Traffic {
  double out = 0;   // q, k, v, and K and V of prompts.
  double back = 0;  // Outputs, or with partition token_range partials.
};
Traffic TrafficOf(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane);

}  // namespace lamina::cost
