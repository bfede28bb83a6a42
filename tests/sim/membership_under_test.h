// SPDX-License-Identifier: Apache-2.0
//
// MembershipUnderTest: core::Membership as its owner calls it, or with a planted bug, to see that
// the checkers bite.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/membership.h"

namespace lamina::sim {

enum class MembershipBug : uint8_t {
  kNone,
  kOldReportCounts,   // What a node says of the epoch before counts in this one: that it has
                      // prepared, or opened its peers' regions;
  kOldFaultCounts,    // or that it failed.
  kNeverTriedAgain,   // What was set aside stays so.
  kReporterBlamed,    // Whoever reports a fault is blamed for it.
  kServesTooSoon,     // Nobody waits for the last node that is not ready.
  kLossUnnoticed,     // A node that left is still there.
  kStageAlone,        // Stages take part without the others of their replica.
  kBeginsAnew,        // An epoch begins now and then for no reason.
  kAddLost,           // A node that was added is not expected.
  kDrainLost,         // A node that was drained is expected still,
  kDrainedComesBack,  // or may join again.
};

class MembershipUnderTest {
 public:
  MembershipUnderTest(std::vector<core::Member> expected, MembershipBug bug);

  const core::Membership& get() const { return membership_; }

  void Expect(core::Member member);
  void Dismiss(const std::string& name);
  absl::Status Join(const std::string& name, bool is_memory);
  void Leave(const std::string& name);
  void Prepared(const std::string& name, uint64_t epoch, const std::string& region);
  void Ready(const std::string& name, uint64_t epoch);
  void Fault(const std::string& name, uint64_t epoch, const absl::Status& status,
             const std::string& peer);
  void NoteProgress() { membership_.NoteProgress(); }
  bool Tick(Nanos now);
  void KeepKvOnCompute(bool local) { membership_.KeepKvOnCompute(local); }
  void CannotServe(absl::string_view problem) { membership_.CannotServe(problem); }
  bool StartAnew(const std::string& name, uint64_t epoch) {
    return membership_.StartAnew(name, epoch);
  }
  bool StartAnew() { return membership_.StartAnew(); }
  core::MembershipAction Next();

 private:
  // The epoch that a report of `epoch` is taken for.
  uint64_t TakenFor(uint64_t epoch, MembershipBug bug) const;

  const MembershipBug bug_;
  core::Membership membership_;
  std::set<std::string> drained_;
  Nanos anew_ = 0;  // When an epoch begins next for no reason.
};

}  // namespace lamina::sim
