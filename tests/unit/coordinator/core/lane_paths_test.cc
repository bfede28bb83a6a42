// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lane_paths.h"

#include <gmock/gmock.h>

#include <vector>

#include "coordinator/core/lane_balance.h"
#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using plan::AttentionPath;
using testing::ElementsAre;

class LanePathsTest : public PartsTest {
 protected:
  void MakeLanes(uint32_t lanes) {
    MakeNodes({100'000}, lanes);
    steps_.Reset(lanes);
    options_ = {.lanes = lanes, .rows_max = 4};
  }
  Sequence& Queue(plan::SequenceId id, AttentionPath path) {
    SequenceRequest request = Request(id, 10);
    request.path = path;
    life_.Submit(std::move(request));
    return *life_.Find(id);
  }
  Sequence& Decode(plan::SequenceId id, AttentionPath path, uint32_t lane) {
    Queue(id, path);
    Sequence& sequence = Start(id, lane);
    ++sequence.planned_tokens;
    life_.Decode(sequence);
    return sequence;
  }

  SchedulerOptions options_;
  PlannedSteps steps_;
  LanePaths paths_{lanes_, life_};
  LaneBalance balance_{options_, lanes_, paths_, steps_, kv_};
};

TEST_F(LanePathsTest, ALaneHasThePathOfWhoIsInItAndAnEmptyOneTakesAny) {
  MakeLanes(2);
  Decode(1, AttentionPath::kFetch, 0);

  EXPECT_TRUE(paths_.Takes(0, AttentionPath::kFetch));
  EXPECT_FALSE(paths_.Takes(0, AttentionPath::kRemote));
  EXPECT_TRUE(paths_.Takes(1, AttentionPath::kFetch));
  EXPECT_TRUE(paths_.Takes(1, AttentionPath::kRemote));
  EXPECT_THAT(paths_.InUse(), ElementsAre(AttentionPath::kFetch));

  life_.End(*life_.Find(1));
  EXPECT_TRUE(paths_.Takes(0, AttentionPath::kRemote));
  EXPECT_TRUE(paths_.InUse().empty());
}

TEST_F(LanePathsTest, WhoNamesNoPathHasTheEpochsOwn) {
  MakeLanes(2);
  Run(1, 10, 0);
  life_.SetDefaultPath(AttentionPath::kLocal);
  Run(2, 10, 1);

  EXPECT_TRUE(paths_.Takes(0, AttentionPath::kRemote));
  EXPECT_TRUE(paths_.Takes(1, AttentionPath::kLocal));
}

TEST_F(LanePathsTest, WhoIsFirstAndHasNoLaneAwaitsOne) {
  MakeLanes(2);
  Decode(1, AttentionPath::kRemote, 0);
  Decode(4, AttentionPath::kRemote, 0);
  Queue(2, AttentionPath::kFetch);
  Queue(3, AttentionPath::kRemote);

  EXPECT_EQ(paths_.Awaited(), AttentionPath::kFetch);
  EXPECT_EQ(paths_.LaneToEmpty(), std::nullopt) << "one is empty";
  std::vector<LaneLoad> loads = lanes_.loads();
  paths_.Restrict(AttentionPath::kFetch, loads);
  EXPECT_FALSE(loads[0].has_room);
  EXPECT_TRUE(loads[1].has_room);
  balance_.Balance(2);
  EXPECT_EQ(lanes_[0].running.size(), 2u) << "the empty lane is not for them";

  Start(2, 1);
  EXPECT_EQ(paths_.Awaited(), std::nullopt);
}

TEST_F(LanePathsTest, OneThatDrainsAndComesBeforeIsTheFirst) {
  MakeLanes(1);
  Sequence& first = Decode(1, AttentionPath::kFetch, 0);
  Queue(2, AttentionPath::kRemote);
  EXPECT_EQ(paths_.Awaited(), AttentionPath::kRemote);
  life_.Preempt(first);
  EXPECT_EQ(paths_.Awaited(), AttentionPath::kFetch);
}

TEST_F(LanePathsTest, TheLaneWithTheLeastWorkBecomesEmptyForAnotherPath) {
  MakeLanes(2);
  Decode(1, AttentionPath::kRemote, 0);
  Decode(2, AttentionPath::kRemote, 0);
  Decode(3, AttentionPath::kRemote, 1);
  EXPECT_EQ(paths_.LaneToEmpty(), std::nullopt);
  Queue(4, AttentionPath::kFetch);
  EXPECT_EQ(paths_.LaneToEmpty(), 1u);

  balance_.Balance(1);
  EXPECT_EQ(lanes_.PathOf(1), std::nullopt);
  EXPECT_EQ(lanes_[0].running.size(), 3u);
  EXPECT_TRUE(Audit().ok()) << Audit();

  balance_.Balance(1);
  EXPECT_EQ(lanes_[0].running.size(), 3u) << "it stays empty";
}

// They go on in the lane where they are.
TEST_F(LanePathsTest, ALaneOfBeamsIsNotTheOneToEmpty) {
  MakeLanes(2);
  Decode(1, AttentionPath::kRemote, 0);
  Decode(2, AttentionPath::kRemote, 0);
  Decode(3, AttentionPath::kRemote, 1).request.is_beam = true;
  Queue(4, AttentionPath::kFetch);
  EXPECT_EQ(paths_.LaneToEmpty(), 0u);
}

TEST_F(LanePathsTest, TheOnlyLaneOfAPathIsNotTakenFromIt) {
  MakeLanes(2);
  Decode(1, AttentionPath::kRemote, 0);
  Decode(2, AttentionPath::kFetch, 1);
  Queue(3, AttentionPath::kSparse);

  EXPECT_EQ(paths_.LaneToEmpty(), std::nullopt);
  EXPECT_TRUE(paths_.several());
}

TEST_F(LanePathsTest, SequencesAreEvenedOutAmongTheLanesOfTheirPath) {
  MakeLanes(3);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    Decode(id, AttentionPath::kRemote, 0);
  }
  Decode(5, AttentionPath::kFetch, 1);
  for (int i = 0; i < 6; ++i) {
    balance_.Balance(0);
  }

  EXPECT_EQ(lanes_[0].running.size(), 2u);
  EXPECT_EQ(lanes_[1].running.size(), 1u);
  EXPECT_EQ(lanes_[2].running.size(), 2u);
  EXPECT_EQ(lanes_.PathOf(2), AttentionPath::kRemote);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(LanePathsTest, AllLanesAreInUseWhereSeveralPathsAre) {
  MakeLanes(3);
  options_.lanes_auto = true;
  Decode(1, AttentionPath::kRemote, 0);
  balance_.Balance(0);
  EXPECT_EQ(balance_.count().lanes, 1u);
  Queue(2, AttentionPath::kFetch);
  balance_.Balance(1);
  EXPECT_EQ(balance_.count().lanes, 3u);
  EXPECT_EQ(balance_.count().why, "3, for sequences of several policies run");
}

// They are in no lane and in no queue.
TEST_F(LanePathsTest, BeamsBetweenTwoStepsAwaitALaneOfTheirPath) {
  MakeLanes(4);
  options_.lanes_auto = true;
  const std::vector<AttentionPath> beams = {AttentionPath::kFetch};
  EXPECT_FALSE(paths_.several(beams));
  Decode(1, AttentionPath::kRemote, 0);
  Decode(2, AttentionPath::kRemote, 0);
  EXPECT_TRUE(paths_.several(beams));
  balance_.Balance(0, {}, beams);
  EXPECT_EQ(balance_.count().lanes, 4u);
  EXPECT_EQ(lanes_[0].running.size(), 2u) << "an empty lane is not for them";

  Decode(3, AttentionPath::kFetch, 1);
  EXPECT_FALSE(paths_.AnyAwaits(beams)) << "other beams keep it";
}

}  // namespace
}  // namespace lamina::core
