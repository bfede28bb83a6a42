// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::core {
namespace {

bool IsAttached(const Member& node) {
  return node.state != MemberState::kAbsent && node.state != MemberState::kFailed;
}

// No node has this name.
constexpr char kCluster[] = "";

// Who leaves sooner may have come to nobody's use.
constexpr Nanos kShortLife = Seconds(60);

bool KeepsKv(const Member& node) { return node.is_memory || node.holds_kv; }

// Null where there is none.
Member* FindIn(std::vector<Member>& nodes, const std::string& name) {
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [&](const Member& member) { return member.name == name; });
  return found == nodes.end() ? nullptr : &*found;
}

// Whether it is there, and with it all of its replica.
bool IsWhole(const std::vector<Member>& nodes, const Member& node) {
  return IsAttached(node) &&
         (node.replica.empty() || std::all_of(nodes.begin(), nodes.end(), [&](const Member& other) {
            return other.replica != node.replica || IsAttached(other);
          }));
}

// Whether it has a part, and an epoch can form without it.
bool CanGo(const std::vector<FaultEvidence::Suspect>& nodes, const std::string& name) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const FaultEvidence::Suspect& node) {
    return node.name == name && !node.needed;
  });
}

}  // namespace

absl::string_view RoleOf(const Member& member) {
  return member.is_memory ? "memory" : member.prefill ? "prefill" : "compute";
}

Membership::Membership(std::vector<Member> expected) : nodes_(std::move(expected)) {
  local_ =
      std::none_of(nodes_.begin(), nodes_.end(), [](const Member& node) { return node.is_memory; });
}

void Membership::Expect(Member member) { nodes_.push_back(std::move(member)); }

void Membership::Dismiss(const std::string& name) {
  Leave(name);
  retries_.Forget(name);
  std::erase_if(nodes_, [&](const Member& node) { return node.name == name; });
  // The first epoch may have waited for it alone.
  changed_ = changed_ || !formed_once_;
}

absl::Status Membership::Join(const std::string& name, bool is_memory) {
  Member* member = FindIn(nodes_, name);
  if (member == nullptr || member->is_memory != is_memory) {
    std::vector<std::string> known;
    for (const Member& node : nodes_) {
      if (node.is_memory == is_memory) {
        known.push_back(node.name);
      }
    }
    return absl::NotFoundError(absl::StrCat("the cluster file has no ",
                                            is_memory ? "memory" : "compute", " node ", name,
                                            "; it has ", absl::StrJoin(known, ", ")));
  }
  if (member->state != MemberState::kAbsent) {
    return absl::AlreadyExistsError(
        absl::StrCat("a node named ", name, " is already part of this cluster; stop it first"));
  }
  member->state = MemberState::kJoined;
  member->problem.clear();
  member->joined = now_;
  member->joined_in = epoch_;
  // Each time it comes costs everybody an epoch, as it goes another.
  if (retries_.ComesAndGoes(name) && CanGo(Suspects(), name)) {
    SetAside(*member, absl::StrCat("it left ", RetryTimes::kLeavesMax,
                                   " times or more soon after it came, before a step was done"));
    return absl::OkStatus();
  }
  // Before the first epoch all are waited for.
  changed_ = changed_ || !formed_once_ || TakesPart(*member, /*in_next=*/true);
  return absl::OkStatus();
}

void Membership::Leave(const std::string& name) {
  Member* member = FindIn(nodes_, name);
  if (member == nullptr || member->state == MemberState::kAbsent) {
    return;
  }
  // A node without a part (it waits for other stages, or is set aside) is no loss to the epoch.
  changed_ = changed_ || !formed_once_ || TakesPart(*member);
  limits_.NoteDeparture(now_);
  evidence_.Forget(name);
  if (formed_once_) {
    retries_.NoteLeft(name, progress_ <= member->joined_in && now_ - member->joined < kShortLife);
  }
  member->state = MemberState::kAbsent;
  member->region.clear();
  if (!CanForm()) {
    phase_ = MembershipPhase::kWaiting;
  }
}

void Membership::Prepared(const std::string& name, uint64_t epoch, std::string region) {
  Member* member = FindIn(nodes_, name);
  if (member == nullptr || epoch != epoch_ || member->state != MemberState::kJoined) {
    return;
  }
  member->state = MemberState::kPrepared;
  member->region = std::move(region);
}

void Membership::Ready(const std::string& name, uint64_t epoch) {
  Member* member = FindIn(nodes_, name);
  if (member != nullptr && epoch == epoch_ && member->state == MemberState::kPrepared) {
    member->state = MemberState::kReady;
    evidence_.Connected(name, member->is_memory, epoch);
  }
}

void Membership::Fault(const std::string& name, uint64_t epoch, const absl::Status& status,
                       const std::string& peer) {
  Member* member = FindIn(nodes_, name);
  if (member == nullptr || epoch > epoch_ || !IsAttached(*member)) {
    return;
  }
  if (!peer.empty()) {
    const Member* blamed = FindIn(nodes_, peer);
    // Faults of a dismissed node are not noted, and it says nothing about the reporter.
    if (blamed != nullptr || epoch == epoch_) {
      evidence_.Accuse(name, blamed == nullptr ? name : peer, epoch, /*late=*/epoch != epoch_,
                       status.message());
    }
  }
  // The epoch is over anyway. Whoever works with a peer that left reports a fault, and one fault is
  // often seen from two sides: neither says anything about the node that reports it.
  if (epoch != epoch_ || phase_ == MembershipPhase::kWaiting || changed_) {
    return;
  }
  changed_ = true;
  last_fault_ = absl::StrCat(name, ": ", status.message());
  if (phase_ == MembershipPhase::kPreparing) {
    return SetAside(*member, status.message());  // It fails by itself.
  }
  // Later it may fail through a peer of whose end nobody knows yet.
  limits_.NoteFault(epoch, now_);
  Member* blamed = FindIn(nodes_, peer);
  // Either of two nodes that blame each other may be heard first. If one is on trial, and nothing
  // serves without it, while the other can go, there is a cluster to try it in.
  if (blamed != nullptr && retries_.OnTrial(peer)) {
    if (CanGo(Suspects(), name) && !CanGo(Suspects(), peer)) {
      SetAside(*member, absl::StrCat("blames ", peer,
                                     ", without which nothing can serve: ", status.message()));
    } else {
      SetAside(*blamed, absl::StrCat("blamed by ", name, ": ", status.message()));
    }
  } else if (retries_.OnTrial(name)) {
    if (CanGo(Suspects(), peer) && !CanGo(Suspects(), name)) {
      SetAside(*blamed, absl::StrCat("blamed by ", name, ": ", status.message()));
    } else {
      SetAside(*member, status.message());
    }
  } else if (limits_.TooManyWithoutProgress()) {
    Judge(limits_.first_without_progress(), last_fault_);
  } else if (limits_.TooManyInWindow(now_)) {
    Judge(limits_.first_in_window(),
          absl::StrCat(limits_.Unexplained(now_), " faults within ",
                       FaultLimits::kWindow / Seconds(1), " s, the last one of ", last_fault_));
  }
}

void Membership::Judge(uint64_t since, absl::string_view message) {
  limits_.Forget();
  if (const auto verdict = evidence_.Decide(Suspects(), since); verdict.has_value()) {
    return SetAside(*FindIn(nodes_, verdict->name), verdict->problem);
  }
  changed_ = false;
  const Nanos pause = retries_.SetAside(kCluster, now_);
  CannotServe(absl::StrCat(message, " (tried again after ", pause / Seconds(1), " s)"));
}

void Membership::SetAside(Member& node, absl::string_view problem) {
  node.state = MemberState::kFailed;
  node.region.clear();
  evidence_.Forget(node.name);
  const Nanos pause = retries_.SetAside(node.name, now_);
  node.problem = absl::StrCat(problem, " (tried again after ", pause / Seconds(1), " s)");
  if (!CanForm()) {
    phase_ = MembershipPhase::kWaiting;
  }
}

std::vector<FaultEvidence::Suspect> Membership::Suspects() const {
  std::vector<FaultEvidence::Suspect> suspects;
  for (const Member& node : nodes_) {
    if (TakesPart(node)) {
      Membership without = *this;
      FindIn(without.nodes_, node.name)->state = MemberState::kFailed;
      suspects.push_back(
          {.name = node.name, .is_memory = node.is_memory, .needed = !without.CanForm()});
    }
  }
  return suspects;
}

void Membership::NoteProgress() {
  progress_ = epoch_;
  limits_.NoteProgress();
  retries_.NoteProgress();
}

bool Membership::Tick(Nanos now) {
  now_ = now;
  bool again = false;
  for (const std::string& name : retries_.Due(now)) {
    Member* member = FindIn(nodes_, name);
    if (member != nullptr && member->state == MemberState::kFailed) {
      member->state = MemberState::kJoined;
      member->problem.clear();
      // It comes anew: what it does from now on says whether it comes and goes.
      member->joined = now_;
      member->joined_in = epoch_;
      again = true;
      changed_ = changed_ || TakesPart(*member, /*in_next=*/true);
    } else if (name == kCluster && phase_ == MembershipPhase::kWaiting) {
      changed_ = again = true;
    }
  }
  return again;
}

void Membership::CannotServe(absl::string_view problem) {
  phase_ = MembershipPhase::kWaiting;
  problem_ = std::string(problem);
}

bool Membership::StartAnew(const std::string& name, uint64_t epoch) {
  const Member* member = FindIn(nodes_, name);
  if (member == nullptr || epoch != epoch_ || member->state == MemberState::kAbsent ||
      phase_ == MembershipPhase::kWaiting || changed_) {
    return false;
  }
  changed_ = true;
  return true;
}

bool Membership::StartAnew() {
  if (phase_ != MembershipPhase::kServing || changed_) {
    return false;
  }
  changed_ = true;
  return true;
}

// A stage whose replica is not whole has no part. While the cluster waits, nobody knows where the
// next epoch has its KV.
bool Membership::TakesPart(const Member& node, bool in_next) const {
  const bool local = local_ && !(in_next && phase_ == MembershipPhase::kWaiting);
  return IsWhole(nodes_, node) && !(node.is_memory && local);
}

bool Membership::CanForm() const {
  bool compute = false;
  bool kv = false;
  for (const Member& node : nodes_) {
    const bool part = IsWhole(nodes_, node);
    if (!part && !formed_once_) {
      return false;
    }
    compute = compute || (part && !node.is_memory && !node.prefill);
    kv = kv || (part && KeepsKv(node));
  }
  return compute && kv;
}

bool Membership::AllMembers(MemberState least) const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [&](const Member& node) { return !TakesPart(node) || node.state >= least; });
}

MembershipAction Membership::Next() {
  if (changed_ && CanForm()) {
    changed_ = false;
    problem_.clear();
    formed_once_ = true;
    ++epoch_;
    phase_ = MembershipPhase::kPreparing;
    for (Member& node : nodes_) {
      if (node.state == MemberState::kPrepared || node.state == MemberState::kReady) {
        node.state = MemberState::kJoined;
        node.region.clear();
      }
    }
    return MembershipAction::kConfigure;
  }
  if (phase_ == MembershipPhase::kPreparing && AllMembers(MemberState::kPrepared)) {
    phase_ = MembershipPhase::kConnecting;
    return MembershipAction::kConnect;
  }
  if (phase_ == MembershipPhase::kConnecting && AllMembers(MemberState::kReady)) {
    phase_ = MembershipPhase::kServing;
    return MembershipAction::kServe;
  }
  return MembershipAction::kNone;
}

std::vector<const Member*> Membership::compute_members() const {
  std::vector<const Member*> members = Of(false);
  std::stable_partition(members.begin(), members.end(),
                        [](const Member* node) { return !node->prefill; });
  return members;
}

std::vector<const Member*> Membership::kv_members() const {
  std::vector<const Member*> members;
  for (const Member& node : nodes_) {
    if ((local_ ? node.holds_kv : node.is_memory) && TakesPart(node)) {
      members.push_back(&node);
    }
  }
  return members;
}

bool Membership::IsThere(const std::string& name) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const Member& node) { return node.name == name && IsAttached(node); });
}

bool Membership::HoldsKv(const std::string& name) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const Member& node) { return node.name == name && KeepsKv(node); });
}

uint32_t Membership::prefill_members() const {
  const std::vector<const Member*> members = Of(false);
  return static_cast<uint32_t>(std::count_if(members.begin(), members.end(),
                                             [](const Member* node) { return node->prefill; }));
}

std::vector<const Member*> Membership::Of(bool memory) const {
  std::vector<const Member*> members;
  for (const Member& node : nodes_) {
    if (node.is_memory == memory && TakesPart(node)) {
      members.push_back(&node);
    }
  }
  return members;
}

std::string Membership::Describe() const {
  std::vector<std::string> parts;
  std::vector<std::string> missing;
  for (const Member& node : nodes_) {
    if (node.state == MemberState::kFailed) {
      parts.push_back(absl::StrCat(node.name, " failed: ", node.problem));
    } else if (node.state == MemberState::kAbsent) {
      missing.push_back(node.name);
    } else if (!IsWhole(nodes_, node)) {
      parts.push_back(
          absl::StrCat(node.name, " waits for the other nodes of replica ", node.replica));
    }
  }
  if (phase_ == MembershipPhase::kServing) {
    parts.insert(parts.begin(), "serving");
    if (!missing.empty()) {
      parts.push_back(absl::StrCat("without ", absl::StrJoin(missing, ", ")));
    }
  } else if (!missing.empty() && phase_ == MembershipPhase::kWaiting) {
    parts.insert(parts.begin(), absl::StrCat("waiting for ", absl::StrJoin(missing, ", ")));
  } else if (phase_ != MembershipPhase::kWaiting) {
    parts.insert(parts.begin(), absl::StrCat("configuring epoch ", epoch_));
  }
  if (phase_ == MembershipPhase::kWaiting && !problem_.empty()) {
    parts.insert(parts.begin(), absl::StrCat("cannot serve: ", problem_));
  }
  return absl::StrJoin(parts, "; ");
}

std::string Membership::Warning() const {
  const uint32_t faults = limits_.Unexplained(now_);
  return faults < FaultLimits::kWithoutProgressMax
             ? ""
             : absl::StrCat(
                   faults, " faults within ", FaultLimits::kWindow / Seconds(1),
                   " s with no node lost, each of which made running requests pause; at ",
                   FaultLimits::kInWindowMax,
                   " a node is set aside, or the cluster waits; the last one: ", last_fault_);
}

}  // namespace lamina::core
