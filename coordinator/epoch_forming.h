// SPDX-License-Identifier: Apache-2.0
//
// EpochForming: from the nodes that take part to an epoch: its configuration, what the scheduler
// places sequences on, and how people are told of it. Pure: it asks no node and changes none.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/node_handler.h"
#include "coordinator/core/head_shares.h"
#include "coordinator/core/lane_homes.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/serving_bandwidth.h"
#include "coordinator/engine_options.h"
#include "coordinator/fetch_options.h"
#include "cost/step_cost.h"
#include "plan/epoch_config.h"
#include "plan/epoch_topology.h"
#include "plan/stages.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

// A node that takes part.
struct EpochMember {
  std::string name;
  bool on_device = false;  // It computes on another device than the processor.
  AttentionArithmetic fast_attention = AttentionArithmetic::kCanonical;  // As NodeIdentity's.
  // Set for nodes that hold KV.
  uint32_t slots = 0;
  uint64_t capacity_bytes = 0;
  control::SpillTier spill = {};
};

struct EpochMembers {
  uint64_t epoch = 0;
  std::string transport;             // URI
  bool local = false;                // Compute nodes hold KV and attend.
  std::vector<EpochMember> compute;  // Nodes for prefill only come last.
  uint32_t prefill_nodes = 0;
  // One entry for each compute node; empty: all have whole replicas.
  std::vector<plan::Stage> stages;
  FetchOptions fetch;  // What the epoch's policies ask for, on memory nodes.
  // Policy fetch_hybrid: share of the slots that hold activations.
  std::optional<uint32_t> activation_share;
  // The members of these names in FormedEpoch.
  std::string fetch_why = {};
  cost::KvPolicy policy = cost::KvPolicy::kAttendRemote;
  std::vector<EpochMember> kv;       // Nodes that hold KV.
  core::ServingBandwidth bandwidth;  // How fast each of these attends.
};

struct FormedEpoch {
  plan::EpochTopology topology;
  // What sequences are placed on: each node that holds KV, or all as one (partition head), or the
  // nodes of each replica as one (policy local).
  std::vector<core::MemoryNodeShare> shares;
  // The index of the share of each node that holds KV. With slots of both forms those of bf16, and
  // with slots of fetch_hybrid next to others those of the others: as many shares of INT8, or of
  // fetch_hybrid, follow, in the same order.
  std::vector<uint32_t> share_of;
  std::string partition;  // As status tells it.
  std::string shares_by;  // By what new sequences are shared out, as status tells it.
  std::string attention;  // In which arithmetic rows attend, and why, as status tells it.
  // Policy fetch_hybrid: by what tokens are held as they are, as status tells it.
  std::string fetch_why;
  // Policy auto: the epoch's.
  cost::KvPolicy policy = cost::KvPolicy::kAttendRemote;

  const plan::EpochConfig& config() const { return topology.config(); }
  // Whether a step's plan says which tokens come as activations, or are made from their numbers
  // (core/fetch_planning.h).
  bool plans_fetching() const {
    return (config().activation_width > 0 && config().activation_share == 0) ||
           config().made_tokens_max > 0;
  }
  // Whether each node, or all as one, is two shares.
  bool has_pairs() const { return !config().int8_slots.empty() || !config().hybrid_slots.empty(); }
  // How many shares there are of each of the two, or in all.
  uint32_t shares_of_form() const {
    return static_cast<uint32_t>(shares.size() / (has_pairs() ? 2 : 1));
  }
  // All shares of a node that holds KV.
  std::vector<uint32_t> SharesOf(uint32_t node) const {
    std::vector<uint32_t> all;
    for (uint32_t share = share_of[node]; share < shares.size(); share += shares_of_form()) {
      all.push_back(share);
    }
    return all;
  }
  // The scheduler's plans name shares, and those for nodes these.
  void NameNodes(plan::StepPlan& plan) const;
  // Whether nodes have the same slots, each with its heads of every sequence.
  bool heads_spread() const { return config().partition == Partition::kHead; }
  // Which lanes are bound to which share.
  core::LaneHomes homes() const {
    return topology.attends_at(plan::AttentionPath::kLocal)
               ? core::LaneHomes::Bound(static_cast<uint32_t>(shares.size()))
               : core::LaneHomes();
  }
};

class EpochForming {
 public:
  // The options must outlive this.
  explicit EpochForming(const EngineOptions& options) : options_(options) {}

  // Requires: at least one compute node that decodes, and one that holds KV.
  // Errors: of core::ShareHeads() and core::CheckSpans(), where K and V do not fit the nodes that
  //         are there; kFailedPrecondition  under policy local a stage or shard has no room for its
  //         part of one request, or slots of fetch_hybrid, or those next to them, for one; of
  //         plan::EpochTopology::Create(), which only a bug of ours can bring about.
  absl::StatusOr<FormedEpoch> Form(const EpochMembers& members) const;

 private:
  struct Placement {
    std::vector<core::MemoryNodeShare> shares;
    std::vector<uint32_t> share_of = {};    // One entry for each node; empty: each is a share.
    std::vector<HeadRange> heads = {};      // Partition head.
    std::vector<uint32_t> slots;            // One entry for each node.
    std::vector<uint32_t> int8_slots = {};  // EpochConfig::int8_slots, hybrid_slots
    std::vector<uint32_t> hybrid_slots = {};
    std::string words;
  };
  absl::StatusOr<Placement> Place(const EpochMembers& members) const;
  absl::StatusOr<Placement> PlaceHeads(const EpochMembers& members) const;
  absl::StatusOr<Placement> PlaceSequences(const EpochMembers& members) const;
  // Policy local: each replica is a share, with as many slots as the fullest of its nodes has.
  absl::StatusOr<Placement> PlaceReplicas(const EpochMembers& members) const;
  // Slots of both forms: cuts each share in two.
  void PlaceForms(const EpochMembers& members, Placement& placement) const;
  // Slots of fetch_hybrid next to others: the same.
  absl::Status PlaceHybrid(const EpochMembers& members, Placement& placement) const;
  // Slots of a compute node, of the layers and heads that it runs.
  absl::StatusOr<uint32_t> SlotsOfPart(const EpochMember& member, const plan::Stage& part) const;
  uint32_t LanesOf(const EpochMembers& members, const Placement& placement) const;
  plan::EpochConfig ConfigOf(const EpochMembers& members, const Placement& placement) const;
  std::string DescribePartition(const EpochMembers& members, const std::string& words) const;

  const EngineOptions& options_;
};

// Where the regions of the members are, once all have prepared.
plan::EpochPeers PeersOf(const core::Membership& membership);

// Which nodes run prompts: "inline", "dedicated: p0, p1+p2".
std::string DescribePrefill(const core::Membership& membership);

}  // namespace lamina::coordinator
