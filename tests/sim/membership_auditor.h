// SPDX-License-Identifier: Apache-2.0
//
// MembershipAuditor: a small model of what core::Membership promises. It sees each call of it and
// what it says of itself, and checks after every call:
//
//   - the epoch grows by one, when a new one is to be configured, and then only: for a reason (a
//     node with a part came or went, a fault of this epoch, a try, its owner's wish);
//   - members are there, not set aside, with all of their replica; while an epoch goes on they are
//     those that it was configured with, and somebody of each role is among them;
//   - all have prepared before they connect, and all are ready before they serve, in this epoch;
//   - what is said of an epoch that has ended changes nothing;
//   - nobody is set aside who is not blamed, failed by itself, was on trial, or blames a node
//     without which nothing can serve; nor held back who did not come and go;
//   - what was set aside is tried again, not too soon and not too late.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/membership.h"

namespace lamina::sim {

enum class MembershipCall : uint8_t {
  kExpect,
  kDismiss,
  kJoin,
  kLeave,
  kPrepared,
  kReady,
  kFault,
  kProgress,
  kTick,
  kStartAnew,
  kCannotServe,
  kNext,  // And KeepKvOnCompute(), where an epoch is to be configured.
};

// A call, and what it returned.
struct MembershipEvent {
  MembershipCall call = MembershipCall::kNext;
  std::string name = {};
  uint64_t epoch = 0;
  std::string peer = {};
  bool done = false;  // Joined, tries again, starts anew.
  core::MembershipAction action = core::MembershipAction::kNone;
};

class MembershipAuditor {
 public:
  // `membership` must outlive this.
  MembershipAuditor(const std::vector<core::Member>& expected, const core::Membership& membership);

  void After(const MembershipEvent& event, Nanos now);
  // The owner has done what was to be done.
  void EndTurn();

  // What was wrong first; empty: nothing.
  const std::string& failure() const { return failure_; }
  // How often a node was set aside for a fault, and held back when it came.
  uint64_t set_aside() const { return set_aside_; }
  uint64_t held_back() const { return held_back_; }

 private:
  struct Record {
    core::Member role;  // What the cluster file says of it.
    bool there = false;
    bool aside = false;
    Nanos aside_since = 0;
    bool on_trial = false;
    uint32_t leaves = 0;
    uint64_t prepared = 0;  // The last epoch in which it has prepared,
    uint64_t ready = 0;     // and opened all regions.
    bool blamed = false;    // By anybody, itself too, since it left or was set aside last.
    std::set<std::string> accuses = {};
  };
  // What Membership says of itself.
  struct Snapshot {
    uint64_t epoch = 0;
    core::MembershipPhase phase = core::MembershipPhase::kWaiting;
    bool ended = false;
    bool local = false;
    std::vector<core::MemberState> states = {};
    bool operator==(const Snapshot&) const = default;
  };

  Snapshot Look() const;
  Record* Find(const std::string& name);
  bool IsWhole(const Record& record, const Record* without) const;
  bool HasPart(const Record& record) const;
  bool CouldForm(const Record* without) const;
  std::vector<std::string> Members() const;

  void Fail(absl::string_view what);
  void Note(const MembershipEvent& event, const Snapshot& before);
  void NoteFault(const MembershipEvent& event, const Snapshot& before, Record& record);
  void CheckAction(core::MembershipAction action, const Snapshot& before);
  void CheckNodes(const MembershipEvent& event, const Snapshot& before);
  void CheckGround(const MembershipEvent& event, const Snapshot& before, const Record& record);
  void CheckMembers();

  const core::Membership& membership_;
  std::map<std::string, Record> records_;
  Snapshot seen_;
  Nanos now_ = 0;
  bool formed_ = false;
  bool reason_ = false;                  // Something has happened for which an epoch may begin.
  std::vector<std::string> configured_;  // Members of the epoch as it began.
  uint64_t set_aside_ = 0;
  uint64_t held_back_ = 0;
  std::string failure_;
};

}  // namespace lamina::sim
