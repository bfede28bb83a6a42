// SPDX-License-Identifier: Apache-2.0
//
// EngineOptions: what the engine is told of the cluster and the model before any node has joined.
// cluster_options.h makes them from the cluster file.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/clock.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "common/partition.h"
#include "common/pipeline_mode.h"
#include "common/sparse_tokens.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/request_record.h"
#include "cost/policy_step.h"
#include "cost/token_price.h"
#include "plan/attention_paths.h"
#include "plan/stages.h"

namespace lamina::coordinator {

// A model replica that several compute nodes hold together.
struct ReplicaOptions {
  std::string name;
  std::vector<std::string> nodes;  // Sorted by stage, then by shard.
  uint32_t shards = 1;             // Shards of each stage; all replicas that decode have as many.
  // Layers of each stage, as the cluster file says; empty: to be chosen.
  std::vector<uint32_t> layers;
};

// Memory nodes whose cores are the same, or overlap.
struct MemoryNodesOnCores {
  std::vector<std::string> names = {};
  bool shared = false;  // Some of the cores are the compute node's too.
};

// Policy auto: each epoch has KV on the memory nodes or on the compute node, whichever decodes
// faster.
struct PolicyAutoOptions {
  cost::PolicyLoad load;  // The load to choose for until some has been seen.
  std::vector<MemoryNodesOnCores> memory = {};
  Nanos idle = Seconds(5);  // So long nothing runs before an epoch of the other policy begins.
};

// Policy fetch_hybrid: which share of a memory node's slots holds activations, in
// plan::SlotKinds::kUnit-ths.
struct HybridOptions {
  uint32_t share = 0;      // As configured, or the first epoch's.
  bool automatic = false;  // By measured times, once there are any.
  friend bool operator==(const HybridOptions&, const HybridOptions&) = default;
};

// A policy that epochs prepare, for requests that name it.
struct PreparedPolicy {
  std::string name;
  plan::AttentionPath path = plan::AttentionPath::kRemote;  // Not with policy auto.
  std::string lossy = {};                                   // EngineOptions::lossy of its requests.
};

struct EngineOptions {
  std::vector<core::Member> nodes;          // Nodes of the cluster file, compute nodes first.
  std::vector<AttentionDescriptor> layers;  // The model's attention layers.
  ClusterAttention attention;
  KvLayout kv;
  bool device_waits = false;             // Nodes on a device may use them (EpochConfig).
  std::vector<ReplicaOptions> replicas;  // Replicas of several nodes.
  std::vector<double> slice_costs;       // [layers + 1], in weights; for `replicas`.
  plan::ShardCosts shard_costs;          // For replicas of several shards.
  uint32_t vocabulary = 0;
  std::string model_fingerprint;
  std::vector<std::string> transports = {"shm://"};  // URIs; the first that works for all nodes.
  PipelineMode mode = PipelineMode::kRotational;
  Partition partition = Partition::kRequest;  // Not kAuto.
  std::string partition_why;                  // Reason for a chosen one; status tells it.
  uint32_t replica_lanes = 1;     // Policies local and auto: lanes of each replica that keeps KV.
  std::string replica_lanes_why;  // And why so many.
  std::optional<PolicyAutoOptions> policy_auto;
  // Policies that fetch: rows attend at the compute node, over K and V that memory nodes send into
  // windows of so many bytes in all. Else 0.
  uint64_t fetch_bytes = 0;
  uint32_t fetch_heads = 0;  // EpochConfig::fetch_heads
  // Policies fetch_recompute and fetch_hybrid: elements of a token's activation. Else 0.
  uint32_t activation_width = 0;
  // What makes answers of requests that name no policy other than those of whole attention, for
  // those who get them: a word without spaces, like fetch_sparse-0.5-window_sums. Empty: nothing.
  std::string lossy;
  // What epochs prepare. The first one is for requests that name none. Empty: nobody names any.
  std::vector<PreparedPolicy> policies;
  // Policy fetch_sparse: of EpochConfig. Else 0.
  SparseTokens sparse_tokens = SparseTokens::kWindowSums;
  double sparse_ratio = 0;
  std::optional<HybridOptions> hybrid;  // Policy fetch_hybrid.
  core::SchedulerOptions scheduler;     // memory_nodes, prefill_lanes: filled in at each epoch.
  bool priority_order = false;
  // A node that has not been heard of for so long is taken for dead (stopped, or its cable pulled):
  // its stream is ended as if it had left. 0 waits for the stream to break by itself.
  Nanos node_silence_max = 0;
  // A node whose data thread stands still for so long while the others of its process live is taken
  // for dead, too.
  Nanos stuck_after = 0;
  cost::PoolPrices prices;  // Prices of all nodes of the cluster file, per hour; 0: not known.
  // Called in the engine's thread for every request that was taken in, when it has ended.
  RequestEndFunction on_request_end;
};

// Whether an epoch prepares several policies, of which requests choose one.
inline bool HasSeveralPolicies(const EngineOptions& options) { return options.policies.size() > 1; }

// The paths of an epoch whose K and V are on memory nodes.
inline plan::AttentionPaths PathsOnMemoryNodes(const EngineOptions& options) {
  if (!HasSeveralPolicies(options)) {
    return {options.sparse_ratio > 0  ? plan::AttentionPath::kSparse
            : options.fetch_bytes > 0 ? plan::AttentionPath::kFetch
                                      : plan::AttentionPath::kRemote};
  }
  plan::AttentionPaths paths;
  for (const PreparedPolicy& policy : options.policies) {
    paths.Add(policy.path);
  }
  return paths;
}

// Bytes of K and V of one token as bf16, in all layers.
inline uint64_t KvBytesPerToken(const std::vector<AttentionDescriptor>& layers) {
  return KvSlotBytes(layers, KvForm::kBF16);
}

// Bytes of the activations of one token, in all layers; 0 where none are kept.
inline uint64_t ActivationBytesPerToken(const EngineOptions& options) {
  return options.layers.size() * uint64_t{options.activation_width} * sizeof(BFloat16);
}

// Bytes that a memory node keeps of one token at most: K and V, and under policy fetch_recompute
// the activations that they were made from; under fetch_hybrid one of them.
inline uint64_t SlotBytes(const EngineOptions& options) {
  const uint64_t kv = options.kv.SlotBytes(options.layers);
  return options.hybrid.has_value() ? std::max(kv, ActivationBytesPerToken(options))
                                    : kv + ActivationBytesPerToken(options);
}

// What a node that holds KV has besides its slots.
inline uint64_t TailBytes(const EngineOptions& options) {
  return options.kv.TailBytes(options.layers);
}

}  // namespace lamina::coordinator
