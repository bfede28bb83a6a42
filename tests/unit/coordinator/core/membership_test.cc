// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/membership.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/core/membership_fixture.h"

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(MembershipTest, WaitsForEveryNodeAndSaysForWhom) {
  EXPECT_TRUE(members_.Join("m0", true).ok());

  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_EQ(members_.Describe(), "waiting for c0, m1");
}

TEST_F(MembershipTest, PreparesConnectsAndServes) {
  JoinAll();
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_EQ(members_.epoch(), 1u);
  Prepare({"c0", "m1"});
  EXPECT_THAT(Actions(), ElementsAre());
  Prepare({"m0"});
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConnect));
  EXPECT_EQ(members_.memory_members()[1]->region, "region of m1");
  Ready({"m0", "m1"});
  EXPECT_THAT(Actions(), ElementsAre());
  Ready({"c0"});
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kServe));
  EXPECT_EQ(members_.Describe(), "serving");
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m0", "m1"));  // As in the file.
}

TEST_F(MembershipTest, ANodeThatIsExpectedLaterIsNotWaitedForAndJoinsAtTheNextEpoch) {
  Serve();
  members_.Expect({.name = "m2", .is_memory = true});
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.Describe(), "serving; without m2");
  EXPECT_TRUE(members_.Join("m2", true).ok());
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_EQ(members_.epoch(), 2u);
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m0", "m1", "m2"));
}

TEST_F(MembershipTest, ANodeThatIsDismissedLeavesAndIsNotKnownAnyMore) {
  Serve();
  members_.Dismiss("m0");
  EXPECT_TRUE(members_.epoch_ended());
  ServeAgain({"c0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving");
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m1"));
  EXPECT_TRUE(absl::IsNotFound(members_.Join("m0", true)));
}

TEST_F(MembershipTest, WhoeverBlamesADismissedNodeForItsEndIsNotBlamedInstead) {
  Serve();
  members_.Dismiss("m0");
  Actions();
  for (int i = 0; i < 10; ++i) {
    members_.Fault("c0", 1, kBroken, "m0");
  }
  ServeAgain({"c0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving");
  EXPECT_EQ(members_.Warning(), "");
}

TEST_F(MembershipTest, TheFirstEpochDoesNotWaitForADismissedNode) {
  EXPECT_TRUE(members_.Join("m0", true).ok());
  EXPECT_TRUE(members_.Join("c0", false).ok());
  EXPECT_THAT(Actions(), ElementsAre());
  members_.Dismiss("m1");
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
}

// Policy local.
TEST_F(MembershipTest, AComputeNodeThatHoldsKvServesWithoutMemoryNodes) {
  members_ = Membership({{.name = "c0", .holds_kv = true}});
  EXPECT_TRUE(members_.HoldsKv("c0"));
  EXPECT_TRUE(members_.Join("c0", false).ok());
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_THAT(Names(members_.kv_members()), ElementsAre("c0"));
  EXPECT_THAT(Names(members_.compute_members()), ElementsAre("c0"));
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre());
  Prepare({"c0"});
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConnect));
  Ready({"c0"});
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kServe));

  members_.Leave("c0");
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
}

TEST_F(MembershipTest, MemoryNodesHoldKvAndComputeNodesDoNot) {
  JoinAll();
  Actions();
  EXPECT_THAT(Names(members_.kv_members()), ElementsAre("m0", "m1"));
  EXPECT_FALSE(members_.HoldsKv("c0"));
  EXPECT_FALSE(members_.HoldsKv("m9"));
}

class AutoMembershipTest : public MembershipTest {
 protected:
  AutoMembershipTest() {
    members_ = Membership({{.name = "c0", .holds_kv = true},
                           {.name = "m0", .is_memory = true},
                           {.name = "m1", .is_memory = true}});
  }

  // Answers the kConfigure that is due, and serves.
  void ServeWithKvOnCompute(bool local) {
    EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
    members_.KeepKvOnCompute(local);
    ServeAgain(local ? std::vector<std::string>{"c0"} : Names(Everybody()));
  }
  std::vector<const Member*> Everybody() const {
    std::vector<const Member*> members = members_.compute_members();
    for (const Member* member : members_.memory_members()) {
      members.push_back(member);
    }
    return members;
  }
};

TEST_F(AutoMembershipTest, WaitsForAllAndThenHasKvInOneOfTheTwoPlaces) {
  EXPECT_TRUE(members_.Join("c0", false).ok());
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_TRUE(members_.HoldsKv("c0"));
  EXPECT_TRUE(members_.Join("m0", true).ok());
  EXPECT_TRUE(members_.Join("m1", true).ok());

  ServeWithKvOnCompute(true);

  EXPECT_THAT(Names(members_.kv_members()), ElementsAre("c0"));
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre());
  EXPECT_TRUE(members_.IsThere("m0"));
  EXPECT_EQ(members_.Describe(), "serving");

  EXPECT_TRUE(members_.StartAnew());
  EXPECT_FALSE(members_.StartAnew());  // It is about to.
  ServeWithKvOnCompute(false);

  EXPECT_THAT(Names(members_.kv_members()), ElementsAre("m0", "m1"));
  EXPECT_EQ(members_.epoch(), 2u);
}

TEST_F(AutoMembershipTest, MemoryNodesWithoutAPartComeAndGoUnnoticed) {
  JoinAll();
  ServeWithKvOnCompute(true);

  members_.Leave("m0");
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.Describe(), "serving; without m0");
  EXPECT_FALSE(members_.IsThere("m0"));
  EXPECT_TRUE(members_.Join("m0", true).ok());
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.Describe(), "serving");

  members_.Leave("c0");
  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
}

// KV may be elsewhere then.
TEST_F(AutoMembershipTest, AMemoryNodeThatComesEndsTheWaitOfAClusterThatCouldNotServe) {
  JoinAll();
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  members_.KeepKvOnCompute(true);
  members_.CannotServe("no room");
  members_.Leave("m0");
  EXPECT_THAT(Actions(), ElementsAre());

  EXPECT_TRUE(members_.Join("m0", true).ok());

  ServeWithKvOnCompute(false);
}

TEST_F(AutoMembershipTest, WithoutMemoryNodesTheComputeNodeCanGoOn) {
  JoinAll();
  ServeWithKvOnCompute(false);
  members_.Leave("m0");
  members_.Leave("m1");
  EXPECT_NE(members_.phase(), MembershipPhase::kWaiting);

  ServeWithKvOnCompute(true);

  EXPECT_EQ(members_.Describe(), "serving; without m0, m1");
}

TEST_F(MembershipTest, StartsAnewWithTheSameMembers) {
  JoinAll();
  Actions();
  EXPECT_TRUE(members_.StartAnew("c0", 1));
  EXPECT_FALSE(members_.StartAnew("m0", 1));  // It says the same, of an epoch that is over.
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_EQ(members_.epoch(), 2u);
  EXPECT_FALSE(members_.StartAnew("m0", 1));
  EXPECT_FALSE(members_.StartAnew("m9", 2));
  ServeAgain({"c0", "m0", "m1"});

  EXPECT_TRUE(members_.StartAnew("m1", 2));
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  ServeAgain({"c0", "m0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving");
}

TEST_F(MembershipTest, JoinRefusesUnknownNamesAndRoles) {
  const absl::Status unknown = members_.Join("m9", true);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("m0, m1"));
  EXPECT_EQ(members_.Join("c0", true).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(members_.Join("c0", false).ok());
  EXPECT_EQ(members_.Join("c0", false).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(MembershipTest, ServesWithoutAMemoryNodeThatLeft) {
  Serve();
  members_.Leave("m0");

  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_EQ(members_.epoch(), 2u);
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m1"));
  ServeAgain({"c0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving; without m0");
  EXPECT_TRUE(members_.Join("m0", true).ok());
  ServeAgain({"c0", "m0", "m1"});
  EXPECT_EQ(members_.epoch(), 3u);
  EXPECT_EQ(members_.Describe(), "serving");
}

TEST_F(MembershipTest, WaitsWhenTheLastOfARoleLeft) {
  Serve();
  members_.Leave("c0");

  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.Describe(), "waiting for c0");
  EXPECT_TRUE(members_.Join("c0", false).ok());
  ServeAgain({"c0", "m0", "m1"});
}

TEST_F(MembershipTest, ANodeThatLeavesWhileOthersPrepareStartsTheNextEpoch) {
  JoinAll();
  Actions();
  Prepare({"c0", "m0"});
  members_.Leave("m1");

  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  // What was prepared belongs to the epoch before.
  EXPECT_EQ(members_.compute_members()[0]->state, MemberState::kJoined);
  members_.Prepared("c0", 1, "old");
  EXPECT_EQ(members_.compute_members()[0]->state, MemberState::kJoined);
  ServeAgain({"c0", "m0"});
}

TEST_F(MembershipTest, IgnoresWordsOfAnotherEpochAndOfStrangers) {
  Serve();
  members_.Prepared("m0", 0, "x");
  members_.Ready("m0", 9);
  members_.Fault("m0", 0, kBroken);
  members_.Fault("m9", 1, kBroken);
  members_.Leave("m9");
  members_.Prepared("m9", 1, "x");

  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_EQ(members_.phase(), MembershipPhase::kServing);
}

TEST_F(MembershipTest, AFaultWhileServingStartsAnEpochOfTheSameNodes) {
  Serve();
  members_.Fault("m0", 1, kBroken);

  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_EQ(members_.epoch(), 2u);
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m0", "m1"));
}

TEST_F(MembershipTest, AFaultBeforeServingSetsTheNodeAside) {
  JoinAll();
  Actions();
  members_.Fault("m1", 1, kBroken);

  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  EXPECT_THAT(Names(members_.memory_members()), ElementsAre("m0"));
  EXPECT_THAT(members_.Describe(), HasSubstr("m1 failed: broken"));
  ServeAgain({"c0", "m0"});
  members_.Leave("m1");  // It starts again, and is taken back.
  EXPECT_TRUE(members_.Join("m1", true).ok());
  ServeAgain({"c0", "m0", "m1"});
}

// A fault that two nodes see is one fault: both speak of the same epoch.
TEST_F(MembershipTest, TwoReportsOfOneEpochCountOnce) {
  Serve();
  for (uint32_t i = 1; i < FaultLimits::kWithoutProgressMax; ++i) {
    members_.Fault("m0", members_.epoch(), kBroken);
    members_.Fault("c0", members_.epoch(), kBroken);
    ServeAgain({"c0", "m0", "m1"});
  }
  EXPECT_THAT(Names(members_.compute_members()), ElementsAre("c0"));
}

// The others miss the node that left, and say so: that is no reason to set them aside.
TEST_F(MembershipTest, FaultsBecauseOfANodeThatLeftChangeNothing) {
  Serve();
  members_.Leave("c0");
  for (uint32_t i = 0; i < FaultLimits::kWithoutProgressMax; ++i) {
    members_.Fault("m0", 1, kBroken);
    members_.Fault("m1", 1, kBroken);
  }
  EXPECT_TRUE(members_.Join("c0", false).ok());

  ServeAgain({"c0", "m0", "m1"});
  EXPECT_EQ(members_.Describe(), "serving");
}

// A peer dies after it has prepared: opening its region fails before its end is known.
TEST_F(MembershipTest, AFaultWhileConnectingIsTriedAgain) {
  JoinAll();
  Actions();
  Prepare({"c0", "m0", "m1"});
  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConnect));
  members_.Fault("c0", 1, kBroken);

  EXPECT_THAT(Actions(), ElementsAre(MembershipAction::kConfigure));
  Prepare({"c0", "m0"});
  members_.Leave("m1");
  ServeAgain({"c0", "m0"});
}

TEST_F(MembershipTest, AFaultOfTheOnlyComputeNodeBeforeServingWaits) {
  JoinAll();
  Actions();
  members_.Fault("c0", 1, kBroken);

  EXPECT_EQ(members_.phase(), MembershipPhase::kWaiting);
  EXPECT_THAT(Actions(), ElementsAre());
  EXPECT_THAT(members_.Describe(), HasSubstr("c0 failed: broken"));
}

TEST(MembershipRolesTest, PrefillNodesComeLastAndNoEpochFormsOfThemAlone) {
  Membership members({{.name = "p0", .prefill = true},
                      {.name = "c0"},
                      {.name = "p1", .prefill = true},
                      {.name = "m0", .is_memory = true}});
  for (const char* name : {"p0", "p1", "c0"}) {
    EXPECT_TRUE(members.Join(name, false).ok());
  }
  EXPECT_TRUE(members.Join("m0", true).ok());
  EXPECT_EQ(members.Next(), MembershipAction::kConfigure);
  const auto names = [&] {
    std::vector<std::string> found;
    for (const Member* member : members.compute_members()) {
      found.push_back(member->name);
    }
    return found;
  };
  EXPECT_THAT(names(), ElementsAre("c0", "p0", "p1"));
  EXPECT_EQ(members.prefill_members(), 2u);
  EXPECT_EQ(RoleOf(*members.compute_members()[0]), "compute");
  EXPECT_EQ(RoleOf(*members.compute_members()[1]), "prefill");

  members.Leave("p0");
  EXPECT_EQ(members.Next(), MembershipAction::kConfigure);
  EXPECT_THAT(names(), ElementsAre("c0", "p1"));
  members.Leave("p1");
  EXPECT_EQ(members.Next(), MembershipAction::kConfigure);
  EXPECT_EQ(members.prefill_members(), 0u);

  EXPECT_TRUE(members.Join("p1", false).ok());
  EXPECT_EQ(members.Next(), MembershipAction::kConfigure);
  members.Leave("c0");
  EXPECT_EQ(members.Next(), MembershipAction::kNone);
  EXPECT_EQ(members.phase(), MembershipPhase::kWaiting);
}

// Replica r0 is c0 and c1 together, c2 one by itself.
TEST(MembershipOfStagesTest, AReplicaTakesPartWholeOrNotAtAll) {
  Membership members({{.name = "c0", .replica = "r0"},
                      {.name = "c1", .replica = "r0"},
                      {.name = "c2"},
                      {.name = "m0", .is_memory = true}});
  const auto serve = [&members](const std::vector<std::string>& names) {
    while (members.Next() != MembershipAction::kNone) {
      for (const std::string& name : names) {
        members.Prepared(name, members.epoch(), "region");
      }
    }
    for (const std::string& name : names) {
      members.Ready(name, members.epoch());
    }
    members.Next();
    return members.phase() == MembershipPhase::kServing;
  };
  const auto compute = [&members] {
    std::vector<std::string> names;
    for (const Member* member : members.compute_members()) {
      names.push_back(member->name);
    }
    return names;
  };
  for (const char* name : {"c0", "c1", "c2"}) {
    ASSERT_TRUE(members.Join(name, false).ok());
  }
  EXPECT_EQ(members.Next(), MembershipAction::kNone);  // m0 is missing.
  ASSERT_TRUE(members.Join("m0", true).ok());
  ASSERT_TRUE(serve({"c0", "c1", "c2", "m0"}));
  EXPECT_THAT(compute(), ElementsAre("c0", "c1", "c2"));

  members.Leave("c1");
  ASSERT_TRUE(serve({"c2", "m0"}));  // Nobody waits for c0, which has not been asked.
  EXPECT_THAT(compute(), ElementsAre("c2"));
  EXPECT_THAT(members.Describe(), HasSubstr("without c1"));
  EXPECT_THAT(members.Describe(), HasSubstr("c0 waits for the other nodes of replica r0"));

  members.Leave("c2");  // c0 alone is no replica.
  EXPECT_EQ(members.phase(), MembershipPhase::kWaiting);
  ASSERT_TRUE(members.Join("c1", false).ok());
  ASSERT_TRUE(serve({"c0", "c1", "m0"}));
  EXPECT_THAT(compute(), ElementsAre("c0", "c1"));
}

}  // namespace
}  // namespace lamina::core
