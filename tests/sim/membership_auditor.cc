// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/membership_auditor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/retry_times.h"

namespace lamina::sim {
namespace {

using core::MembershipAction;
using core::MembershipPhase;
using core::RetryTimes;

// The owner's turns come once a second at least.
constexpr Nanos kLateMost = Seconds(2);

}  // namespace

MembershipAuditor::MembershipAuditor(const std::vector<core::Member>& expected,
                                     const core::Membership& membership)
    : membership_(membership) {
  for (const core::Member& member : expected) {
    records_[member.name].role = member;
  }
  seen_ = Look();
}

MembershipAuditor::Snapshot MembershipAuditor::Look() const {
  Snapshot snapshot{.epoch = membership_.epoch(),
                    .phase = membership_.phase(),
                    .ended = membership_.epoch_ended(),
                    .local = membership_.local()};
  snapshot.states.reserve(membership_.all().size());
  for (const core::Member& member : membership_.all()) {
    snapshot.states.push_back(member.state);
  }
  return snapshot;
}

MembershipAuditor::Record* MembershipAuditor::Find(const std::string& name) {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

// `without`: as if that one were not there.
bool MembershipAuditor::IsWhole(const Record& record, const Record* without) const {
  const auto is_there = [without](const Record& node) {
    return node.there && !node.aside && &node != without;
  };
  const std::string& replica = record.role.replica;
  return is_there(record) &&
         (replica.empty() || std::all_of(records_.begin(), records_.end(), [&](const auto& entry) {
            return entry.second.role.replica != replica || is_there(entry.second);
          }));
}

bool MembershipAuditor::HasPart(const Record& record) const {
  return IsWhole(record, nullptr) && !(record.role.is_memory && membership_.local());
}

bool MembershipAuditor::CouldForm(const Record* without) const {
  bool compute = false;
  bool kv = false;
  for (const auto& [name, record] : records_) {
    if (IsWhole(record, without)) {
      compute = compute || (!record.role.is_memory && !record.role.prefill);
      kv = kv || record.role.is_memory || record.role.holds_kv;
    }
  }
  return compute && kv;
}

std::vector<std::string> MembershipAuditor::Members() const {
  std::vector<std::string> names;
  for (const auto& members : {membership_.compute_members(), membership_.memory_members()}) {
    for (const core::Member* member : members) {
      names.push_back(member->name);
    }
  }
  return names;
}

void MembershipAuditor::Fail(absl::string_view what) {
  if (failure_.empty()) {
    failure_ = absl::StrCat(what, " (epoch ", membership_.epoch(), ")");
  }
}

void MembershipAuditor::EndTurn() {
  reason_ = reason_ && membership_.phase() == MembershipPhase::kWaiting;
}

void MembershipAuditor::After(const MembershipEvent& event, Nanos now) {
  now_ = now;
  const Snapshot before = std::exchange(seen_, Look());
  const bool changed = seen_ != before;
  bool matters = false;
  bool about_nodes = false;  // Who is there may be another.
  switch (event.call) {
    case MembershipCall::kPrepared:
    case MembershipCall::kReady:
      matters = event.epoch == before.epoch;
      break;
    case MembershipCall::kFault:
      matters =
          event.epoch == before.epoch && !before.ended && before.phase != MembershipPhase::kWaiting;
      break;
    case MembershipCall::kTick:
    case MembershipCall::kJoin:
      about_nodes = true;
      matters = event.done;
      break;
    case MembershipCall::kStartAnew:
      matters = event.done;
      break;
    case MembershipCall::kProgress:
      break;
    case MembershipCall::kExpect:
    case MembershipCall::kDismiss:
    case MembershipCall::kLeave:
      about_nodes = true;
      matters = true;
      break;
    case MembershipCall::kCannotServe:
    case MembershipCall::kNext:
      matters = true;
      break;
  }
  if (changed && !matters) {
    Fail(absl::StrCat("what may change nothing did: call ", static_cast<int>(event.call), " of '",
                      event.name, "' for epoch ", event.epoch));
  }
  if (seen_.epoch != before.epoch + (event.action == MembershipAction::kConfigure ? 1 : 0)) {
    Fail(absl::StrCat("the epoch was ", before.epoch, " before call ",
                      static_cast<int>(event.call)));
  }
  Note(event, before);
  if (changed || about_nodes) {
    CheckNodes(event, before);
  }
  if (changed || (about_nodes && event.call != MembershipCall::kTick)) {
    CheckMembers();
  }
}

void MembershipAuditor::Note(const MembershipEvent& event, const Snapshot& before) {
  const bool waits = before.phase == MembershipPhase::kWaiting;
  Record* const record = Find(event.name);
  switch (event.call) {
    case MembershipCall::kExpect:
      records_[event.name].role = {.name = event.name, .is_memory = true};
      return;
    case MembershipCall::kDismiss:
      reason_ = reason_ || waits || (record != nullptr && HasPart(*record));
      records_.erase(event.name);
      return;
    case MembershipCall::kJoin:
      if (record != nullptr && event.done) {
        record->there = true;
        record->prepared = record->ready = 0;
        reason_ = reason_ || waits || HasPart(*record);
      } else if (record != nullptr && !record->there) {
        Fail(absl::StrCat(event.name, " is refused, and none of its name is there"));
      }
      return;
    case MembershipCall::kLeave:
      if (record != nullptr && record->there) {
        reason_ = reason_ || waits || HasPart(*record);
        *record = {.role = record->role, .leaves = record->leaves + 1};
      }
      return;
    case MembershipCall::kPrepared:
      if (record != nullptr && event.epoch == before.epoch) {
        record->prepared = event.epoch;
      }
      return;
    case MembershipCall::kReady:
      if (record != nullptr && event.epoch == before.epoch && record->prepared == event.epoch) {
        record->ready = event.epoch;
      }
      return;
    case MembershipCall::kFault:
      if (record != nullptr) {
        NoteFault(event, before, *record);
      }
      return;
    case MembershipCall::kProgress:
      for (auto& [name, node] : records_) {
        node.on_trial = false;
      }
      return;
    case MembershipCall::kTick:
      reason_ = reason_ || (event.done && waits);
      return;
    case MembershipCall::kStartAnew:
      reason_ = reason_ || event.done;
      return;
    case MembershipCall::kCannotServe:
      return;
    case MembershipCall::kNext:
      return CheckAction(event.action, before);
  }
}

// Where nobody of its name is known, a fault is the reporter's own.
void MembershipAuditor::NoteFault(const MembershipEvent& event, const Snapshot& before,
                                  Record& record) {
  reason_ = reason_ || (event.epoch == before.epoch && !before.ended &&
                        before.phase != MembershipPhase::kWaiting);
  if (!event.peer.empty()) {
    Record* const accused = Find(event.peer);
    (accused == nullptr ? record : *accused).blamed = true;
    record.accuses.insert(event.peer);
  }
}

void MembershipAuditor::CheckAction(MembershipAction action, const Snapshot& before) {
  switch (action) {
    case MembershipAction::kNone:
      return;
    case MembershipAction::kConfigure: {
      if (!reason_) {
        Fail("an epoch begins for no reason");
      }
      for (const auto& [name, record] : records_) {
        if (!formed_ && !record.there) {
          Fail(absl::StrCat("the first epoch does not wait for ", name));
        }
      }
      const std::vector<const core::Member*> compute = membership_.compute_members();
      if (std::all_of(compute.begin(), compute.end(),
                      [](const core::Member* member) { return member->prefill; }) ||
          membership_.kv_members().empty()) {
        Fail("an epoch begins without a node of each role");
      }
      formed_ = true;
      reason_ = false;
      configured_ = Members();
      return;
    }
    case MembershipAction::kConnect:
      if (before.ended || before.phase != MembershipPhase::kPreparing) {
        Fail("is to connect in an epoch that has ended, or does not prepare");
      }
      break;
    case MembershipAction::kServe:
      if (before.ended || before.phase != MembershipPhase::kConnecting) {
        Fail("is to serve in an epoch that has ended, or does not connect");
      }
      break;
  }
  for (const std::string& name : configured_) {
    const Record* const record = Find(name);
    const bool connects = action == MembershipAction::kConnect;
    if (record == nullptr || (connects ? record->prepared : record->ready) != seen_.epoch) {
      Fail(absl::StrCat(name, " has not ", connects ? "prepared" : "opened its peers' regions",
                        " and is not waited for"));
    }
  }
}

// Who is there, who was set aside by this call and on what ground, and who is tried again.
void MembershipAuditor::CheckNodes(const MembershipEvent& event, const Snapshot& before) {
  std::vector<Record*> gone;
  std::vector<Record*> back;
  for (const core::Member& member : membership_.all()) {
    Record* const record = Find(member.name);
    if (record == nullptr) {
      Fail(absl::StrCat("knows ", member.name, ", which nobody expects"));
      continue;
    }
    if (record->there != (member.state != core::MemberState::kAbsent)) {
      Fail(absl::StrCat(member.name, record->there ? " is there" : " is not there",
                        ", which is not known"));
    }
    const bool aside = member.state == core::MemberState::kFailed;
    if (aside && !record->aside) {
      gone.push_back(record);
    } else if (!aside && record->aside) {
      back.push_back(record);
    } else if (aside && now_ - record->aside_since > RetryTimes::kMost + kLateMost) {
      Fail(absl::StrCat(member.name, " was set aside and is not tried again"));
    }
  }
  for (const Record* record : gone) {
    CheckGround(event, before, *record);
  }
  for (Record* record : gone) {
    record->aside = true;
    record->aside_since = now_;
    record->on_trial = false;
    record->blamed = false;
    record->accuses.clear();
    (event.call == MembershipCall::kJoin ? held_back_ : set_aside_) += 1;
  }
  for (Record* record : back) {
    record->aside = false;
    record->on_trial = true;
    if (event.call != MembershipCall::kTick || now_ - record->aside_since < RetryTimes::kFirst) {
      Fail(absl::StrCat(record->role.name, " was set aside and is tried again too soon"));
    }
  }
  for (const Record* record : back) {
    reason_ = reason_ || HasPart(*record);
  }
}

void MembershipAuditor::CheckGround(const MembershipEvent& event, const Snapshot& before,
                                    const Record& record) {
  const std::string& name = record.role.name;
  if (event.call == MembershipCall::kJoin) {
    if (name != event.name || record.leaves < RetryTimes::kLeavesMax || !CouldForm(&record)) {
      Fail(absl::StrCat(name, " is held back, and did not come and go, or nothing serves without"));
    }
    return;
  }
  const bool accuses_needed =
      std::any_of(record.accuses.begin(), record.accuses.end(), [&](const std::string& accused) {
        const Record* const peer = Find(accused);
        return peer != nullptr && !CouldForm(peer);
      });
  const bool alone = before.phase == MembershipPhase::kPreparing;
  const bool ground =
      alone ? name == event.name
            : record.blamed || accuses_needed || (record.on_trial && name == event.name);
  if (event.call != MembershipCall::kFault || !ground) {
    Fail(absl::StrCat(name, " is set aside on no ground"));
  }
}

void MembershipAuditor::CheckMembers() {
  const std::vector<std::string> members = Members();
  for (const std::string& name : members) {
    const Record* const record = Find(name);
    if (record == nullptr || !IsWhole(*record, nullptr)) {
      Fail(absl::StrCat(name, " is a member: it or another node of its replica is not there"));
    }
  }
  if (seen_.phase == MembershipPhase::kWaiting) {
    return;
  }
  if (!CouldForm(nullptr)) {
    Fail("goes on without a node of each role");
  }
  if (!seen_.ended && members != configured_) {
    Fail("the members are others, and the epoch goes on");
  }
}

}  // namespace lamina::sim
