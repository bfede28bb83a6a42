// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/silence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Nanos kMost = Seconds(10);

// A loop that turns once a second.
class NodeSilenceTest : public ::testing::Test {
 protected:
  void TurnFor(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ += Seconds(1);
      EXPECT_EQ(silence_.Turn(now_), 0);
    }
  }
  Nanos StandStill(int seconds) { return silence_.Turn(now_ += Seconds(seconds)); }

  Nanos now_ = Seconds(1000);
  NodeSilence silence_{kMost, now_};
};

TEST_F(NodeSilenceTest, WhoIsNotHeardIsLost) {
  silence_.Heard("m0");
  silence_.Heard("m1");
  TurnFor(5);
  silence_.Heard("m1");
  TurnFor(5);
  EXPECT_THAT(silence_.Lost(), IsEmpty());
  TurnFor(1);
  EXPECT_THAT(silence_.Lost(), ElementsAre("m0"));
  EXPECT_EQ(silence_.OwnDelays("m0"), "");

  silence_.Forget("m0");
  EXPECT_THAT(silence_.Lost(), IsEmpty());
}

TEST_F(NodeSilenceTest, TheCoordinatorsOwnSilenceIsNobodysElse) {
  silence_.Heard("m0");
  EXPECT_EQ(StandStill(3600), Seconds(3600) - NodeSilence::kTurnMost);
  EXPECT_THAT(silence_.Lost(), IsEmpty());

  TurnFor(8);
  EXPECT_THAT(silence_.Lost(), IsEmpty());
  TurnFor(1);
  EXPECT_THAT(silence_.Lost(), ElementsAre("m0"));
  EXPECT_THAT(silence_.OwnDelays("m0"), HasSubstr("stood still for 3598.0 s"));
}

TEST_F(NodeSilenceTest, NobodyIsLostWithoutALimit) {
  NodeSilence unlimited(0, now_);
  unlimited.Heard("m0");
  unlimited.Turn(now_ + Seconds(3600));
  EXPECT_THAT(unlimited.Lost(), IsEmpty());
}

}  // namespace
}  // namespace lamina::core
