// SPDX-License-Identifier: Apache-2.0
#include "common/thread_beat.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/word_sleep.h"

namespace lamina {
namespace {

TEST(ThreadBeatTest, EveryBeatAndEveryChangeOfActivityIsAnotherNumber) {
  ThreadBeat beat;
  EXPECT_EQ(beat.activity(), ThreadActivity::kNone);
  const uint64_t first = beat.beats();
  beat.Raise();
  EXPECT_EQ(beat.beats(), first + 1);

  {
    const ActivityScope preparing(beat, ThreadActivity::kPreparing);
    const ActivityScope loading(beat, ThreadActivity::kLoading);
    EXPECT_EQ(beat.activity(), ThreadActivity::kLoading);
    EXPECT_EQ(beat.beats(), first + 3);
  }

  EXPECT_EQ(beat.activity(), ThreadActivity::kNone);
  EXPECT_EQ(beat.beats(), first + 5);
}

TEST(ThreadBeatTest, ActivitiesHaveNamesFromWhichTheyAreRead) {
  for (size_t i = 0; i < kThreadActivityNames.size(); ++i) {
    const auto activity = static_cast<ThreadActivity>(i);
    EXPECT_EQ(ThreadActivityOf(NameOf(activity)), activity);
  }
  EXPECT_EQ(NameOf(ThreadActivity::kConnecting), "connecting");
  EXPECT_EQ(ThreadActivityOf("asleep"), ThreadActivity::kNone);
}

TEST(WordSleepTest, ASleepEndsWithItsTimeAndWhenTheWordIsNotAsSeen) {
  std::atomic<uint32_t> word = 3;
  SleepOnWord(word, 3, Micros(1));
  SleepOnWord(word, 2, Seconds(3600));
}

TEST(WordSleepTest, AChangeOfTheWordEndsASleep) {
  std::atomic<uint32_t> word = 0;
  std::thread waker([&word] {
    word = 1;
    WakeSleepers(word);
  });
  while (word.load() == 0) {
    SleepOnWord(word, 0, Seconds(3600));
  }
  waker.join();
}

}  // namespace
}  // namespace lamina
