// SPDX-License-Identifier: Apache-2.0
//
// Which node is set aside for faults, when, and for how long.

#include <gmock/gmock.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/core/membership_fixture.h"

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Faults as often as may be without progress, and once more. Of each epoch, these report.
class FaultsTest : public MembershipTest {
 protected:
  static constexpr uint32_t kMost = FaultLimits::kWithoutProgressMax;
  using Report = std::pair<std::string, std::string>;  // Who blames whom.

  void Tell(const Report& report) {
    members_.Fault(report.first, members_.epoch(), kBroken, report.second);
  }
  // All members prepare, `opened` open all regions; then the others report in this order. The
  // first report ends the epoch, the rest comes when it is over.
  void ConnectAndFail(const std::vector<std::string>& members,
                      const std::vector<std::string>& opened, const std::vector<Report>& reports) {
    Actions();
    Prepare(members);
    Actions();
    Ready(opened);
    for (const Report& report : reports) {
      Tell(report);
    }
    Actions();
  }
  std::vector<std::string> Left() const {
    std::vector<std::string> names = Names(members_.compute_members());
    for (const std::string& name : Names(members_.memory_members())) {
      names.push_back(name);
    }
    return names;
  }
};

TEST_F(FaultsTest, WithoutProgressSetTheNodeThatFailsByItselfAside) {
  Serve();
  for (uint32_t i = 1; i < kMost; ++i) {
    members_.Fault("m0", members_.epoch(), kBroken, "m0");
    ServeAgain({"c0", "m0", "m1"});
  }
  members_.Fault("m0", members_.epoch(), kBroken, "m0");

  Actions();
  EXPECT_THAT(Left(), ElementsAre("c0", "m1"));
  EXPECT_THAT(members_.Describe(), HasSubstr("m0 failed: broken (tried again after 10 s)"));
}

// Who tells of a broken peer is not broken.
TEST_F(FaultsTest, ThatBlameAPeerSetThePeerAside) {
  Serve();
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {"c0", "m0", "m1"}, {{"m0", "m1"}});
  }

  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: blamed by m0: broken"));
}

TEST_F(FaultsTest, ThatBlameANameNobodyKnowsAreTheReporters) {
  Serve();
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {"c0", "m0", "m1"}, {{"m0", "m9"}});
  }
  EXPECT_THAT(Left(), ElementsAre("c0", "m1"));
}

// m1 is somewhere where its regions cannot be opened, nor can it open any. It blames c0, which is
// as often the first to be heard; but m0 and c0 get on.
TEST_F(FaultsTest, OfTwoThatBlameEachOtherTheOneThatNobodyConnectsToIsSetAsideInAnyOrder) {
  for (uint32_t orders = 0; orders < 1u << kMost; ++orders) {
    members_ = Membership(
        {{.name = "c0"}, {.name = "m0", .is_memory = true}, {.name = "m1", .is_memory = true}});
    JoinAll();
    for (uint32_t i = 0; i < kMost; ++i) {
      std::vector<Report> reports = {{"c0", "m1"}, {"m1", "c0"}};
      if ((orders >> i & 1) != 0) {
        std::swap(reports[0], reports[1]);
      }
      ConnectAndFail({"c0", "m0", "m1"}, {"m0"}, reports);
    }
    EXPECT_THAT(Left(), ElementsAre("c0", "m0")) << orders;
    EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: blamed by c0: broken")) << orders;
  }
}

// As above, but m0 opens the regions when the epoch is over, and finds c0's gone.
TEST_F(FaultsTest, WhoFindsARegionGoneAfterTheEpochAccusesNobody) {
  for (uint32_t orders = 0; orders < 1u << kMost; ++orders) {
    members_ = Membership(
        {{.name = "c0"}, {.name = "m0", .is_memory = true}, {.name = "m1", .is_memory = true}});
    JoinAll();
    for (uint32_t i = 0; i < kMost; ++i) {
      std::vector<Report> reports = {{"c0", "m1"}, {"m1", "c0"}};
      if ((orders >> i & 1) != 0) {
        std::swap(reports[0], reports[1]);
      }
      Actions();
      const uint64_t epoch = members_.epoch();
      ConnectAndFail({"c0", "m0", "m1"}, {}, {reports[0]});
      members_.Fault(reports[1].first, epoch, kBroken, reports[1].second);
      members_.Fault("m0", epoch, kBroken, "c0");
    }
    EXPECT_THAT(Left(), ElementsAre("c0", "m0")) << orders;
  }
}

// Each time m1 is heard first, and c0 then finds gone what m0 had opened, before it comes to m1.
TEST_F(FaultsTest, ANeededNodeThatOneAloneAccusesStaysAndTheAccuserGoes) {
  JoinAll();
  for (uint32_t i = 0; i < kMost; ++i) {
    Actions();
    const uint64_t epoch = members_.epoch();
    ConnectAndFail({"c0", "m0", "m1"}, {}, {{"m1", "c0"}});
    members_.Fault("c0", epoch, kBroken, "m0");
  }
  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  EXPECT_THAT(members_.Describe(),
              HasSubstr("m1 failed: blames c0, without which nothing can serve: broken"));
}

// m0 has not yet said that it could connect when the first epoch ends, and is heard later.
TEST_F(FaultsTest, TheNodeThatMostBlameIsSetAsideInAnyOrder) {
  std::vector<Report> reports = {{"c0", "m1"}, {"c1", "m1"}, {"m1", "c0"}};
  std::sort(reports.begin(), reports.end());
  do {
    members_ = Membership({{.name = "c0"},
                           {.name = "c1"},
                           {.name = "m0", .is_memory = true},
                           {.name = "m1", .is_memory = true}});
    JoinAll();
    EXPECT_TRUE(members_.Join("c1", false).ok());
    for (uint32_t i = 0; i < kMost; ++i) {
      ConnectAndFail({"c0", "c1", "m0", "m1"}, {}, reports);
    }
    EXPECT_THAT(Left(), ElementsAre("c0", "c1", "m0"));
    EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: blamed by c0, c1: broken"));
  } while (std::next_permutation(reports.begin(), reports.end()));
}

TEST_F(FaultsTest, OfTwoThatAreNeededAndBlameEachOtherNobodyIsSetAsideAndTheClusterSaysSo) {
  members_ = Membership({{.name = "c0"}, {.name = "m0", .is_memory = true}});
  EXPECT_TRUE(members_.Join("c0", false).ok());
  EXPECT_TRUE(members_.Join("m0", true).ok());
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0"}, {}, {{"c0", "m0"}, {"m0", "c0"}});
  }
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_EQ(members_.Describe(), "cannot serve: c0: broken (tried again after 10 s)");
  EXPECT_TRUE(members_.IsThere("c0"));
  EXPECT_TRUE(members_.IsThere("m0"));
}

// A transport that works nowhere is nobody's fault.
TEST_F(FaultsTest, ThatBlameNobodyMakeTheClusterWaitAndTryAgain) {
  JoinAll();
  Nanos now = Seconds(100);
  Nanos pause = RetryTimes::kFirst;
  members_.Tick(now);
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {}, {{"c0", ""}});
  }
  for (const int seconds : {10, 20, 40, 80, 160, 300, 300}) {
    EXPECT_EQ(pause, Seconds(seconds));
    EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
    EXPECT_THAT(members_.Describe(), HasSubstr(absl::StrCat("cannot serve: c0: broken (tried "
                                                            "again after ",
                                                            seconds, " s)")));
    EXPECT_FALSE(members_.Tick(now + pause - 1));
    EXPECT_THAT(Actions(), ElementsAre());
    EXPECT_TRUE(members_.Tick(now += pause));
    for (uint32_t i = 0; i < kMost; ++i) {
      ConnectAndFail({"c0", "m0", "m1"}, {}, {{"c0", ""}});
    }
    pause = std::min(2 * pause, RetryTimes::kMost);
  }
}

TEST_F(FaultsTest, ANodeSetAsideIsTriedAgainAndGoesAtItsFirstFault) {
  Serve();
  members_.Tick(Seconds(1));
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {"m0"}, {{"c0", "m1"}});
  }
  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  ServeAgain({"c0", "m0"});
  EXPECT_FALSE(members_.Tick(Seconds(10)));
  EXPECT_THAT(Actions(), ElementsAre());

  EXPECT_TRUE(members_.Tick(Seconds(11)));
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_THAT(Left(), ElementsAre("c0", "m0", "m1"));
  ConnectAndFail({"c0", "m0", "m1"}, {"m0"}, {{"m1", "c0"}});  // Which c0 says of it as well.
  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  EXPECT_THAT(members_.Describe(), HasSubstr("tried again after 20 s"));
  ServeAgain({"c0", "m0"});

  EXPECT_TRUE(members_.Tick(Seconds(31)));
  ServeAgain({"c0", "m0", "m1"});
  members_.NoteProgress();
  EXPECT_EQ(members_.Describe(), "serving");
  ConnectAndFail({"c0", "m0", "m1"}, {}, {{"c0", "m1"}});  // No trial any more.
  EXPECT_THAT(Left(), ElementsAre("c0", "m0", "m1"));
}

// The only compute node was set aside on the words of two memory nodes. Tried again, it says which
// of them it cannot work with: that one goes, and the cluster serves.
TEST_F(FaultsTest, TheOnlyComputeNodeOnTrialStaysWhereAMemoryNodeCanGo) {
  Serve();
  members_.Tick(Seconds(1));
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {}, {{i % 2 == 0 ? "m0" : "m1", "c0"}});
  }
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_TRUE(members_.Tick(Seconds(11)));

  ConnectAndFail({"c0", "m0", "m1"}, {"m0"}, {{"c0", "m1"}});

  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  EXPECT_THAT(members_.Describe(),
              HasSubstr("m1 failed: blamed by c0: broken (tried again after 10 s)"));
  ServeAgain({"c0", "m0"});
  // With nobody else to go it is the one that goes.
  ConnectAndFail({"c0", "m0"}, {}, {{"c0", "m0"}});
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
}

// Here the memory node is heard first.
TEST_F(FaultsTest, TheOnlyComputeNodeOnTrialStaysWhereTheMemoryNodeThatBlamesItCanGo) {
  Serve();
  members_.Tick(Seconds(1));
  for (uint32_t i = 0; i < kMost; ++i) {
    ConnectAndFail({"c0", "m0", "m1"}, {}, {{i % 2 == 0 ? "m0" : "m1", "c0"}});
  }
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_TRUE(members_.Tick(Seconds(11)));

  ConnectAndFail({"c0", "m0", "m1"}, {"m0"}, {{"m1", "c0"}});

  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
  EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: blames c0, without which nothing can "
                                             "serve: broken (tried again after 10 s)"));
  // The other one says the same, and nothing serves without it, either.
  ConnectAndFail({"c0", "m0"}, {}, {{"m0", "c0"}});
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_THAT(members_.Describe(), HasSubstr("c0 failed: blamed by m0: broken"));
}

TEST_F(FaultsTest, ANodeThatIsTriedAgainAndHasNoPartBeginsNoEpoch) {
  members_ = Membership({{.name = "c0", .replica = "r0"},
                         {.name = "c1", .replica = "r0"},
                         {.name = "c2"},
                         {.name = "m0", .is_memory = true}});
  for (const char* name : {"c0", "c1", "c2"}) {
    EXPECT_TRUE(members_.Join(name, false).ok());
  }
  EXPECT_TRUE(members_.Join("m0", true).ok());
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  members_.Fault("c1", 1, kBroken, "c1");
  ServeAgain({"c2", "m0"});
  members_.Leave("c0");

  EXPECT_TRUE(members_.Tick(RetryTimes::kFirst));

  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.phase(), MembershipPhase::kServing);
  EXPECT_TRUE(members_.IsThere("c1"));
  EXPECT_TRUE(members_.Join("c0", false).ok());
  ServeAgain({"c0", "c1", "c2", "m0"});
}

TEST_F(FaultsTest, ANodeThatCannotPrepareIsTriedAgain) {
  JoinAll();
  Actions();
  members_.Fault("c0", 1, kBroken, "c0");
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_TRUE(members_.Tick(RetryTimes::kFirst));
  ServeAgain({"c0", "m0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving");
}

// As a process does that ends while it prepares, and that its supervisor starts again.
TEST_F(FaultsTest, ANodeThatComesAndGoesIsHeldBackForLongerEachTime) {
  Serve();
  members_.NoteProgress();
  Nanos now = Seconds(100);
  for (uint32_t i = 0; i < RetryTimes::kLeavesMax; ++i, now += Seconds(1)) {
    members_.Tick(now);
    members_.Leave("m1");
    ServeAgain({"c0", "m0"});
    members_.NoteProgress();  // Without it.
    EXPECT_TRUE(members_.Join("m1", true).ok());
    EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure)) << i;
  }
  // It had served when it left first, so that one more is forgiven.
  members_.Tick(now);
  Nanos pause = RetryTimes::kFirst;
  for (int i = 0; i < 7; ++i, pause = std::min(2 * pause, RetryTimes::kMost)) {
    members_.Leave("m1");
    ServeAgain({"c0", "m0"});
    members_.NoteProgress();
    EXPECT_TRUE(members_.Join("m1", true).ok());
    EXPECT_THAT(Actions(), ElementsAre()) << i;
    EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: it left 3 times or more soon"));
    EXPECT_FALSE(members_.Tick(now + pause - 1));
    now += pause;
    EXPECT_TRUE(members_.Tick(now));
    EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  }
  ServeAgain({"c0", "m0", "m1"});
  members_.NoteProgress();
  members_.Leave("m1");
  ServeAgain({"c0", "m0"});
  EXPECT_TRUE(members_.Join("m1", true).ok());
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure)) << "it had served";
}

TEST_F(FaultsTest, ANodeThatNothingServesWithoutIsNeverHeldBack) {
  Serve();
  for (uint32_t i = 0; i < 3 * RetryTimes::kLeavesMax; ++i) {
    members_.Leave("c0");
    EXPECT_TRUE(members_.Join("c0", false).ok());
    ServeAgain({"c0", "m0", "m1"});
  }
}

TEST_F(FaultsTest, ANodeThatStaysForLongBetweenItsEndsIsNotHeldBack) {
  Serve();
  for (uint32_t i = 1; i < 3 * RetryTimes::kLeavesMax; ++i) {
    members_.Tick(Seconds(100 * i));
    members_.Leave("m1");
    EXPECT_TRUE(members_.Join("m1", true).ok());
    ServeAgain({"c0", "m0", "m1"});
  }
}

TEST_F(FaultsTest, AnOrdinaryFaultNowAndThenIsForgivenByProgress) {
  Serve();
  for (int i = 1; i <= 100; ++i) {
    members_.Tick(Seconds(7 * i));
    Tell({"m0", "m0"});
    ServeAgain({"c0", "m0", "m1"});
    members_.NoteProgress();
  }
  EXPECT_EQ(members_.Describe(), "serving");
  EXPECT_THAT(members_.Warning(), HasSubstr("faults within 60 s"));
  EXPECT_THAT(members_.Warning(), HasSubstr("m0: broken"));
}

TEST_F(FaultsTest, OneAtEveryStepSetsTheBlamedNodeAsideInSpiteOfProgress) {
  Serve();
  int faults = 0;
  for (; faults < 1000 && Left().size() == 3; ++faults) {
    members_.Tick(Millis(500 * faults));
    Tell({"m0", "m1"});
    Actions();
    if (Left().size() == 3) {
      ServeAgain({"c0", "m0", "m1"});
      members_.NoteProgress();
    }
  }
  // Ten that no departure has explained within 15 s.
  EXPECT_EQ(faults, 41);  // At 20 s the tenth fault, of 4.5 s, counts.
  EXPECT_THAT(Left(), ElementsAre("c0", "m0"));
}

TEST_F(FaultsTest, OneAtEveryStepThatBlamesNobodyStopsTheClusterAndSaysWhy) {
  Serve();
  for (int i = 0; i < 1000 && members_.phase() == MembershipPhase::kServing; ++i) {
    members_.Tick(Millis(500 * i));
    Tell({"c0", ""});
    Actions();
    if (members_.phase() == MembershipPhase::kPreparing) {
      ServeAgain({"c0", "m0", "m1"});
      members_.NoteProgress();
    }
  }
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_THAT(members_.Describe(),
              HasSubstr("cannot serve: 10 faults within 60 s, the last one of c0: broken"));
}

TEST_F(FaultsTest, ThatADepartureExplainsDoNotCount) {
  Serve();
  for (int round = 0; round < 50; ++round) {
    const Nanos start = Seconds(20 * round);
    for (int i = 0; i < 10; ++i) {  // m1 fails slowly, which c0 notices before anybody else.
      members_.Tick(start + Seconds(i));
      Tell({"c0", "m1"});
      ServeAgain({"c0", "m0", "m1"});
      members_.NoteProgress();
    }
    members_.Tick(start + Seconds(14));
    members_.Leave("m1");
    EXPECT_TRUE(members_.Join("m1", true).ok());
    ServeAgain({"c0", "m0", "m1"});
  }
  EXPECT_EQ(members_.Describe(), "serving");
  EXPECT_EQ(members_.Warning(), "");
}

TEST(RetryTimesTest, WhatWorkedForLongBeginsFromTheShortestPauseAgain) {
  RetryTimes retries;
  EXPECT_EQ(retries.SetAside("m0", 0), RetryTimes::kFirst);
  EXPECT_THAT(retries.Due(RetryTimes::kFirst - 1), ElementsAre());
  EXPECT_THAT(retries.Due(RetryTimes::kFirst), ElementsAre("m0"));
  EXPECT_THAT(retries.Due(RetryTimes::kFirst), ElementsAre());
  EXPECT_TRUE(retries.OnTrial("m0"));
  EXPECT_EQ(retries.SetAside("m0", RetryTimes::kFirst), 2 * RetryTimes::kFirst);
  const Nanos second = 3 * RetryTimes::kFirst;
  EXPECT_THAT(retries.Due(second), ElementsAre("m0"));
  retries.NoteProgress();
  EXPECT_FALSE(retries.OnTrial("m0"));

  EXPECT_EQ(retries.SetAside("m0", second + RetryTimes::kMost), RetryTimes::kFirst);
}

TEST(FaultLimitsTest, FaultsCountWhenNothingHasExplainedThemAndUntilTheyAreOld) {
  FaultLimits limits;
  limits.NoteFault(1, 0);
  EXPECT_EQ(limits.Unexplained(FaultLimits::kExplainedWithin), 0u);
  EXPECT_EQ(limits.Unexplained(FaultLimits::kExplainedWithin + 1), 1u);
  const Nanos old = FaultLimits::kExplainedWithin + FaultLimits::kWindow;
  EXPECT_EQ(limits.Unexplained(old), 1u);
  EXPECT_EQ(limits.Unexplained(old + 1), 0u);

  const Nanos left = Seconds(1000);
  limits.NoteFault(2, left - FaultLimits::kExplainedWithin - 1);  // Too early,
  limits.NoteFault(3, left - FaultLimits::kExplainedWithin);
  limits.NoteDeparture(left);
  limits.NoteFault(4, left + FaultLimits::kExplainedWithin);
  limits.NoteFault(5, left + FaultLimits::kExplainedWithin + 1);  // and too late.
  EXPECT_EQ(limits.Unexplained(left + 3 * FaultLimits::kExplainedWithin), 2u);
}

}  // namespace
}  // namespace lamina::core
