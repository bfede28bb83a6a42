// SPDX-License-Identifier: Apache-2.0
#include "coordinator/member_trial.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "plan/window_layout.h"

namespace lamina::coordinator {

core::Membership MemberTrial::Without(const std::vector<std::string>& names, bool& serves) const {
  core::Membership without = members_.membership();
  for (const std::string& name : names) {
    without.Leave(name);
  }
  serves = without.Next() == core::MembershipAction::kConfigure ||
           without.phase() == core::MembershipPhase::kServing;
  return without;
}

bool MemberTrial::CanServeWithout(const std::vector<std::string>& names) const {
  bool serves = false;
  const core::Membership without = Without(names, serves);
  return serves && forming_.Form(members_.MembersFor(without)).ok();
}

absl::Status MemberTrial::CheckWithout(const std::string& name) const {
  bool serves = false;
  const core::Membership without = Without({name}, serves);
  if (!serves) {
    return absl::UnavailableError(
        absl::StrCat("the nodes that are there cannot serve without ", name));
  }
  return forming_.Form(members_.MembersFor(without)).status();
}

absl::Status MemberTrial::CheckWith(const EpochMember& node) const {
  core::Membership all = members_.membership();
  all.Tick(std::numeric_limits<Nanos>::max());  // What is set aside is tried again some day.
  EpochMembers members = members_.MembersFor(all);
  members.kv.push_back(node);
  // Until it is measured, as fast as another one.
  members.bandwidth.bytes_per_second.push_back(members.bandwidth.bytes_per_second.front());
  LAMINA_ASSIGN_OR_RETURN(const FormedEpoch formed, forming_.Form(members));
  LAMINA_RETURN_IF_ERROR(plan::WindowLayout::Check(formed.topology.window_shape()));
  return CheckBudget(formed);
}

// The compute node's windows grow with each memory node, and the rest of what it reports hardly
// does. Several compute nodes have windows for each other, whose sizes they alone know.
absl::Status MemberTrial::CheckBudget(const FormedEpoch& formed) const {
  const std::vector<std::string>& compute = formed.config().compute_nodes;
  if (compute.size() != 1) {
    return absl::OkStatus();
  }
  const auto& counters = members_.nodes().at(compute.front()).counters;
  // The report may be older than the epoch: its windows are not looked at.
  const uint64_t windows =
      plan::WindowLayout(formed.topology.window_shape()).compute_region_bytes();
  uint64_t needed = windows;
  for (const auto& [part, bytes] : counters.memory) {
    needed += part == "windows" ? 0 : bytes;
  }
  return counters.memory_budget == 0 || needed <= counters.memory_budget
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "compute node ", compute.front(), " has memory_budget ",
                   FormatBytes(counters.memory_budget), ", and would need ", FormatBytes(needed),
                   ", of which ", FormatBytes(windows),
                   " are windows; raise it and restart the node, or drain another memory node"));
}

}  // namespace lamina::coordinator
