// SPDX-License-Identifier: Apache-2.0
//
// ClusterMembers: who takes part: nodes that join, leave, fail and fall silent, and the epochs that
// follow. Brings the parts together that decide: core/membership.h (who and when), replica_splits.h
// (stages and shards), policy_auto.h (where KV is), epoch_forming.h (the configuration); and tells
// the nodes, over their ports, and the owner.
//
// Threading: the engine's thread.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/attached_nodes.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/transport_choice.h"
#include "coordinator/engine_options.h"
#include "coordinator/epoch_forming.h"
#include "coordinator/hybrid_share.h"
#include "coordinator/layer_loading.h"
#include "coordinator/node_admission.h"
#include "coordinator/node_port.h"
#include "coordinator/policy_auto.h"
#include "coordinator/replica_splits.h"

namespace lamina::coordinator {

// What follows from epochs for those who serve requests.
class EpochOwner {
 public:
  virtual ~EpochOwner() = default;
  // The epoch replaces the one before: whatever was running is recomputed. Its nodes are told
  // afterwards. `lost` names the members that were lost since the epoch before began.
  virtual void BeginEpoch(const FormedEpoch& epoch, const std::vector<std::string>& lost) = 0;
  // Its nodes are ready: steps may be planned.
  virtual void EpochServes(const FormedEpoch& epoch) = 0;
  // The cluster waits for nodes: every request ends with this status.
  virtual void StopServing(const absl::Status& status) = 0;
};

class ClusterMembers {
 public:
  // Decode rows, lanes that have some, and all their tokens of context; of several policies those
  // of fetch_hybrid.
  struct Load {
    uint32_t rows = 0;
    uint32_t prefilling = 0;  // So many of the rows are at their prompts.
    uint32_t lanes = 0;
    uint64_t context_tokens = 0;
    // Since the coordinator started: tokens generated, steps planned with rows of prompts, and
    // tokens of prompts that these compute.
    uint64_t tokens = 0;
    uint64_t prompts = 0;
    uint64_t prompt_tokens = 0;
  };

  // Options, clock and owner must outlive this.
  ClusterMembers(const EngineOptions& options, const Clock& clock, EpochOwner& owner);

  // --- Turns of the event loop ---
  // Before its events.
  void BeginTurn();
  // After them: leaves out who is silent or stuck,
  void DropLostNodes();
  // with policy auto sees the load, and begins an epoch of another policy, or of another share of
  // fetch_hybrid, when nothing has run for long enough; with fetch_hybrid sees it too, and begins
  // one of the share that has been measured to be best for it, when nothing runs; `load` is asked
  // for while requests run,
  void WatchLoad(bool works, const std::function<Load()>& load);
  // and forms the epochs that are due.
  void Advance();

  // --- What nodes say. Of all but Joined() and Left() the node is attached (IsFrom()). ---
  void Joined(const NodeHello& hello, std::shared_ptr<NodePort> port);
  // Nothing happens where `from` was refused, or is replaced already.
  void Left(const NodeSource& from);
  void Loaded(const std::string& name, const absl::StatusOr<plan::PolicyTimes>& times);
  void Prepared(const std::string& name, uint64_t epoch, const control::PreparedNode& prepared);
  void Ready(const std::string& name, uint64_t epoch);
  void Fault(const std::string& name, uint64_t epoch, const absl::Status& status);
  void Links(const std::string& name, uint64_t epoch, std::vector<control::LinkReport> links);
  void TakeStatus(const std::string& name, double busy_share,
                  const telemetry::NodeCounters& counters);
  // Ends the streams of nodes that asked for it, and goes on without them.
  void Release(const std::vector<std::string>& names);
  // --- What the operator says (member_changes.h) ---
  // A memory node of that name may join. Requires: no node has it.
  void Expect(const std::string& name);
  // The node, attached or not, leaves for good: it is told so, and expected no more.
  void Dismiss(const std::string& name);

  // A step was done in the current epoch.
  void NoteProgress() { membership_.NoteProgress(); }

  // --- What there is ---
  bool IsFrom(const NodeSource& from) const { return nodes_.Has(from); }
  bool serving() const { return membership_.phase() == core::MembershipPhase::kServing; }
  const core::Membership& membership() const { return membership_; }
  const core::TransportChoice& transport() const { return transport_; }
  const AttachedNodes& nodes() const { return nodes_; }
  const ReplicaSplits& splits() const { return splits_; }
  // The last one that was formed; null before the first. Its nodes may be gone.
  const FormedEpoch* epoch() const { return epoch_.has_value() ? &*epoch_ : nullptr; }
  // Null without policy auto.
  const PolicyAuto* policy() const { return policy_.has_value() ? &*policy_ : nullptr; }
  // What an epoch of this membership is formed of, with what its policy asks for; under policy auto
  // the one that was chosen last. `membership` is membership(), or a copy of it in which nodes are
  // missing. Requires: replicas are split.
  EpochMembers MembersFor(const core::Membership& membership) const;

 private:
  void Configure();
  void TellMembers();
  void Connect();
  // With policy auto, for the epoch that is being formed.
  void SettlePolicy();
  // Tells an attached node why it cannot join, and forgets it.
  void RefuseJoined(const std::string& name, const absl::Status& why);
  // Remembers the members that the change takes away, for the epoch that follows.
  void NoteLosses(const std::function<void()>& change);
  // Tells the node and the log why, ends its stream and goes on without it.
  void LeaveOut(const AttachedNodes::Lost& lost);
  // Whether another transport of the list is tried, or policy auto takes another policy than the
  // one that could not be prepared. A second node that says the same changes nothing.
  bool PassOver(const std::string& name, uint64_t epoch, const absl::Status& status);
  void StopIfWaiting(const std::string& why);

  const EngineOptions& options_;
  const Clock& clock_;
  EpochOwner& owner_;
  const NodeAdmission admission_;
  const EpochForming forming_;
  core::Membership membership_;
  core::TransportChoice transport_;
  AttachedNodes nodes_;
  ReplicaSplits splits_;
  LayerLoading loading_;
  std::optional<PolicyAuto> policy_;
  std::optional<HybridShare> hybrid_;
  std::optional<FormedEpoch> epoch_;
  std::vector<std::string> lost_;  // Members lost since the epoch began.
};

}  // namespace lamina::coordinator
