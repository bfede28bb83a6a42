// SPDX-License-Identifier: Apache-2.0
#include "coordinator/member_trial.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
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
  return plan::WindowLayout::Check(formed.topology.window_shape());
}

}  // namespace lamina::coordinator
