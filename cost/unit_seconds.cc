// SPDX-License-Identifier: Apache-2.0
#include "cost/unit_seconds.h"

#include <algorithm>
#include <cmath>

namespace lamina::cost {
namespace {

constexpr double kResidualBytes = 4;  // One element of the residual, which is f32.

double Share(double whole, uint32_t parts) { return whole / std::max(1u, parts); }

// Operations of causal attention over a prompt, for each of its tokens and a layer.
double PromptAttentionFlops(const ModelShape& shape, double length) {
  return 4.0 * shape.query_heads * shape.head_dim * shape.AttendedTokens(length / 2) / shape.layers;
}

}  // namespace

Estimate SliceSeconds(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane) {
  const double tokens = lane.all_rows() + lane.prompt_tokens;
  const double prompt_flops = lane.prompt_tokens * PromptAttentionFlops(shape, lane.prompt_length);
  if (const MeasuredTimes* times = cluster.compute.times.get();
      times != nullptr && cluster.shards <= 1 &&
      (prompt_flops == 0 || times->prompt_attention.points > 0)) {
    const FittedLine& prompts = times->prompt_attention;
    const double attention = prompt_flops > 0 ? prompts.fixed + prompts.slope * prompt_flops : 0;
    return {times->slice.At(tokens) + attention, Provenance::kMeasured};
  }
  const double bytes = kElementBytes * shape.LayerWeightsRead(tokens);
  const double flops = tokens * shape.LayerFlopsPerRow() + prompt_flops;
  const Estimate dense = DenseSeconds(cluster.compute.dense, Share(bytes, cluster.shards),
                                      Share(flops, cluster.shards));
  if (cluster.shards <= 1) {
    return dense;
  }
  const double sum_bytes = (cluster.shards - 1) * kResidualBytes * shape.width * tokens;
  return dense + kReducesOfLayer *
                     (cluster.shard_link.latency + sum_bytes * cluster.shard_link.seconds_per_byte);
}

Estimate HeadSeconds(const ModelShape& shape, const Cluster& cluster, double rows) {
  if (const MeasuredTimes* times = cluster.compute.times.get();
      times != nullptr && !times->head.empty()) {
    return {times->head.At(rows), Provenance::kMeasured};
  }
  const double weights = shape.HeadWeights();
  return DenseSeconds(cluster.compute.dense, kElementBytes * weights, 2 * weights * rows);
}

Estimate AttentionSeconds(const AttentionRates& rates, double rows, double bytes) {
  return rates.fixed + rows * rates.seconds_per_row + bytes * rates.seconds_per_byte;
}

Estimate ExchangeSeconds(const Cluster& cluster, double rows) {
  if (const MeasuredTimes* times = cluster.compute.times.get();
      times != nullptr && times->exchange.points > 0) {
    return {times->exchange.fixed + times->exchange.slope * rows, Provenance::kMeasured};
  }
  return cluster.compute_link.latency + cluster.memory_link.latency;
}

double BorderSeconds(const Cluster& cluster, double rows) {
  const MeasuredTimes* times = cluster.compute.times.get();
  return times != nullptr && !times->border.empty() ? times->border.At(rows) : 0;
}

Estimate HopSeconds(const ModelShape& shape, const Cluster& cluster, double tokens) {
  return cluster.compute_link.latency +
         kResidualBytes * shape.width * tokens * cluster.compute_link.seconds_per_byte;
}

double BusiestShare(const ModelShape& shape, const Cluster& cluster, double rows) {
  const double nodes = cluster.memory_nodes;
  switch (cluster.partition) {
    case Partition::kHead:
      return std::ceil(shape.kv_heads / nodes) / shape.kv_heads;
    case Partition::kTokenRange:
      return 1 / nodes;
    case Partition::kRequest:
    case Partition::kAuto:
      return std::max(1 / nodes, 1 / std::max(1.0, rows));
  }
  return 1;
}

Traffic TrafficOf(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane) {
  const double rows = lane.all_rows();
  Traffic traffic{.out = rows * shape.RowBytesOut(), .back = rows * shape.RowBytesBack()};
  if (cluster.partition == Partition::kTokenRange) {
    // Queries go to every node; each returns f32 partials.
    const double queries = shape.RowBytesBack();
    const double partials = 4.0 * shape.query_heads * (shape.head_dim + 1.0);
    traffic.out += rows * queries * (cluster.memory_nodes - 1.0);
    traffic.back = rows * partials * cluster.memory_nodes;
  }
  // K and V of prompts leave without coming back.
  traffic.out += lane.prompt_tokens * shape.KvBytesPerTokenLayer();
  return traffic;
}

}  // namespace lamina::cost
