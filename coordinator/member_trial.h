// SPDX-License-Identifier: Apache-2.0
//
// MemberTrial: whether the cluster could serve with other members, before they change. It asks the
// membership's own state machine, ClusterMembers for what an epoch is formed of, and the forming of
// epochs, so that no second rule can differ.
//
// Threading: the engine's thread.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cluster_members.h"
#include "coordinator/engine_options.h"
#include "coordinator/epoch_forming.h"

namespace lamina::coordinator {

class MemberTrial {
 public:
  // Both must outlive this.
  MemberTrial(const EngineOptions& options, const ClusterMembers& members)
      : members_(members), forming_(options) {}

  // Whether an epoch of the others could begin, or the one that serves could go on.
  bool CanServeWithout(const std::vector<std::string>& names) const;

  // Whether K and V, windows and heads fit the nodes that would be left. Requires: the cluster
  // serves, or is about to.
  // Errors: kUnavailable  nothing could serve; else of EpochForming::Form().
  absl::Status CheckWithout(const std::string& name) const;

  // Whether they fit with a memory node more, those counted that are set aside.
  // Errors: of EpochForming::Form(), kInvalidArgument for windows that grow too large, and
  //         kFailedPrecondition for those that exceed the only compute node's memory_budget.
  absl::Status CheckWith(const EpochMember& node) const;

 private:
  absl::Status CheckBudget(const FormedEpoch& formed) const;
  // The membership without them; `serves`: whether it would serve.
  core::Membership Without(const std::vector<std::string>& names, bool& serves) const;

  const ClusterMembers& members_;
  const EpochForming forming_;
};

}  // namespace lamina::coordinator
