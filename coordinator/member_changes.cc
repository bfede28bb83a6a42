// SPDX-License-Identifier: Apache-2.0
#include "coordinator/member_changes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/node_name.h"
#include "common/status_macros.h"
#include "coordinator/node_admission.h"
#include "plan/limits.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kNameBytesShown = 100;

bool IsForming(const core::Membership& membership) {
  return membership.phase() != core::MembershipPhase::kWaiting;
}

// The members of the epoch are no longer those that are there: in the turn that follows they are.
absl::Status CheckSettled(const core::Membership& membership) {
  return IsForming(membership) && membership.epoch_ended()
             ? absl::UnavailableError("members are changing at this moment; try again")
             : absl::OkStatus();
}

}  // namespace

const core::Member* MemberChanges::Find(const std::string& name) const {
  const std::vector<core::Member>& all = members_.membership().all();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const core::Member& member) { return member.name == name; });
  return found == all.end() ? nullptr : &*found;
}

bool MemberChanges::InFile(const std::string& name) const {
  return std::any_of(options_.nodes.begin(), options_.nodes.end(), [&](const core::Member& member) {
    return member.name == name && member.is_memory;
  });
}

std::vector<std::string> MemberChanges::MemoryNames() const {
  std::vector<std::string> names;
  for (const core::Member& member : members_.membership().all()) {
    if (member.is_memory) {
      names.push_back(member.name);
    }
  }
  return names;
}

absl::Status MemberChanges::CheckPolicy() const {
  if (options_.policy_auto.has_value()) {
    return absl::FailedPreconditionError(
        "policy auto weighs memory nodes by their cores, which only the cluster file tells; name "
        "the node there and restart the coordinator");
  }
  return MemoryNames().empty()
             ? absl::FailedPreconditionError(
                   "policy local keeps K and V on compute nodes: a memory node would have no part; "
                   "choose policy attend_remote in the cluster file and restart the coordinator")
             : absl::OkStatus();
}

absl::Status MemberChanges::CheckCounts() const {
  const size_t memory = MemoryNames().size() + 1;
  if (options_.partition == Partition::kHead && memory > options_.layers[0].kv_heads) {
    return absl::FailedPreconditionError(
        absl::StrCat("partition head: ", memory, " memory nodes, but the model has ",
                     options_.layers[0].kv_heads, " KV heads; choose partition request in the ",
                     "cluster file, or drain another node first"));
  }
  if (memory > plan::kMemoryNodesMax || members_.membership().all().size() + 1 > plan::kNodesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster has ", memory - 1, " memory nodes, ",
                     members_.membership().all().size(), " nodes in all; it can have ",
                     plan::kMemoryNodesMax, ", and ", plan::kNodesMax, " in all"));
  }
  return absl::OkStatus();
}

absl::Status MemberChanges::Try(const EpochMember& node) const {
  if (!IsForming(members_.membership())) {
    return absl::OkStatus();
  }
  const absl::Status tried = trial_.CheckWith(node);
  return tried.ok() ? tried
                    : absl::FailedPreconditionError(
                          absl::StrCat("the cluster could not serve with memory node ", node.name,
                                       ": ", tried.message()));
}

absl::StatusOr<std::string> MemberChanges::Add(const std::string& name) {
  if (!IsNodeName(name) || IsDaemonName(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", ForeignText(name, kNameBytesShown), "' is no name of a node: 1 to ", kNodeNameBytesMax,
        " letters, digits, '_' or '-', beginning with a letter or digit, and not that of another "
        "daemon"));
  }
  if (const core::Member* member = Find(name); member != nullptr) {
    return member->is_memory
               ? absl::StatusOr<std::string>(
                     absl::StrCat(name, " is a memory node of this cluster already"))
               : absl::AlreadyExistsError(
                     absl::StrCat(name, " is a compute node of this cluster; choose another name"));
  }
  LAMINA_RETURN_IF_ERROR(CheckPolicy());
  LAMINA_RETURN_IF_ERROR(CheckCounts());
  LAMINA_RETURN_IF_ERROR(CheckSettled(members_.membership()));
  // With as much room as can be; what it really has is looked at when it joins.
  LAMINA_RETURN_IF_ERROR(
      Try({.name = name, .slots = UINT32_MAX / 2, .capacity_bytes = UINT64_MAX / 2}));
  drained_.erase(name);
  members_.Expect(name);
  return absl::StrCat(name, " may join as a memory node");
}

absl::Status MemberChanges::CheckSpared(const std::string& name) const {
  const core::Membership& membership = members_.membership();
  std::vector<std::string> others = MemoryNames();
  std::erase(others, name);
  if (others.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is the last memory node, and K and V would have no place; add another one first"));
  }
  if (!membership.IsThere(name)) {
    return absl::OkStatus();
  }
  if (std::none_of(others.begin(), others.end(),
                   [&](const std::string& other) { return membership.IsThere(other); })) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is the only memory node that is there (", absl::StrJoin(others, ", "),
                     " not), and K and V would have no place; start another one first"));
  }
  LAMINA_RETURN_IF_ERROR(CheckSettled(membership));
  if (!IsForming(membership)) {
    return absl::OkStatus();
  }
  const absl::Status tried = trial_.CheckWithout(name);
  return tried.ok() ? tried
                    : absl::FailedPreconditionError(absl::StrCat(
                          "the cluster could not serve without ", name, ": ", tried.message()));
}

absl::StatusOr<std::string> MemberChanges::Drain(const std::string& name) {
  const core::Member* member = Find(name);
  if (member == nullptr && drained_.contains(name)) {
    return absl::StrCat(name, " was drained already");
  }
  if (member == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no memory node ",
                                            ForeignText(name, kNameBytesShown), "; there are ",
                                            absl::StrJoin(MemoryNames(), ", ")));
  }
  if (!member->is_memory) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is a ", core::RoleOf(*member),
        " node, and only memory nodes are drained; stop its daemon (SIGTERM): it asks to leave, "
        "and the others go on where they can"));
  }
  LAMINA_RETURN_IF_ERROR(CheckSpared(name));
  const bool was_there = members_.nodes().Find(name) != nullptr;
  members_.Dismiss(name);
  drained_.insert(name);
  return was_there ? absl::StrCat(name, " is drained: its sequences go on with ",
                                  absl::StrJoin(MemoryNames(), ", "), ", and it ends")
                   : absl::StrCat(name, " was not there, and is not waited for any more");
}

absl::Status MemberChanges::CheckJoin(const NodeHello& hello) const {
  const control::NodeIdentity& identity = hello.identity;
  const core::Member* member = Find(identity.name);
  if (member == nullptr && drained_.contains(identity.name)) {
    return absl::FailedPreconditionError(absl::StrCat(
        identity.name, " was drained; `lamina node add ", identity.name, "` lets it join again"));
  }
  // The membership speaks for names that are taken, or not known.
  if (member == nullptr || !identity.is_memory || InFile(identity.name) ||
      members_.membership().IsThere(identity.name)) {
    return absl::OkStatus();
  }
  // With token_range steps have no room of their own for rows of prompts, and still have some:
  // behind what is found, what comes back from a spill tier, and what the scratch holds.
  const core::SchedulerOptions& limits = options_.scheduler;
  const bool prompt_rows = limits.prompt_rows_max > 0 || limits.prefix_cache || options_.spills ||
                           limits.scratch_tokens < limits.sequence_tokens_max;
  if (identity.device != "cpu" && prompt_rows) {
    return absl::FailedPreconditionError(
        absl::StrCat(identity.name, " holds K and V on ", identity.device,
                     ", and this cluster serves prompts in a way that needs all on processors; "
                     "name the node in the cluster file and restart the coordinator"));
  }
  if (members_.membership().epoch_ended()) {
    return absl::OkStatus();
  }
  const NodeAdmission admission(options_);
  return Try({.name = identity.name,
              .on_device = identity.device != "cpu",
              .fast_attention = identity.fast_attention,
              .slots = admission.SlotsOf(hello),
              .capacity_bytes = identity.capacity_bytes});
}

std::vector<std::string> MemberChanges::Warnings() const {
  std::vector<std::string> warnings;
  for (const std::string& name : MemoryNames()) {
    if (!InFile(name)) {
      warnings.push_back(absl::StrCat("memory node ", name,
                                      " is not in the cluster file: name it there before the "
                                      "coordinator restarts, or it is refused then"));
    }
  }
  for (const std::string& name : drained_) {
    if (InFile(name)) {
      warnings.push_back(absl::StrCat("memory node ", name,
                                      " was drained and is still in the cluster file: take it out "
                                      "before the coordinator restarts, or it is waited for then"));
    }
  }
  return warnings;
}

}  // namespace lamina::coordinator
