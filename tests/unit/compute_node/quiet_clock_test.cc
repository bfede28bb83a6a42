// SPDX-License-Identifier: Apache-2.0
#include "compute_node/quiet_clock.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina::compute_node {
namespace {

TEST(QuietClockTest, EachThingThatComesBeginsTheSilenceAnew) {
  QuietClock clock(2);
  std::vector<AwaitedSignal> awaits = {{.peer = 0, .word = 3, .value = 7},
                                       {.peer = 1, .word = 4, .value = 7}};
  EXPECT_EQ(clock.Since(1, 100, awaits, 150), 100);
  EXPECT_EQ(clock.Since(1, 100, awaits, 180), 100) << "nothing has come";
  awaits[0].value = 8;
  EXPECT_EQ(clock.Since(1, 100, awaits, 200), 200) << "the next piece";
  EXPECT_EQ(clock.Since(1, 100, awaits, 250), 200);
  awaits.pop_back();
  EXPECT_EQ(clock.Since(1, 100, awaits, 300), 300) << "one peer is done";
  EXPECT_EQ(clock.Since(0, 100, awaits, 310), 100) << "another lane";
  EXPECT_EQ(clock.Since(1, 400, awaits, 420), 400) << "the next slice";
}

}  // namespace
}  // namespace lamina::compute_node
