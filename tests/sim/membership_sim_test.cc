// SPDX-License-Identifier: Apache-2.0
//
// Hundreds of clusters, each another seed: their members are those that they may be, whatever goes
// wrong, and all nodes serve once nothing does. On a failure the message says which seed it was.

#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/membership_world.h"

namespace lamina::sim {
namespace {

constexpr uint64_t kSeeds = 1500;
constexpr uint64_t kSeedsToFindABug = 150;

std::string HowItCame(uint64_t seed, const MembershipSimReport& report) {
  std::string text = absl::StrCat("seed ", seed, ": ", report.failure, "\n");
  for (const std::string& line : report.trace) {
    absl::StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

TEST(MembershipSimTest, AllNodesServeOnceNothingFailsAndNoEpochHasAWrongMember) {
  MembershipOwner::Counts all;
  uint64_t events = 0;
  uint64_t set_aside = 0;
  uint64_t held_back = 0;
  uint64_t without_one = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const MembershipSimReport report = MembershipWorld({.seed = seed}).Run();
    ASSERT_EQ(report.failure, "") << HowItCame(seed, report);
    const MembershipOwner::Counts& counts = report.counts;
    all.epochs += counts.epochs;
    all.epochs_local += counts.epochs_local;
    all.serving += counts.serving;
    all.steps += counts.steps;
    all.refused += counts.refused;
    all.unknown += counts.unknown;
    all.silent += counts.silent;
    all.stuck += counts.stuck;
    all.let_go += counts.let_go;
    all.added += counts.added;
    all.drained += counts.drained;
    all.late_reports += counts.late_reports;
    all.passed_over += counts.passed_over;
    all.tried_again += counts.tried_again;
    all.cannot_form += counts.cannot_form;
    all.cluster_waits += counts.cluster_waits;
    events += report.events;
    set_aside += report.set_aside;
    held_back += report.held_back;
    without_one += report.without_one;
  }
  std::cout << kSeeds << " seeds, " << events << " events: epochs " << all.epochs << " local "
            << all.epochs_local << " serving " << all.serving << " steps " << all.steps
            << " refused " << all.refused << " of these unknown " << all.unknown << " silent "
            << all.silent << " stuck " << all.stuck << " let go " << all.let_go << " added "
            << all.added << " drained " << all.drained << " late reports " << all.late_reports
            << " passed over " << all.passed_over << " tried again " << all.tried_again
            << " cannot form " << all.cannot_form << " cluster waits " << all.cluster_waits
            << " set aside " << set_aside << " held back " << held_back << " without one "
            << without_one << "\n";

  EXPECT_GT(all.serving, 3 * kSeeds);
  EXPECT_GT(all.epochs, all.serving);
  EXPECT_GT(all.epochs_local, 100);
  EXPECT_GT(all.steps, 10 * kSeeds);
  EXPECT_GT(all.refused, 20);
  EXPECT_GT(all.unknown, 5);
  EXPECT_GT(all.silent, 50);
  EXPECT_GT(all.let_go, 100);
  EXPECT_GT(all.added, 20);
  EXPECT_GT(all.drained, 20);
  EXPECT_GT(all.late_reports, 100);
  EXPECT_GT(all.passed_over, 20);
  EXPECT_GT(all.tried_again, 100);
  EXPECT_GT(all.cannot_form, 20);
  EXPECT_GT(all.cluster_waits, 5);
  EXPECT_GT(set_aside, 300);
  EXPECT_GT(held_back, 20);
  EXPECT_GT(without_one, 100);
}

TEST(MembershipSimTest, SameSeedGivesSameTrace) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(MembershipWorld({.seed = seed}).Run().trace_hash,
              MembershipWorld({.seed = seed}).Run().trace_hash);
  }
  EXPECT_NE(MembershipWorld({.seed = 1}).Run().trace_hash,
            MembershipWorld({.seed = 2}).Run().trace_hash);
}

class MembershipBugTest : public testing::TestWithParam<MembershipBug> {};

TEST_P(MembershipBugTest, IsFound) {
  bool found = false;
  for (uint64_t seed = 1; seed <= kSeedsToFindABug && !found; ++seed) {
    found = !MembershipWorld({.seed = seed, .bug = GetParam()}).Run().failure.empty();
  }
  EXPECT_TRUE(found);
}

INSTANTIATE_TEST_SUITE_P(
    All, MembershipBugTest,
    testing::Values(MembershipBug::kOldReportCounts, MembershipBug::kOldFaultCounts,
                    MembershipBug::kNeverTriedAgain, MembershipBug::kReporterBlamed,
                    MembershipBug::kServesTooSoon, MembershipBug::kLossUnnoticed,
                    MembershipBug::kStageAlone, MembershipBug::kBeginsAnew, MembershipBug::kAddLost,
                    MembershipBug::kDrainLost, MembershipBug::kDrainedComesBack));

}  // namespace
}  // namespace lamina::sim
