// SPDX-License-Identifier: Apache-2.0
#include "control/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace lamina::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Nanos kLong = Seconds(600);

TEST(InboxTest, GivesWhatWasPushedInOrderBehindWhatIsThere) {
  Inbox<int> inbox;
  std::vector<int> out = {7};
  EXPECT_TRUE(inbox.empty());
  inbox.Push(1);
  inbox.Push(2);
  EXPECT_FALSE(inbox.empty());

  inbox.TakeAll(out);

  EXPECT_THAT(out, ElementsAre(7, 1, 2));
  EXPECT_TRUE(inbox.empty());
  out.clear();
  inbox.TakeAll(out);
  EXPECT_THAT(out, IsEmpty());
}

TEST(InboxTest, DestroysWhatNobodyTook) {
  const auto item = std::make_shared<int>(1);
  {
    Inbox<std::shared_ptr<int>> inbox;
    inbox.Push(item);
    EXPECT_EQ(item.use_count(), 2);
  }
  EXPECT_EQ(item.use_count(), 1);
}

TEST(InboxTest, WaitForItemReturnsForAPushOrAWakeThatCameBefore) {
  Inbox<int> inbox;
  inbox.Push(1);
  inbox.WaitForItem(kLong);
  inbox.Wake();
  inbox.WaitForItem(kLong);

  std::vector<int> out;
  inbox.TakeAll(out);
  EXPECT_THAT(out, ElementsAre(1));
}

TEST(InboxTest, WakeEndsAWaitWithoutAnItem) {
  Inbox<int> inbox;
  std::thread waker([&inbox] { inbox.Wake(); });

  inbox.WaitForItem(kLong);

  EXPECT_TRUE(inbox.empty());
  waker.join();
}

TEST(InboxTest, AWaitEndsWithItsTime) {
  Inbox<int> inbox;
  inbox.WaitForItem(Micros(1));
  EXPECT_TRUE(inbox.empty());
}

// Every item comes once; those of one producer keep their order; no wait is missed.
TEST(InboxTest, KeepsTheOrderOfEachOfManyProducers) {
  constexpr int kProducers = 4;
  constexpr int kItems = 5000;
  Inbox<std::pair<int, int>> inbox;
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&inbox, producer] {
      for (int i = 0; i < kItems; ++i) {
        inbox.Push({producer, i});
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<std::pair<int, int>> taken;
  for (int total = 0; total < kProducers * kItems;) {
    inbox.WaitForItem(kLong);
    taken.clear();
    inbox.TakeAll(taken);
    total += static_cast<int>(taken.size());
    for (const auto& [producer, i] : taken) {
      ASSERT_EQ(i, next[static_cast<size_t>(producer)]++);
    }
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  EXPECT_TRUE(inbox.empty());
}

}  // namespace
}  // namespace lamina::control
