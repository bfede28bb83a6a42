// SPDX-License-Identifier: Apache-2.0
#include "cost/step_cost.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cost/kv_policies.h"
#include "cost/unit_seconds.h"

namespace lamina::cost {
namespace {

// Share of tokens that fetch_sparse attends: 80% sparsity, as the paper's result.
constexpr Estimate kSparseRatio{0.2, Provenance::kAssumed};

double Share(double whole, uint32_t parts) { return whole / std::max(1u, parts); }

double MeanAttended(const ModelShape& shape, double context) {
  return shape.AttendedTokens(context) / shape.layers;
}

// Tokens of a layer whose K and V a lane's rows read.
double TokensAttended(const ModelShape& shape, const StepLoad& lane) {
  return lane.rows * MeanAttended(shape, lane.context) +
         lane.prompt_rows * MeanAttended(shape, lane.prompt_row_context);
}

// Those that links carry where K and V are fetched: whatever has a slot, also in layers whose
// window hides it.
double TokensFetched(const ModelShape& shape, const StepLoad& lane) {
  return lane.rows * shape.TokensHeld(lane.context) +
         lane.prompt_rows * shape.TokensHeld(lane.prompt_row_context);
}

double KvBytesRead(const ModelShape& shape, const StepLoad& lane) {
  return TokensAttended(shape, lane) * shape.KvBytesPerTokenLayer();
}

// The part of one lane.
StepLoad LaneOf(const Cluster& cluster, const StepLoad& load) {
  StepLoad lane = load;
  lane.rows /= cluster.lanes;
  lane.prompt_rows /= cluster.lanes;
  lane.prompt_tokens = cluster.prompt_replicas > 0 ? 0 : load.prompt_tokens / cluster.lanes;
  return lane;
}

// Hops of a lane's residual from stage to stage, and back to the first.
Estimate HopsSeconds(const ModelShape& shape, const Cluster& cluster, double tokens) {
  return cluster.stages <= 1 ? Estimate{}
                             : Real(cluster.stages) * HopSeconds(shape, cluster, tokens);
}

struct Candidate {
  Estimate seconds;
  Bottleneck bottleneck;
};

// The step is the slowest of the candidates; its provenance is the worst of them all.
void Choose(std::initializer_list<Candidate> candidates, StepTimes& times) {
  times.step = {};
  for (const Candidate& candidate : candidates) {
    if (candidate.seconds.value > times.step.value) {
      times.bottleneck = candidate.bottleneck;
    }
    times.step = Max(times.step, candidate.seconds);
  }
}

// Slices, heads and what comes with them on the nodes of one replica, for all lanes.
Estimate ComputeBusy(const Cluster& cluster, Estimate layers, const StepTimes& times) {
  return cluster.lanes * (layers + times.head) / (Real(cluster.replicas) * cluster.stages);
}

StepTimes LocalStep(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane) {
  StepTimes times{.slice = SliceSeconds(shape, cluster, lane),
                  .head = HeadSeconds(shape, cluster, lane.rows)};
  times.attention = AttentionSeconds(cluster.compute.attention, lane.all_rows(),
                                     Share(KvBytesRead(shape, lane), cluster.shards));
  const double tokens = lane.all_rows() + lane.prompt_tokens;
  const Estimate layers = Real(shape.layers) * (times.slice + times.attention);
  const Estimate path = layers + times.head + HopsSeconds(shape, cluster, tokens);
  Choose({{ComputeBusy(cluster, layers, times), Bottleneck::kCompute}, {path, Bottleneck::kPath}},
         times);
  return times;
}

StepTimes RemoteStep(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane) {
  StepTimes times{.slice = SliceSeconds(shape, cluster, lane),
                  .head = HeadSeconds(shape, cluster, lane.rows)};
  const double share = BusiestShare(shape, cluster, lane.all_rows());
  times.attention = AttentionSeconds(cluster.memory.attention, share * lane.all_rows(),
                                     share * KvBytesRead(shape, lane));
  const Traffic traffic = TrafficOf(shape, cluster, lane);
  // A shard carries its own heads' rows, a memory node its share of them; the slower side counts.
  const Estimate compute_byte = cluster.compute_link.seconds_per_byte / Real(cluster.shards);
  const Estimate slowest = Max(compute_byte, share * cluster.memory_link.seconds_per_byte);
  times.network =
      ExchangeSeconds(cluster, lane.all_rows()) + (traffic.out + traffic.back) * slowest;
  // Links carry both ways at a time. Of compute nodes there are several to share the lanes.
  const double one_way = std::max(traffic.out, traffic.back);
  const double nodes = Real(cluster.replicas) * cluster.stages;
  const Estimate link_busy =
      Max(one_way * compute_byte / nodes, one_way * share * cluster.memory_link.seconds_per_byte);
  const double layers = shape.layers;
  const double tokens = lane.all_rows() + lane.prompt_tokens;
  const Estimate path = layers * (times.slice + times.network + times.attention) + times.head +
                        HopsSeconds(shape, cluster, tokens);
  const double lanes = cluster.lanes;
  // Lanes hide what they wait for from each other, but for the border between steps.
  const double borders = lanes > 1 ? BorderSeconds(cluster, lane.all_rows()) : 0;
  Choose({{ComputeBusy(cluster, layers * times.slice + Estimate{borders}, times),
           Bottleneck::kCompute},
          {lanes * (layers * times.attention + Estimate{borders}), Bottleneck::kMemory},
          {lanes * layers * link_busy, Bottleneck::kNetwork},
          {path, Bottleneck::kPath}},
         times);
  return times;
}

FetchTime FetchSeconds(const Cluster& cluster, const FetchLayer& layer, double prompt_share,
                       double kv_bytes) {
  const double room = RoomForNextLayer({.bytes = cluster.fetch_window,
                                        .lanes = Real(cluster.lanes),
                                        .memory_nodes = Real(cluster.memory_nodes)});
  switch (cluster.policy) {
    case KvPolicy::kFetchRecompute:
      return FetchRecompute(
          layer, prompt_share,
          ActivationsComeOf({.lanes = Real(cluster.lanes), .kv_bytes = kv_bytes, .room = room}));
    case KvPolicy::kFetchHybrid:
      return FetchHybrid(layer);
    case KvPolicy::kFetchSparse:
      return FetchSparse(layer, kSparseRatio.value);
    default:
      return FetchHeads(layer);
  }
}

StepTimes FetchStep(const ModelShape& shape, const Cluster& cluster, const StepLoad& lane) {
  StepTimes times{.slice = SliceSeconds(shape, cluster, lane),
                  .head = HeadSeconds(shape, cluster, lane.rows)};
  const double share = 1.0 / cluster.shards;
  const double fetched_tokens = TokensFetched(shape, lane);
  const double kv_bytes = fetched_tokens * shape.KvBytesPerTokenLayer() * share;
  // All replicas draw on the same memory nodes.
  const Estimate byte = Max(cluster.compute_link.seconds_per_byte,
                            Real(cluster.replicas) * cluster.shards *
                                cluster.memory_link.seconds_per_byte / Real(cluster.memory_nodes));
  const double generation =
      4.0 * shape.width * shape.kv_heads * shape.head_dim * fetched_tokens * share;
  const FetchLayer layer = {
      .kv_transfer = kv_bytes * byte,
      .activation_transfer = fetched_tokens * kElementBytes * shape.width * byte,
      .kv_generation = generation * cluster.compute.dense.seconds_per_flop,
      .dense = times.slice,
      .attention = AttentionSeconds(cluster.compute.attention, lane.all_rows(),
                                    KvBytesRead(shape, lane) * share)};
  const double prompt_share =
      lane.context > 0 ? std::min(1.0, lane.prompt_length / lane.context) : 0;
  FetchTime fetched = FetchSeconds(cluster, layer, prompt_share, kv_bytes);
  times.attention = layer.attention;
  times.network = layer.kv_transfer;
  if (cluster.policy == KvPolicy::kFetchSparse) {  // How much of both is assumed.
    for (Estimate* seconds : {&fetched.layer, &times.attention, &times.network}) {
      seconds->provenance = Worse(seconds->provenance, kSparseRatio.provenance);
    }
  }
  const Estimate layers = Real(shape.layers) * fetched.layer;
  const Estimate path = layers + cluster.compute_link.latency + times.head +
                        HopsSeconds(shape, cluster, lane.all_rows() + lane.prompt_tokens);
  const bool waits = fetched.layer.value > times.slice.value + times.attention.value;
  Choose(
      {{ComputeBusy(cluster, layers, times), waits ? Bottleneck::kNetwork : Bottleneck::kCompute},
       {path, waits ? Bottleneck::kNetwork : Bottleneck::kCompute}},
      times);
  return times;
}

}  // namespace

absl::string_view KvPolicyName(KvPolicy policy) {
  switch (policy) {
    case KvPolicy::kLocal:
      return "local";
    case KvPolicy::kAttendRemote:
      return "attend_remote";
    case KvPolicy::kFetchHeads:
      return "fetch_heads";
    case KvPolicy::kFetchRecompute:
      return "fetch_recompute";
    case KvPolicy::kFetchHybrid:
      return "fetch_hybrid";
    case KvPolicy::kFetchSparse:
      return "fetch_sparse";
    case KvPolicy::kFetchTokens:
      return "fetch_recompute_from_tokens";
  }
  return "?";
}

StepTimes StepOf(const ModelShape& shape, const Cluster& cluster, const StepLoad& load) {
  LAMINA_CHECK(load.rows > 0 && cluster.lanes > 0);
  LAMINA_CHECK(cluster.policy == KvPolicy::kLocal || cluster.memory_nodes > 0);
  const StepLoad lane = LaneOf(cluster, load);
  switch (cluster.policy) {
    case KvPolicy::kLocal:
      return LocalStep(shape, cluster, lane);
    case KvPolicy::kAttendRemote:
      return RemoteStep(shape, cluster, lane);
    default:
      return FetchStep(shape, cluster, lane);
  }
}

Estimate ComputeSeconds(const ModelShape& shape, const Cluster& cluster, const StepLoad& load) {
  const StepLoad lane = LaneOf(cluster, load);
  Estimate layer = SliceSeconds(shape, cluster, lane);
  if (cluster.policy != KvPolicy::kAttendRemote) {
    layer = layer + AttentionSeconds(cluster.compute.attention, lane.all_rows(),
                                     Share(KvBytesRead(shape, lane), cluster.shards));
  }
  const Estimate head = lane.rows > 0 ? HeadSeconds(shape, cluster, lane.rows) : Estimate{};
  return cluster.lanes * (Real(shape.layers) * layer + head);
}

Estimate PromptSeconds(const ModelShape& shape, const Cluster& cluster, double length) {
  const StepLoad prompt = {.rows = 0, .prompt_tokens = length, .prompt_length = length};
  return Real(shape.layers) * SliceSeconds(shape, cluster, prompt) +
         HeadSeconds(shape, cluster, 1) + HopsSeconds(shape, cluster, length);
}

double WeightBytesOfNode(const ModelShape& shape, const Cluster& cluster) {
  return shape.WeightBytes() / (Real(cluster.stages) * cluster.shards);
}

Estimate KvTokensMax(const ModelShape& shape, const Cluster& cluster) {
  const Estimate room = cluster.compute.capacity - Estimate{WeightBytesOfNode(shape, cluster)};
  if (room.value < 0) {
    return {0, room.provenance};
  }
  // Memory nodes keep activations in addition to K and V where some are recomputed.
  const double activations =
      cluster.policy == KvPolicy::kFetchRecompute ? kElementBytes * shape.layers * shape.width : 0;
  const double token = shape.KvBytesPerToken() + activations;
  if (cluster.policy == KvPolicy::kLocal) {
    return Real(cluster.replicas) * cluster.stages * cluster.shards * room / token;
  }
  // The node with the most heads is full first.
  const double heads_most = std::ceil(Real(shape.kv_heads) / cluster.memory_nodes);
  const double nodes = cluster.partition == Partition::kHead ? shape.kv_heads / heads_most
                                                             : Real(cluster.memory_nodes);
  Estimate tokens = nodes * cluster.memory.capacity / token;
  tokens.provenance = Worse(tokens.provenance, room.provenance);
  return tokens;
}

Estimate BandwidthNeeded(const ModelShape& shape, const DeviceRates& device, const LinkRates& ring,
                         uint32_t cards, double rows) {
  const double weights = shape.LayerWeightsRead(rows) / cards;
  const double flops = rows * shape.LayerFlopsPerRow() / cards;
  Estimate layer = DenseSeconds(device.dense, kElementBytes * weights, flops);
  if (cards > 1) {
    // A ring adds up bf16 rows in 2 (cards - 1) steps.
    const double steps = 2 * (cards - 1.0);
    const double bytes = steps / cards * kElementBytes * shape.width * rows;
    layer = layer + kReducesOfLayer * (steps * ring.latency + bytes * ring.seconds_per_byte);
  }
  const double bytes = rows * (shape.RowBytesOut() + shape.RowBytesBack());
  return bytes / layer;
}

}  // namespace lamina::cost
