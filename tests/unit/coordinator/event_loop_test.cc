// SPDX-License-Identifier: Apache-2.0
#include "coordinator/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;

// A loop that notes what its thread does.
class EventLoopTest : public ::testing::Test {
 protected:
  void TearDown() override { loop_.Stop(); }

  EventLoop::Event Note(const std::string& word) {
    return [this, word] { notes_.push_back(word); };
  }

  // Waits until the events that were posted before have run.
  void Flush() {
    std::promise<void> done;
    loop_.Post([&done] { done.set_value(); });
    done.get_future().wait();
  }

  std::vector<std::string> notes_;  // Written by the loop's thread; to be read when it has stopped.
  EventLoop loop_{{.pause_max = Seconds(3600),
                   .begin_turn = [this] { notes_.push_back("["); },
                   .end_turn = [this] { notes_.push_back("]"); }}};
};

TEST_F(EventLoopTest, WhatIsPostedBeforeTheStartRunsInOneTurnInItsOrder) {
  loop_.Post(Note("a"));
  loop_.Post(Note("b"));
  loop_.Start();
  Flush();
  loop_.Stop();
  notes_.resize(4);
  EXPECT_THAT(notes_, ElementsAre("[", "a", "b", "]"));
}

TEST_F(EventLoopTest, WhatAnEventPostsRunsInTheNextTurn) {
  std::promise<void> ran;
  loop_.Post([this, &ran] {
    loop_.Post([this, &ran] {
      notes_.push_back("inner");
      ran.set_value();
    });
    notes_.push_back("outer");
  });
  loop_.Post(Note("behind"));
  loop_.Start();
  ran.get_future().wait();
  loop_.Stop();
  notes_.resize(7);
  EXPECT_THAT(notes_, ElementsAre("[", "outer", "behind", "]", "[", "inner", "]"));
}

TEST_F(EventLoopTest, EventsRunInTheThreadOfTheLoopAlone) {
  loop_.Start();
  std::promise<std::thread::id> first;
  std::promise<std::thread::id> second;
  loop_.Post([&] { first.set_value(std::this_thread::get_id()); });
  std::thread([&] { loop_.Post([&] { second.set_value(std::this_thread::get_id()); }); }).join();
  const std::thread::id thread = first.get_future().get();
  EXPECT_EQ(thread, second.get_future().get());
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST_F(EventLoopTest, WhatIsPostedAfterTheEndNeverRuns) {
  loop_.Start();
  loop_.Stop();
  loop_.Post(Note("late"));
  EXPECT_THAT(notes_, ::testing::Not(::testing::Contains("late")));
}

TEST_F(EventLoopTest, OneThatWasNeverStartedEnds) {
  loop_.Post(Note("never"));
  loop_.Stop();
  EXPECT_TRUE(notes_.empty());
}

TEST(EventLoopPauseTest, TurnsThoughNothingIsPosted) {
  std::promise<void> third;
  int turns = 0;
  EventLoop loop({.pause_max = Millis(1),
                  .begin_turn = [] {},
                  .end_turn =
                      [&] {
                        if (++turns == 3) {
                          third.set_value();
                        }
                      }});
  loop.Start();
  third.get_future().wait();
  loop.Stop();
  EXPECT_GE(turns, 3);
}

TEST(EventLoopPauseTest, ATurnMayAskForTheNextOneSoon) {
  std::promise<void> second;
  int turns = 0;
  EventLoop* made = nullptr;
  EventLoop loop({.pause_max = Seconds(3600),
                  .begin_turn = [] {},
                  .end_turn =
                      [&] {
                        if (++turns == 1) {
                          made->PauseAtMost(Millis(1));
                          made->PauseAtMost(Seconds(3600));  // The shortest one counts.
                        } else if (turns == 2) {
                          second.set_value();
                        }
                      }});
  made = &loop;
  loop.Start();
  loop.Post([] {});
  second.get_future().wait();
  loop.Stop();
}

}  // namespace
}  // namespace lamina::coordinator
