// SPDX-License-Identifier: Apache-2.0
//
// MemberChanges: memory nodes that the operator adds to a running cluster or takes away from it for
// good (`lamina node`). Decides what the cluster can do, and refuses the rest; ClusterMembers does
// it. What has changed is forgotten with the coordinator: then the cluster file counts again.
//
// Threading: the engine's thread.

#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cluster_members.h"
#include "coordinator/engine_options.h"
#include "coordinator/member_trial.h"
#include "coordinator/node_port.h"

namespace lamina::coordinator {

class MemberChanges {
 public:
  // Both must outlive this.
  MemberChanges(const EngineOptions& options, ClusterMembers& members)
      : options_(options), members_(members), trial_(options, members) {}

  // A memory node of that name may join from now on. Again: changes nothing. Returns what follows,
  // in words.
  // Errors: kInvalidArgument     no name of a node.
  //         kAlreadyExists       a compute node has it.
  //         kFailedPrecondition  the policy, the partition or the windows allow no node more.
  //         kUnavailable         members are changing at this moment.
  absl::StatusOr<std::string> Add(const std::string& name);

  // The node's sequences go on elsewhere from their committed tokens, and it ends. Again: changes
  // nothing. Returns what follows, in words.
  // Errors: kNotFound            there is no such node; names those that there are.
  //         kInvalidArgument     a compute node.
  //         kFailedPrecondition  the others could not serve, or K and V do not fit them.
  //         kUnavailable         members are changing at this moment.
  absl::StatusOr<std::string> Drain(const std::string& name);

  // Before a node that says Hello joins.
  // Errors: kFailedPrecondition  it was drained; it was added, or others were while it was gone,
  //                              and the cluster cannot serve with what it has.
  absl::Status CheckJoin(const NodeHello& hello) const;

  // Where the cluster file is no longer what is served, in words for status.
  std::vector<std::string> Warnings() const;

 private:
  const core::Member* Find(const std::string& name) const;
  bool InFile(const std::string& name) const;
  // Whether a memory node is attached that is not.
  bool HasAdded() const;
  // Memory nodes of that name and others, absent ones too.
  std::vector<std::string> MemoryNames() const;
  absl::Status CheckPolicy() const;
  absl::Status CheckCounts() const;
  absl::Status CheckSpared(const std::string& name) const;
  // Tries a change of a cluster that serves, or is about to; without one, all can only be seen
  // later.
  absl::Status Try(const EpochMember& node) const;

  const EngineOptions& options_;
  ClusterMembers& members_;
  const MemberTrial trial_;
  std::set<std::string> drained_;
};

}  // namespace lamina::coordinator
