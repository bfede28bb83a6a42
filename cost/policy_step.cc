// SPDX-License-Identifier: Apache-2.0
#include "cost/policy_step.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cost/kv_policies.h"

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

double DenseSeconds(const std::vector<plan::SliceTimes>& times, uint32_t layers, double rows) {
  const plan::SliceTimes at = TimesOf(times, rows);
  // The tail has the rest of the last layer, slice 0 the little before the first attention.
  return (layers - 1) * at.slice_seconds + at.tail_seconds;
}

FetchTime FetchTimeOf(KvPolicy policy, const FetchLayer& layer) {
  switch (policy) {
    case KvPolicy::kFetchRecompute:
      return FetchRecompute(layer, /*share_max=*/1);
    case KvPolicy::kFetchHybrid:
      return FetchHybrid(layer);
    default:
      return {.layer = FetchHeads(layer).layer};  // Its share is not one of activations.
  }
}

double BytesOf(const PolicyModel& model, const PolicyLoad& load) {
  return load.rows * load.context * model.kv_bytes_per_token;
}

}  // namespace

plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows) {
  LAMINA_CHECK(!times.empty() && rows > 0);
  size_t upper = 0;
  while (upper + 1 < times.size() && times[upper].rows < rows) {
    ++upper;
  }
  plan::SliceTimes at = times[upper];
  const double wanted = std::max<double>(rows, times.front().rows);
  if (upper > 0) {
    const plan::SliceTimes& low = times[upper - 1];
    const double part = (wanted - low.rows) / (at.rows - low.rows);
    const auto between = [part](double a, double b) { return a + part * (b - a); };
    at.slice_seconds = between(low.slice_seconds, at.slice_seconds);
    at.tail_seconds = between(low.tail_seconds, at.tail_seconds);
  }
  at.rows = static_cast<uint32_t>(std::lround(wanted));
  return at;
}

plan::PolicyTimes SlowestOf(absl::Span<const plan::PolicyTimes> nodes) {
  plan::PolicyTimes slowest = nodes.front();
  for (const plan::PolicyTimes& node : nodes) {
    for (const auto sizes : {&plan::PolicyTimes::local, &plan::PolicyTimes::pools}) {
      for (plan::SliceTimes& size : slowest.*sizes) {
        const plan::SliceTimes other = TimesOf(node.*sizes, size.rows);
        size.slice_seconds = std::max(size.slice_seconds, other.slice_seconds);
        size.tail_seconds = std::max(size.tail_seconds, other.tail_seconds);
      }
    }
    if (node.attention_local < slowest.attention_local) {
      slowest.attention_local = node.attention_local;
      slowest.read_bandwidth = node.read_bandwidth;
    }
    slowest.attention_pools = std::min(slowest.attention_pools, node.attention_pools);
    slowest.make_seconds = std::max(slowest.make_seconds, node.make_seconds);
  }
  return slowest;
}

PolicyStep LocalStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyLoad& load) {
  // A lane has a row at least.
  const PolicyLoad own = {.rows = std::max(std::min(1.0, load.rows), load.rows / model.replicas),
                          .context = load.context};
  PolicyStep step{.dense = DenseSeconds(times.local, model.layers, own.rows),
                  .attention = BytesOf(model, own) / times.attention_local};
  step.seconds = step.dense + step.attention;
  return step;
}

PolicyStep PoolsStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load) {
  PolicyStep best;
  for (uint32_t lanes = pools.lanes_auto ? 1 : pools.lanes_max; lanes <= pools.lanes_max; ++lanes) {
    if (best.seconds > 0 && lanes > load.rows) {
      break;  // A lane has a row at least.
    }
    const double dense = DenseSeconds(times.pools, model.layers, std::max(1.0, load.rows / lanes));
    const double attention =
        BytesOf(model, load) / lanes / pools.attention + model.layers * kExchangeSeconds;
    PolicyStep step{.seconds = dense + attention,
                    .dense = lanes * dense / std::min(lanes, model.replicas),
                    .attention = lanes * attention,
                    .lanes = lanes};
    if (lanes > 1) {
      step.seconds = std::max({step.dense, step.attention, dense + attention}) +
                     kUnhidden * std::min(step.dense, step.attention);
    }
    if (best.seconds == 0 || step.seconds < best.seconds) {
      best = step;
    }
  }
  return best;
}

PolicyStep FetchStep(KvPolicy policy, const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load) {
  LAMINA_CHECK(pools.link > 0);
  const double tokens = load.rows * load.context;
  // More lanes read the weights more often, and hide nothing that one does not.
  const uint32_t lanes = pools.lanes_auto ? 1 : pools.lanes_max;
  const double rows = std::max(1.0, load.rows / lanes);
  PolicyStep step{.dense = lanes * DenseSeconds(times.pools, model.layers, rows),
                  .attention = BytesOf(model, load) / times.attention_pools,
                  .lanes = lanes};
  const double layers = model.layers;
  const double kv = BytesOf(model, load) / pools.link;
  const double activations = tokens * model.activation_bytes_per_token / pools.link;
  const double making = tokens * layers * times.make_seconds;
  const FetchTime time = FetchTimeOf(policy, {.kv_transfer = {kv / layers},
                                              .activation_transfer = {activations / layers},
                                              .kv_generation = {making / layers},
                                              .dense = {step.dense / layers},
                                              .attention = {step.attention / layers}});
  step.seconds = layers * (time.layer.value + kExchangeSeconds);
  step.share = time.share;
  step.transfer = time.share * activations + (1 - time.share) * kv;
  step.making = time.share * making;
  return step;
}

}  // namespace lamina::cost
