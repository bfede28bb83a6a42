// SPDX-License-Identifier: Apache-2.0
//
// Sequences of several paths of attention in one scheduler: who runs in which lane, and that nobody
// waits for ever.

#include <gmock/gmock.h>

#include <set>

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using plan::AttentionPath;
using testing::ElementsAre;

class SchedulerPathsTest : public SchedulerTest {
 protected:
  void MakeLanes(uint32_t lanes, uint32_t slots = 1000) {
    SchedulerOptions options = SmallOptions(slots);
    options.lanes = lanes;
    Make(options);
  }
  absl::Status SubmitTo(AttentionPath path, plan::SequenceId id, uint32_t prompt,
                        uint32_t tokens_max) {
    SequenceRequest request = Request(id, prompt, tokens_max);
    request.path = path;
    return scheduler_->Submit(std::move(request));
  }
  // Plans so many times, and answers so many steps each time; the paths of those with work in a
  // step are one.
  void Steps(int count, int at_once = 1) {
    for (int i = 0; i < count; ++i) {
      for (const plan::StepPlan& plan : Plan()) {
        for (const plan::SequenceJoin& join : plan.joins) {
          order_.push_back(join.id);
        }
        std::set<AttentionPath> paths;
        for (const plan::SequenceJoin& join : plan.joins) {
          paths.insert(join.path);
        }
        for (const plan::DecodeRow& row : plan.rows) {
          paths.insert(joins_[row.sequence].path);
        }
        for (const plan::PrefillChunk& chunk : plan.chunks) {
          paths.insert(joins_[chunk.sequence].path);
        }
        EXPECT_LE(paths.size(), 1u);
      }
      for (int step = 0; step < at_once; ++step) {
        StepDone();
      }
    }
  }

  std::vector<plan::SequenceId> order_;  // In which they joined.
};

TEST_F(SchedulerPathsTest, RequestsOfTwoPathsRunSideBySideInTwoLanes) {
  MakeLanes(2);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 1, 5, 40).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 2, 5, 40).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 3, 5, 40).ok());
  Steps(8);

  EXPECT_EQ(joins_[1].path, AttentionPath::kRemote);
  EXPECT_EQ(joins_[2].path, AttentionPath::kFetch);
  const SchedulerStats stats = scheduler_->Stats();
  EXPECT_EQ(stats.running, 3u);
  EXPECT_EQ(stats.lanes[0].rows + stats.lanes[1].rows, 3u);
  EXPECT_EQ(scheduler_->RunningBy(AttentionPath::kRemote), 2u);
  EXPECT_EQ(scheduler_->RunningBy(AttentionPath::kFetch), 1u);
  RunUntilIdle();
}

TEST_F(SchedulerPathsTest, InOneLaneRequestsOfAnotherPathWaitUntilItIsEmpty) {
  MakeLanes(1);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 1, 5, 20).ok());
  Steps(3);
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 2, 5, 20).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 3, 5, 20).ok());
  Steps(3);
  EXPECT_THAT(order_, ElementsAre(1));
  EXPECT_EQ(scheduler_->Stats().waiting, 2u);
  Steps(60);
  EXPECT_THAT(order_, ElementsAre(1, 2, 3)) << "in service order";
  RunUntilIdle();
}

// New requests of the path that runs keep coming: they join behind the one that waits.
TEST_F(SchedulerPathsTest, NobodyStarvesBehindNewcomersOfTheOtherPath) {
  MakeLanes(1);
  plan::SequenceId id = 1;
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, id++, 5, 30).ok());
  Steps(3);
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 1000, 5, 30).ok());
  for (int round = 0; round < 80; ++round) {
    ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, id++, 5, 30).ok());
    Steps(1);
  }
  EXPECT_NE(EndOf(1000), nullptr);
  EXPECT_THAT(std::vector<plan::SequenceId>(order_.begin(), order_.begin() + 3),
              ElementsAre(1, 1000, 2));
  RunUntilIdle();
}

TEST_F(SchedulerPathsTest, ALaneBecomesEmptyForAPathThatHasNone) {
  MakeLanes(2);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, id, 5, 110).ok());
  }
  Steps(10);
  ASSERT_EQ(scheduler_->Stats().lanes[1].rows, 2u);
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 5, 5, 20).ok());
  Steps(10);

  ASSERT_EQ(order_.size(), 5u);
  EXPECT_EQ(order_.back(), 5u);
  EXPECT_EQ(scheduler_->Stats().running, 5u) << "nobody had to end for it";
  RunUntilIdle();
}

// The only sequence of a lane is taken out when its row is in a step already: who takes the lane
// then joins the next step.
TEST_F(SchedulerPathsTest, AStepWithRowsOfOneWhoWasTakenOutIsNotJoinedByAnotherPath) {
  uint64_t preemptions = 0;
  for (uint32_t slots = 34; slots < 46; ++slots) {
    SCOPED_TRACE(slots);
    SchedulerOptions options = SmallOptions(slots);
    options.lanes = 2;
    options.plan_ahead = 1;  // Both lanes plan their next steps together.
    options.memory_nodes.push_back(
        {.name = "b", .slots = 1000, .bandwidth_bytes_per_second = 1e-6});
    Make(options, /*priority=*/true);
    in_flight_.clear();
    joins_.clear();
    const auto submit = [&](plan::SequenceId id, AttentionPath path, int32_t priority,
                            uint32_t tokens_max) {
      SequenceRequest request = Request(id, 10, tokens_max);
      request.path = path;
      request.priority = priority;
      ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
    };
    submit(1, AttentionPath::kRemote, -1, 31);  // In lane 0, which is packed first.
    Steps(1, /*at_once=*/2);
    submit(2, AttentionPath::kFetch, 0, 31);
    Steps(4, /*at_once=*/2);
    submit(3, AttentionPath::kSparse, 10, 60);  // It fits on the other node alone.
    Steps(60, /*at_once=*/2);
    preemptions += scheduler_->Stats().preemptions;
    RunUntilIdle();
  }
  EXPECT_GT(preemptions, 0u);
}

// A sequence that was preempted goes on by its own path, whatever has joined its lane meanwhile.
TEST_F(SchedulerPathsTest, APreemptedSequenceKeepsItsPath) {
  MakeLanes(2, /*slots=*/60);
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 1, 10, 55).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 2, 10, 55).ok());
  Steps(300);
  ASSERT_GT(scheduler_->Stats().preemptions, 0u);

  EXPECT_EQ(joins_[1].path, AttentionPath::kFetch);
  EXPECT_EQ(joins_[2].path, AttentionPath::kRemote);
  EXPECT_EQ(IndicesOf(1).size(), 45u);
  EXPECT_EQ(IndicesOf(2).size(), 45u);
  EXPECT_GT(order_.size(), 2u);
}

TEST_F(SchedulerPathsTest, PathsOutliveAnEpoch) {
  MakeLanes(2);
  ASSERT_TRUE(SubmitTo(AttentionPath::kFetch, 1, 5, 40).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 2, 5, 40).ok());
  Steps(6);
  in_flight_.clear();
  joins_.clear();
  scheduler_->StartEpoch(1, SmallOptions().memory_nodes, {"a"}, events_);
  Steps(6);

  EXPECT_EQ(joins_[1].path, AttentionPath::kFetch);
  EXPECT_EQ(joins_[2].path, AttentionPath::kRemote);
  RunUntilIdle();
}

// What a lossy request stored is found by nobody, and it finds nothing.
TEST_F(SchedulerPathsTest, ThePrefixCacheKnowsNothingOfLossyRequests) {
  SchedulerOptions options = SmallOptions();
  options.prefix_cache = true;
  options.prompt_rows_max = 32;
  Make(options);
  const auto run = [&](plan::SequenceId id, AttentionPath path, bool lossy) {
    SequenceRequest request = Request(id, 40, 60);
    request.path = path;
    request.lossy = lossy;
    ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
    RunUntilIdle();
  };
  const auto found = [&] { return scheduler_->prefix_cache().stats().tokens_found; };
  run(1, AttentionPath::kSparse, true);
  run(2, AttentionPath::kSparse, true);
  EXPECT_EQ(found(), 0u);
  run(3, AttentionPath::kRemote, false);
  EXPECT_EQ(found(), 0u) << "nothing of the lossy ones";
  run(4, AttentionPath::kFetch, false);
  EXPECT_EQ(found(), 32u) << "exact paths share";
  run(5, AttentionPath::kSparse, true);
  EXPECT_EQ(found(), 32u);
}

// Tokens that it computes itself, in places that nobody else has until its leave is done.
TEST_F(SchedulerPathsTest, ARequestThatRecomputesHasPlacesForActivations) {
  SchedulerOptions options = SmallOptions();
  options.prefix_cache = true;
  options.prompt_rows_max = 64;
  options.running_max = 2;
  options.resident_tokens = 70;
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 1, 20, 90).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 2, 20, 40).ok());
  Steps(8);
  EXPECT_EQ(joins_[1].resident, (plan::ResidentTokens{.first = 0, .tokens = 32, .place = 0}));
  EXPECT_EQ(joins_[2].resident.tokens, joins_[2].resident.first == 0 ? 32u : 23u);
  EXPECT_EQ(joins_[2].resident.place, 32u);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 3, 20, 30).ok());
  RunUntilIdle();
  EXPECT_EQ(joins_[3].resident, plan::ResidentTokens()) << "its path makes nothing again";
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 4, 40, 90).ok());
  RunUntilIdle();
  EXPECT_GE(joins_[4].resident.first, 16u) << "what it found another one made";
  EXPECT_EQ(joins_[4].resident.tokens, 32u);
  EXPECT_EQ(joins_[4].resident.place, 0u) << "all have left";
  EXPECT_TRUE(scheduler_->Audit().ok());
}

TEST_F(SchedulerPathsTest, PlacesAreThoseOfOnePath) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 2;
  options.resident_tokens = 64;
  options.resident_path = AttentionPath::kHybrid;
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kHybrid, 1, 20, 90).ok());
  Steps(2);
  EXPECT_EQ(joins_[1].resident, (plan::ResidentTokens{.first = 0, .tokens = 32, .place = 0}));
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 2, 20, 40).ok());
  RunUntilIdle();
  EXPECT_EQ(joins_[2].resident, plan::ResidentTokens());
  EXPECT_TRUE(scheduler_->Audit().ok());
}

// A request is as long as slots of its path have room for, however many the others have.
TEST_F(SchedulerPathsTest, SequencesLiveInSlotsOfTheirPath) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  options.memory_nodes = {
      {.name = "a", .slots = 200, .paths = {AttentionPath::kRemote, AttentionPath::kFetch}},
      {.name = "a", .slots = 50, .paths = {AttentionPath::kHybrid}}};
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kHybrid, 1, 20, 30).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 2, 20, 30).ok());
  EXPECT_EQ(SubmitTo(AttentionPath::kHybrid, 3, 40, 90).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SubmitTo(AttentionPath::kFetch, 4, 40, 90).ok());
  RunUntilIdle();
  EXPECT_EQ(joins_[1].memory_node, 1u);
  EXPECT_EQ(joins_[2].memory_node, 0u);
  EXPECT_EQ(joins_[4].memory_node, 0u);
  EXPECT_TRUE(scheduler_->Audit().ok());
}

// Between shares of their own size a third request would find 32 places twice, and never 48.
TEST_F(SchedulerPathsTest, ShortRequestsLeaveNoGapsThatAreTooSmall) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 2;
  options.resident_tokens = 96;
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 1, 10, 20).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 2, 4, 28).ok());
  Steps(16);
  EXPECT_LT(joins_[1].resident.tokens, 32u);
  EXPECT_LT(joins_[2].resident.tokens, 32u);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 3, 20, 60).ok());
  Steps(4);
  EXPECT_EQ(joins_[3].resident.tokens, 48u);
  EXPECT_EQ(joins_[3].resident.place, joins_[1].resident.place);
  RunUntilIdle();
  EXPECT_TRUE(scheduler_->Audit().ok());
}

// Each wave joins with the plan that has the leaves of the one before.
TEST_F(SchedulerPathsTest, RequestsThatJoinAsOthersLeaveHaveTheirPlaces) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 2;
  options.resident_tokens = 64;
  Make(options);
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, id, 10, 20).ok());
  }
  RunUntilIdle();
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    EXPECT_EQ(joins_[id].resident.tokens, 19u) << id;
  }
  EXPECT_NE(joins_[3].resident.place, joins_[4].resident.place);
  EXPECT_NE(joins_[5].resident.place, joins_[6].resident.place);
}

// The client sends it when it has the answer before, while the plan with that one's leave runs.
TEST_F(SchedulerPathsTest, ARequestThatJoinsAPlanLaterHasThePlacesOfOneThatLeft) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 2;
  options.resident_tokens = 64;
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 1, 10, 20).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 2, 10, 90).ok());
  while (EndOf(1) == nullptr) {
    Plan();
    ASSERT_TRUE(StepDone());
  }
  const std::vector<plan::StepPlan> leaving = Plan();
  ASSERT_EQ(leaving.size(), 1u);
  EXPECT_EQ(leaving[0].leaves.size(), 1u);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRecompute, 3, 10, 20).ok());
  ASSERT_TRUE(StepDone());
  ASSERT_EQ(in_flight_.size(), 1u) << "the step with the leave is not done";
  Plan();
  EXPECT_EQ(joins_[3].resident.tokens, 19u);
  EXPECT_EQ(joins_[3].resident.place, joins_[1].resident.place);
  RunUntilIdle();
  EXPECT_TRUE(scheduler_->Audit().ok());
}

// K and V are everybody's; activations are there of those tokens alone that path recompute stored.
TEST_F(SchedulerPathsTest, ARequestThatRecomputesIsToldWhatOthersStored) {
  SchedulerOptions options = SmallOptions();
  options.prefix_cache = true;
  options.prompt_rows_max = 64;
  Make(options);
  const auto run = [&](plan::SequenceId id, AttentionPath path, uint32_t prompt) {
    ASSERT_TRUE(SubmitTo(path, id, prompt, 90).ok());
    RunUntilIdle();
  };
  run(1, AttentionPath::kRecompute, 20);
  EXPECT_EQ(joins_[1].bare_tokens, 0u);
  run(2, AttentionPath::kRecompute, 20);
  EXPECT_EQ(joins_[2].bare_tokens, 0u) << "those that it found have activations";
  run(3, AttentionPath::kRemote, 40);
  EXPECT_EQ(joins_[3].bare_tokens, 0u) << "its path reads none";
  run(4, AttentionPath::kRecompute, 80);
  EXPECT_EQ(joins_[4].bare_tokens, 32u) << "the first block has them, the second one not";
  run(5, AttentionPath::kRecompute, 80);
  EXPECT_EQ(joins_[5].bare_tokens, 32u);
  EXPECT_EQ(scheduler_->prefix_cache().stats().tokens_found, 16u + 16 + 32 + 64);
}

TEST_F(SchedulerPathsTest, BeamsOfOnePathGoOnBesideSequencesOfAnother) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 1;
  Make(options);
  SequenceRequest search = Request(1, 5, 30);
  search.path = AttentionPath::kFetch;
  search.beams = {.width = 2};
  search.answers = {1};
  ASSERT_TRUE(scheduler_->Submit(std::move(search)).ok());
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 2, 5, 30).ok());
  RunUntilIdle();

  EXPECT_NE(EndOf(1), nullptr);
  EXPECT_NE(EndOf(2), nullptr);
}

// Between two of its steps no beam runs or waits; so few rows would have one lane by themselves.
TEST_F(SchedulerPathsTest, BeamsHaveALaneNextToASequenceOfAnotherPathThatGoesOn) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 4;
  options.lanes_auto = true;
  Make(options);
  ASSERT_TRUE(SubmitTo(AttentionPath::kRemote, 1, 5, 120).ok());
  Steps(3);
  SequenceRequest search = Request(2, 5, 12);
  search.path = AttentionPath::kFetch;
  search.beams = {.width = 2};
  search.answers = {2};
  ASSERT_TRUE(scheduler_->Submit(std::move(search)).ok());
  Steps(60);

  EXPECT_NE(EndOf(2), nullptr);
  EXPECT_EQ(EndOf(1), nullptr) << "it did not have to end for the search";
  RunUntilIdle();
}

}  // namespace
}  // namespace lamina::core
