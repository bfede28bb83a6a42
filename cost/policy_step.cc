// SPDX-License-Identifier: Apache-2.0
#include "cost/policy_step.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cost/kv_policies.h"
#include "cost/token_layer.h"

namespace lamina::cost {
namespace {

// What a lane waits for a layer's windows there and back in addition to the attention itself, over
// shared memory: two processes that poll. Assumed; 20 to 90 us were seen (docs/lab/2026-11.md,
// decode).
constexpr double kExchangeSeconds = 40e-6;
// Share of the shorter of dense layers and attention that lanes do not hide after all, since
// neither side always has work when the other does. Assumed; two lanes took 15% longer than their
// bound at 16 rows of 1024 tokens, 6% at 1536 (docs/lab/2026-11.md, pipeline).
constexpr double kUnhidden = 0.2;
// So many tokens run through a slice together where K and V are made from their numbers
// (compute_node/token_rows.h).
constexpr double kMadeTogether = 256;

FetchTime FetchTimeOf(KvPolicy policy, const FetchLayer& layer, const RecomputeLane& lane) {
  switch (policy) {
    case KvPolicy::kFetchRecompute:
      return FetchRecompute(layer, /*share_max=*/1, ActivationsComeOf(lane));
    case KvPolicy::kFetchHybrid:
      return FetchHybrid(layer);
    default:
      return {.layer = FetchHeads(layer).layer};  // Its share is not one of activations.
  }
}

// Bytes of K and V that attention reads.
double ReadBytes(const PolicyModel& model, const PolicyLoad& load) {
  return load.rows * load.context * model.kv_bytes_per_token * model.read_share;
}

// The most lanes that have a row each. Rows are a mean of many steps: the nearest whole number.
uint32_t LanesWithRows(const PolicyPools& pools, const PolicyLoad& load) {
  const double most = std::max(1.0, std::round(load.rows));
  return static_cast<uint32_t>(std::min<double>(pools.lanes_max, most));
}

// Adds what of a step that fetches is made from token numbers to its dense layers and attention.
PolicyStep WithTokens(const plan::PolicyTimes& times, const PolicyModel& model,
                      const PolicyPools& pools, const PolicyLoad& load, PolicyStep step) {
  const double layers = model.layers;
  const double kv_bytes = model.kv_bytes_per_token / layers;
  step.make_token = TimesOf(times.pools, kMadeTogether).slice_seconds / kMadeTogether;
  step.from_activation = times.make_seconds;
  step.send_token = kv_bytes / pools.link;
  // Rows are a mean of many steps: one stands for them, with the times of all.
  const TokenProfile profile{
      .kv = load.rows * step.send_token,
      .make = load.rows * step.make_token,
      .attend = load.rows * kv_bytes * model.read_share / times.attention_pools,
      .other = (step.dense + step.attention) / layers};
  const TokenLoad row{.context = static_cast<uint32_t>(std::lround(load.context))};
  const double room = std::min<double>(row.context, pools.made_tokens_max * step.lanes / load.rows);
  const uint32_t most = static_cast<uint32_t>(room) / kTokenTile * kTokenTile;
  const uint32_t made = std::min(BestTokenSplit(profile, row).made, most);
  const auto seconds = [&](uint32_t tokens) {
    return layers * (TokenLayerSeconds(profile, row, tokens) + kExchangeSeconds);
  };
  step.seconds = seconds(made);
  step.tile_seconds = row.context < kTokenTile ? 0 : seconds(kTokenTile);
  step.share = made == 0 ? 0 : static_cast<double>(made) / row.context;
  step.transfer = layers * profile.kv * (row.context - made);
  step.making = layers * made * (profile.make + profile.attend * (made + 1.0) / 2);
  return step;
}

}  // namespace

PolicyStep LocalStep(const PolicyCompute& compute, const PolicyLoad& load) {
  const auto replicas = static_cast<double>(compute.replicas.size());
  // A lane has a row at least, and one without rows does not run.
  const double lanes = std::min<double>(compute.lanes_each, std::max(1.0, load.rows / replicas));
  const double rows =
      std::max(std::min(1.0, load.rows), load.rows / (replicas * compute.lanes_each));
  PolicyStep slowest;
  for (const MeasuredReplica& replica : compute.replicas) {
    const ReplicaSeconds lane = AttendingSeconds(replica, compute.link, rows, load.context);
    const bool waits = lane.path.seconds() < lanes * lane.busiest.seconds();
    const LaneSeconds& longest = waits ? lane.busiest : lane.path;
    const double times = waits ? lanes : 1;
    PolicyStep step{.dense = times * longest.dense, .attention = times * longest.attention};
    step.seconds = step.dense + step.attention;
    if (step.seconds > slowest.seconds) {
      slowest = step;
    }
  }
  return slowest;
}

PolicyStep PoolsStep(const PolicyCompute& compute, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load) {
  const auto replicas = static_cast<uint32_t>(compute.replicas.size());
  const uint32_t lanes_max = LanesWithRows(pools, load);
  PolicyStep best;
  for (uint32_t lanes = pools.lanes_auto ? 1 : lanes_max; lanes <= lanes_max; ++lanes) {
    double path = 0;
    double busiest = 0;
    for (const MeasuredReplica& replica : compute.replicas) {
      const ReplicaSeconds lane =
          DenseSeconds(replica, compute.link, std::max(1.0, load.rows / lanes));
      path = std::max(path, lane.path.dense);
      busiest = std::max(busiest, lane.busiest.dense);
    }
    const double attention =
        ReadBytes(model, load) / lanes / pools.attention + model.layers * kExchangeSeconds;
    PolicyStep step{.seconds = path + attention,
                    .dense = lanes == 1 ? path : lanes * busiest / std::min(lanes, replicas),
                    .attention = lanes * attention,
                    .lanes = lanes};
    if (lanes > 1) {
      step.seconds = std::max({step.dense, step.attention, path + attention}) +
                     kUnhidden * std::min(step.dense, step.attention);
    }
    if (best.seconds == 0 || step.seconds < best.seconds) {
      best = step;
    }
  }
  return best;
}

PolicyStep FetchStep(KvPolicy policy, const PolicyCompute& compute, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load) {
  LAMINA_CHECK(pools.link > 0);
  LAMINA_CHECK(compute.replicas.size() == 1 && compute.replicas.front().whole());
  const MeasuredReplica& replica = compute.replicas.front();
  const plan::PolicyTimes& times = replica.stages.front().shards.front().times;
  const double tokens = load.rows * load.context;
  // More lanes read the weights more often, and hide nothing that one with room in its windows does
  // not.
  const uint32_t lanes = pools.lanes_auto ? 1 : LanesWithRows(pools, load);
  const double rows = std::max(1.0, load.rows / lanes);
  PolicyStep step{.dense = lanes * DenseSeconds(replica, compute.link, rows).path.dense,
                  .attention = ReadBytes(model, load) / times.attention_pools,
                  .lanes = lanes};
  if (policy == KvPolicy::kFetchTokens) {
    return WithTokens(times, model, pools, load, step);
  }
  const double layers = model.layers;
  const double kv = tokens * model.kv_bytes_per_token / pools.link;
  const double activations = tokens * model.activation_bytes_per_token / pools.link;
  const double making = tokens * layers * times.make_seconds;
  const FetchTime time = FetchTimeOf(policy,
                                     {.kv_transfer = {kv / layers},
                                      .activation_transfer = {activations / layers},
                                      .kv_generation = {making / layers},
                                      .dense = {step.dense / layers},
                                      .attention = {step.attention / layers}},
                                     {.lanes = std::min<double>(lanes, load.rows),
                                      .kv_bytes = tokens * model.kv_bytes_per_token / layers,
                                      .room = pools.room});
  step.seconds = layers * (time.layer.value + kExchangeSeconds);
  step.share = time.share;
  step.transfer = time.share * activations + (1 - time.share) * kv;
  step.making = time.share * making;
  return step;
}

}  // namespace lamina::cost
