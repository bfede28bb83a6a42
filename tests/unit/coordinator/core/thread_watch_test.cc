// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/thread_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/silence.h"

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ThreadWatchTest : public ::testing::Test {
 protected:
  // Statuses come for so long, of a thread that does not beat.
  void StandStill(const std::string& name, ThreadActivity activity, Nanos length) {
    for (const Nanos end = now_ + length; now_ < end;) {
      now_ += Millis(500);
      watch_.Seen(name, activity, beats_, now_);
    }
  }
  // Watches one that does.
  void GetOn(const std::string& name, ThreadActivity activity, Nanos length) {
    for (const Nanos end = now_ + length; now_ < end;) {
      now_ += Millis(500);
      watch_.Seen(name, activity, ++beats_, now_);
    }
  }
  std::vector<std::string> Late() const {
    std::vector<std::string> names;
    for (const ThreadWatch::Stuck& stuck : watch_.Late(now_)) {
      names.push_back(stuck.name);
    }
    return names;
  }

  const ThreadWatch::Limits limits_{.working = Seconds(30)};
  ThreadWatch watch_{limits_};
  Nanos now_ = Seconds(1000);
  uint64_t beats_ = 7;
};

TEST_F(ThreadWatchTest, AThreadThatWorksAndDoesNotMoveIsStuck) {
  watch_.Seen("m0", ThreadActivity::kWorking, 1, now_);
  GetOn("m1", ThreadActivity::kWorking, Seconds(20));
  watch_.Seen("m0", ThreadActivity::kWorking, 2, now_);
  StandStill("m1", ThreadActivity::kWorking, Seconds(30));
  EXPECT_THAT(Late(), IsEmpty());
  StandStill("m1", ThreadActivity::kWorking, Millis(500));
  watch_.Seen("m0", ThreadActivity::kWorking, 3, now_);

  ASSERT_THAT(Late(), ElementsAre("m1"));
  EXPECT_EQ(watch_.StillFor("m1", now_), Millis(30500));
  EXPECT_EQ(Describe(watch_.Late(now_)[0]), "its data thread has not moved for 30.5 s, working");

  watch_.Forget("m1");
  EXPECT_THAT(Late(), IsEmpty());
  EXPECT_EQ(watch_.StillFor("m1", now_), 0);
}

TEST_F(ThreadWatchTest, OneThatSleepsForWantOfWorkBeatsBetweenNaps) {
  GetOn("c0", ThreadActivity::kIdle, Seconds(3600));
  EXPECT_THAT(Late(), IsEmpty());
  StandStill("c0", ThreadActivity::kIdle, Seconds(31));
  EXPECT_THAT(Late(), ElementsAre("c0"));
}

TEST_F(ThreadWatchTest, ANodeWithoutADataThreadIsNotStuck) {
  StandStill("m0", ThreadActivity::kNone, Seconds(3600));
  EXPECT_THAT(Late(), IsEmpty());

  StandStill("m0", ThreadActivity::kWorking, Millis(500));
  EXPECT_THAT(Late(), IsEmpty()) << "its time runs from the first status that says so";
}

TEST_F(ThreadWatchTest, WhatWasAskedHasALimitOfItsOwn) {
  watch_.Asked("m0", ThreadActivity::kPreparing, now_);
  StandStill("m0", ThreadActivity::kPreparing, limits_.preparing);
  EXPECT_THAT(Late(), IsEmpty());
  watch_.Answered("m0", now_);
  watch_.Asked("m0", ThreadActivity::kConnecting, now_);
  StandStill("m0", ThreadActivity::kConnecting, limits_.connecting);
  EXPECT_THAT(Late(), IsEmpty());
  StandStill("m0", ThreadActivity::kConnecting, Seconds(1));
  EXPECT_THAT(Late(), ElementsAre("m0"));
  watch_.Answered("m0", now_);
  EXPECT_THAT(Late(), IsEmpty());
}

TEST_F(ThreadWatchTest, WhoOwesAnAnswerIsStuckThoughItSaysNothingOfIt) {
  watch_.Seen("m0", ThreadActivity::kNone, 1, now_);
  watch_.Asked("m0", ThreadActivity::kPreparing, now_);
  StandStill("m0", ThreadActivity::kNone, limits_.preparing + Seconds(2));
  EXPECT_THAT(Late(), ElementsAre("m0"));
}

TEST_F(ThreadWatchTest, WeightsMayTakeAsLongAsTheyWantWhileTheyCome) {
  watch_.Asked("c0", ThreadActivity::kPreparing, now_);
  GetOn("c0", ThreadActivity::kLoading, Seconds(3600));
  StandStill("c0", ThreadActivity::kLoading, limits_.loading);
  EXPECT_THAT(Late(), IsEmpty());
  StandStill("c0", ThreadActivity::kLoading, Seconds(1));
  EXPECT_THAT(Late(), ElementsAre("c0"));
}

TEST_F(ThreadWatchTest, ALongLimitHoldsForTheOthersToo) {
  ThreadWatch patient({.working = Seconds(1000)});
  patient.Asked("m0", ThreadActivity::kConnecting, now_);
  EXPECT_THAT(patient.Late(now_ + Seconds(1000)), IsEmpty());
}

TEST_F(ThreadWatchTest, NobodyIsStuckWithoutALimit) {
  ThreadWatch unlimited({.working = 0});
  unlimited.Seen("m0", ThreadActivity::kWorking, 1, now_);
  unlimited.Asked("m1", ThreadActivity::kPreparing, now_);
  EXPECT_THAT(unlimited.Late(now_ + Seconds(100000)), IsEmpty());
}

// A coordinator that stood still has seen no status: that time counts for nobody.
TEST_F(ThreadWatchTest, TheCoordinatorsOwnStandstillDoesNotCount) {
  NodeSilence silence(Seconds(10), now_);
  watch_.Seen("m0", ThreadActivity::kWorking, 1, silence.awake());
  silence.Turn(now_ + Seconds(3600));
  EXPECT_THAT(watch_.Late(silence.awake()), IsEmpty());
  EXPECT_EQ(watch_.StillFor("m0", silence.awake()), NodeSilence::kTurnMost);
}

}  // namespace
}  // namespace lamina::core
