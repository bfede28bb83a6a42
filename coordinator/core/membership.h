// SPDX-License-Identifier: Apache-2.0
//
// Membership: which nodes are there, and which epoch they serve in. A pure state machine.
//
// The first epoch waits for every node of the cluster file. When a node is lost, an epoch of those
// left starts at once, if at least one compute node (of those that decode) and one that holds KV (a
// memory node, or under policy local a compute node) are among them; when it comes back, an epoch
// with it. Of a replica that several compute nodes hold together (stages) all take part or none:
// those that are there wait for the others. Where memory nodes and a compute node may hold KV
// (policy auto), each epoch has KV in one of the two places, as its owner says before it is
// configured; under policy local memory nodes stay attached and have no part in it. Each epoch goes
// through preparing (regions are made), connecting (regions are opened) and serving.
//
// Nodes may be expected, or dismissed, while the cluster runs (member_changes.h).
//
// A fault starts an epoch of the same nodes. Too many of them (fault_limits.h) set one node aside,
// by what all have reported (fault_evidence.h); where that names nobody, the cluster waits and says
// why. Either is tried again after a while (retry_times.h).
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/fault_evidence.h"
#include "coordinator/core/fault_limits.h"
#include "coordinator/core/retry_times.h"

namespace lamina::core {

enum class MemberState : uint8_t { kAbsent, kJoined, kPrepared, kReady, kFailed };

struct Member {
  std::string name;
  bool is_memory = false;
  bool prefill = false;  // A compute node that runs prompts' chunks alone.
  // Compute nodes of one replica take part together or not at all. Empty: a replica by itself.
  std::string replica = {};
  // A compute node that holds KV itself (policy local, and auto in epochs that are local).
  bool holds_kv = false;
  MemberState state = MemberState::kAbsent;
  std::string region = {};   // Descriptor, from kPrepared on.
  std::string problem = {};  // Why it is kFailed.
  // When it joined, or was tried again, and the epoch that was then.
  Nanos joined = 0;
  uint64_t joined_in = 0;
};

// "compute", "prefill" or "memory".
absl::string_view RoleOf(const Member& member);

enum class MembershipPhase : uint8_t { kWaiting, kPreparing, kConnecting, kServing };

enum class MembershipAction : uint8_t {
  kNone,
  kConfigure,  // A new epoch: send its configuration to members().
  kConnect,    // All have prepared: send everybody's regions.
  kServe,      // All are ready: plan.
};

class Membership {
 public:
  // The nodes of the cluster file, in order.
  explicit Membership(std::vector<Member> expected);

  // One node more may join. Nobody waits for it, unless the first epoch is still to come.
  // Requires: no node has its name.
  void Expect(Member member);
  // Leaves, and is expected no more.
  void Dismiss(const std::string& name);

  // Errors: kNotFound       not in the cluster file; names those that are.
  //         kAlreadyExists  a node of that name is there.
  absl::Status Join(const std::string& name, bool is_memory);
  void Leave(const std::string& name);
  void Prepared(const std::string& name, uint64_t epoch, std::string region);
  void Ready(const std::string& name, uint64_t epoch);
  // The node cannot go on in this epoch. While preparing, it is set aside with its problem; later,
  // a new epoch starts, and a node is set aside when that has happened too often: the one that most
  // reports blame. `peer` is the one that this report blames, which may be the node itself; empty:
  // nobody. Of an epoch that is over, only the blame is noted.
  void Fault(const std::string& name, uint64_t epoch, const absl::Status& status,
             const std::string& peer = "");
  // A step was done in this epoch.
  void NoteProgress();
  // It is `now`; called often. True when what was set aside is tried again.
  bool Tick(Nanos now);

  // Where KV is in this epoch: on compute nodes that hold it, or on memory nodes. In answer to
  // kConfigure, before members are asked for. At first on memory nodes, if the file has any.
  void KeepKvOnCompute(bool local) { local_ = local; }
  bool local() const { return local_; }

  // The answer to kConfigure when the members cannot serve together: waits for other members.
  void CannotServe(absl::string_view problem);

  // The epoch cannot go on, through no fault of `name`, which says so: another one of the same
  // members starts. False, and nothing changes, when the epoch is over already.
  bool StartAnew(const std::string& name, uint64_t epoch);
  // Starts another epoch because its owner wants to: not while one forms or the members change.
  bool StartAnew();

  // What to do now; call until kNone.
  MembershipAction Next();

  uint64_t epoch() const { return epoch_; }
  MembershipPhase phase() const { return phase_; }
  // Whether members or faults since the epoch was formed have ended it: the next call of Next()
  // begins another. Until then members are no longer those that the epoch was configured with.
  bool epoch_ended() const { return changed_; }
  // Members of the current epoch. Compute nodes for prompts come last.
  std::vector<const Member*> compute_members() const;
  std::vector<const Member*> memory_members() const { return Of(true); }
  // The members that hold KV: memory nodes, or under policy local compute nodes.
  std::vector<const Member*> kv_members() const;
  // Whether the node is there, with a part in the epoch or not.
  bool IsThere(const std::string& name) const;
  // Whether it has held KV in some epoch.
  bool HoldsKv(const std::string& name) const;
  // How many of the compute nodes are for prefill only.
  uint32_t prefill_members() const;
  const std::vector<Member>& all() const { return nodes_; }

  // "serving", "waiting for c0, m1", "m0 failed: ...", "cannot serve: ...".
  std::string Describe() const;
  // Names faults that are frequent, but not enough to act; empty when all is well.
  std::string Warning() const;

 private:
  std::vector<const Member*> Of(bool memory) const;
  bool CanForm() const;
  bool AllMembers(MemberState least) const;
  // Whether it is there, with all of its replica, and has a part in epochs as this one is, or
  // `in_next` in the one that would begin now.
  bool TakesPart(const Member& node, bool in_next = false) const;
  // Acts on too many faults since epoch `since`, the last of which said `message`.
  void Judge(uint64_t since, absl::string_view message);
  void SetAside(Member& node, absl::string_view problem);
  std::vector<FaultEvidence::Suspect> Suspects() const;

  std::vector<Member> nodes_;
  uint64_t epoch_ = 0;
  MembershipPhase phase_ = MembershipPhase::kWaiting;
  bool local_ = false;    // KV is on compute nodes.
  bool changed_ = false;  // Something since the epoch was formed has ended it.
  bool formed_once_ = false;
  std::string problem_;  // What CannotServe() was told, while it lasts.
  FaultEvidence evidence_;
  FaultLimits limits_;
  RetryTimes retries_;      // Under kCluster the cluster as a whole.
  uint64_t progress_ = 0;   // The epoch of the last step that was done.
  std::string last_fault_;  // "c0: cannot open ...".
  Nanos now_ = 0;
};

}  // namespace lamina::core
