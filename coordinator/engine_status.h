// SPDX-License-Identifier: Apache-2.0
//
// EngineStatus: what the cluster says of itself, and StatusBuilder, which puts it together.
//
// Threading: the engine's thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/attached_nodes.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/policy_choice.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/transport_choice.h"
#include "coordinator/engine_options.h"
#include "coordinator/epoch_forming.h"
#include "coordinator/node_port.h"
#include "coordinator/replica_splits.h"
#include "cost/token_price.h"

namespace lamina::coordinator {

struct NodeReport {
  core::Member member;
  std::string layers;   // A stage's "0-18"; a shard's "0-29, KV heads 0-1, MLP columns 0-703".
  std::string windows;  // Where the windows that peers write lie.
  NodeHello hello;
  double busy_share = 0;
  telemetry::NodeCounters counters;
  uint64_t reports = 0;    // AttachedNode::reports
  Nanos thread_still = 0;  // How long its data thread has not moved.
  core::KvPoolStats kv;    // Slots of all forms together.
  // Where slots have several forms, or fetch_hybrid has some of its own: each one's.
  struct Form {
    KvForm form = KvForm::kBF16;
    core::KvPoolStats kv;
    std::string policy = {};  // "fetch_hybrid", or "others"; empty: requests of all are there.
  };
  std::vector<Form> forms = {};
};

// What joins two nodes of the current epoch.
struct PairLink {
  std::string from;
  control::LinkReport report;   // As measured.
  double exchange_seconds = 0;  // Recent, there and back with attention between; 0: none.
  std::string odd;              // What is odd about it, in words; mostly empty.
};

// A policy that epochs prepare.
struct PolicyReport {
  std::string name;
  std::string lossy;  // PreparedPolicy::lossy
  uint32_t running = 0;
  // The form of K and V; nothing where all requests have the same.
  std::optional<KvForm> kv = {};
};

struct EngineStatus {
  uint64_t epoch = 0;
  std::string state;
  std::string transport;              // Scheme.
  std::vector<std::string> warnings;  // What works, and not as the cluster file would have it.
  std::vector<PairLink> links;        // As they are measured.
  std::vector<NodeReport> nodes;
  core::SchedulerStats scheduler;
  // "r0: c0 0-18, c1 19-29, by cost"; "r0: c0 0-29, c1 0-29; shards of 3 KV heads and ..."
  std::string stages;
  std::string stages_odd;  // What use says against the speeds that stages were split by.
  std::string policy;      // "local", "attend_remote"; empty before policy auto has chosen.
  std::vector<PolicyReport>
      policies;               // What requests may name; the first is for those that do not.
  std::string policy_choice;  // Why, and
  std::optional<core::PolicyChoice> policy_figures;  // by what; with policy auto.
  std::string partition;  // "request"; "head: m0 2, m1 1 of 3 KV heads; ..."
  std::string attention;  // "pairs: every node is fast at pairs of bf16"
  std::string prefill;    // "inline"; "dedicated: p0"
  double tokens_per_second = 0;
  uint64_t tokens_generated = 0;
  uint64_t tokens_prefilled = 0;  // Prompt tokens that were computed; again after a preemption.
  uint64_t tokens_cached = 0;     // Prompt tokens that new sequences found computed.
  cost::PoolWork token_work;      // What nodes' time went to (token_work.h).
  cost::PoolPrices pool_prices;   // As the cluster file has them.
  uint64_t requests_finished = 0;
  uint64_t requests_failed = 0;
  // New requests are taken: not so, though the cluster serves, while a node that it needs leaves.
  bool admits = false;
};

// Where a status comes from.
struct StatusSources {
  const core::Membership& membership;
  const core::TransportChoice& transport;
  const AttachedNodes& nodes;
  const ReplicaSplits& splits;
  const core::Scheduler& scheduler;
  const FormedEpoch* epoch = nullptr;  // The last one; null before the first.
  // By what new sequences are shared out now, in words.
  std::string shares_by;
  std::optional<core::PolicyChoice> policy_choice;  // With policy auto, once it has chosen.
  bool draining = false;
};

class StatusBuilder {
 public:
  // The options must outlive this.
  explicit StatusBuilder(const EngineOptions& options) : options_(options) {}

  // All but the counts of tokens and requests.
  EngineStatus Build(const StatusSources& sources) const;

 private:
  std::vector<std::string> Warnings(const StatusSources& sources, const std::string& prefill) const;
  std::string DescribePartition(const StatusSources& sources) const;
  // The policy of requests that name none; empty before policy auto has chosen.
  std::string PolicyOf(const StatusSources& sources) const;
  std::vector<PolicyReport> PoliciesOf(const core::Scheduler& scheduler) const;
  NodeReport ReportOf(const core::Member& member, const StatusSources& sources) const;

  const EngineOptions& options_;
};

}  // namespace lamina::coordinator
