// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/membership_under_test.h"

#include <utility>

namespace lamina::sim {
namespace {

constexpr Nanos kAnewEvery = Seconds(10);

std::vector<core::Member> WithoutReplicas(std::vector<core::Member> members) {
  for (core::Member& member : members) {
    member.replica.clear();
  }
  return members;
}

}  // namespace

MembershipUnderTest::MembershipUnderTest(std::vector<core::Member> expected, MembershipBug bug)
    : bug_(bug),
      membership_(bug == MembershipBug::kStageAlone ? WithoutReplicas(std::move(expected))
                                                    : std::move(expected)) {}

uint64_t MembershipUnderTest::TakenFor(uint64_t epoch, MembershipBug bug) const {
  return bug_ == bug && epoch + 1 == membership_.epoch() ? epoch + 1 : epoch;
}

void MembershipUnderTest::Expect(core::Member member) {
  if (bug_ != MembershipBug::kAddLost) {
    membership_.Expect(std::move(member));
  }
}

void MembershipUnderTest::Dismiss(const std::string& name) {
  if (bug_ != MembershipBug::kDrainLost) {
    membership_.Dismiss(name);
    drained_.insert(name);
  }
}

absl::Status MembershipUnderTest::Join(const std::string& name, bool is_memory) {
  if (bug_ == MembershipBug::kDrainedComesBack && drained_.erase(name) > 0) {
    membership_.Expect({.name = name, .is_memory = is_memory});
  }
  return membership_.Join(name, is_memory);
}

void MembershipUnderTest::Leave(const std::string& name) {
  if (bug_ != MembershipBug::kLossUnnoticed) {
    membership_.Leave(name);
  }
}

void MembershipUnderTest::Prepared(const std::string& name, uint64_t epoch,
                                   const std::string& region) {
  membership_.Prepared(name, TakenFor(epoch, MembershipBug::kOldReportCounts), region);
}

void MembershipUnderTest::Ready(const std::string& name, uint64_t epoch) {
  membership_.Ready(name, TakenFor(epoch, MembershipBug::kOldReportCounts));
}

void MembershipUnderTest::Fault(const std::string& name, uint64_t epoch, const absl::Status& status,
                                const std::string& peer) {
  membership_.Fault(name, TakenFor(epoch, MembershipBug::kOldFaultCounts), status,
                    bug_ == MembershipBug::kReporterBlamed ? name : peer);
}

bool MembershipUnderTest::Tick(Nanos now) {
  const bool again = membership_.Tick(bug_ == MembershipBug::kNeverTriedAgain ? 0 : now);
  if (bug_ == MembershipBug::kBeginsAnew && now >= anew_) {
    anew_ = now + kAnewEvery;
    membership_.StartAnew();
  }
  return again;
}

core::MembershipAction MembershipUnderTest::Next() {
  if (bug_ == MembershipBug::kServesTooSoon &&
      membership_.phase() == core::MembershipPhase::kConnecting) {
    std::vector<std::string> missing;
    for (const auto& members : {membership_.compute_members(), membership_.memory_members()}) {
      for (const core::Member* member : members) {
        if (member->state == core::MemberState::kPrepared) {
          missing.push_back(member->name);
        }
      }
    }
    if (missing.size() == 1) {
      membership_.Ready(missing.front(), membership_.epoch());
    }
  }
  return membership_.Next();
}

}  // namespace lamina::sim
