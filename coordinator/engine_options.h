// SPDX-License-Identifier: Apache-2.0
//
// EngineOptions: what the engine is told of the cluster and the model before any node has joined.
// cluster_options.h makes them from the cluster file.

#pragma once

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
#include "coordinator/core/membership.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/fetch_options.h"
#include "coordinator/request_record.h"
#include "cost/policy_step.h"
#include "cost/step_cost.h"
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

// A policy that policy auto weighs, as far as the cluster file and the model tell.
struct WeighedPolicy {
  cost::KvPolicy policy = cost::KvPolicy::kLocal;
  std::string why_not = {};  // Why no epoch can have it, or is to; empty: it may.
  FetchOptions fetch = {};   // What it asks of an epoch.
};

// Policy auto: each epoch has the policy that decodes fastest.
struct PolicyAutoOptions {
  cost::PolicyLoad load;  // The load to choose for until some has been seen.
  std::vector<MemoryNodesOnCores> memory = {};
  Nanos idle = Seconds(5);  // So long nothing runs before an epoch of another policy begins.
  // The first one goes before others that are as fast.
  std::vector<WeighedPolicy> policies = {{.policy = cost::KvPolicy::kAttendRemote},
                                         {.policy = cost::KvPolicy::kLocal}};
};

// A policy that epochs prepare, with a form of K and V, for requests that name them.
struct PreparedPolicy {
  std::string name;
  plan::AttentionPath path = plan::AttentionPath::kRemote;  // Not with policy auto.
  std::string lossy = {};                                   // EngineOptions::lossy of its requests.
  KvForm kv = KvForm::kBF16;
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
  double part_row_bytes = 0;             // Bytes of a row between nodes of `replicas`.
  bool has_experts = false;              // The model is a mixture of experts.
  bool spills = false;                   // Memory nodes may have spill tiers.
  uint32_t vocabulary = 0;
  std::string model_fingerprint;
  std::vector<std::string> transports = {"shm://"};  // URIs; the first that works for all nodes.
  PipelineMode mode = PipelineMode::kRotational;
  Partition partition = Partition::kRequest;  // Not kAuto.
  std::string partition_why;                  // Reason for a chosen one; status tells it.
  uint32_t replica_lanes = 1;     // Policies local and auto: lanes of each replica that keeps KV.
  std::string replica_lanes_why;  // And why so many.
  std::optional<PolicyAutoOptions> policy_auto;
  double bus_bytes_per_second = 0;  // What all links share (an emulated bus); 0: nothing.
  FetchOptions fetch;  // What `policies` ask for; with policy auto each epoch has its own.
  // What makes answers of requests that name no policy other than those of whole attention, for
  // those who get them: a word without spaces, like fetch_sparse-0.5-window_sums. Empty: nothing.
  std::string lossy;
  // What epochs prepare. The first one is for requests that name none. Empty: nobody names any.
  std::vector<PreparedPolicy> policies;
  core::SchedulerOptions scheduler;  // memory_nodes, prefill_lanes: filled in at each epoch.
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

// The paths of an epoch whose K and V are on memory nodes, and which fetches like this.
inline plan::AttentionPaths PathsOnMemoryNodes(const EngineOptions& options,
                                               const FetchOptions& fetch) {
  if (!HasSeveralPolicies(options)) {
    return {PathOnMemoryNodes(fetch)};
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

// What a node that holds KV has besides its slots.
inline uint64_t TailBytes(const EngineOptions& options) {
  return options.kv.TailBytes(options.layers);
}

}  // namespace lamina::coordinator
