// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/timeout.cuh"

#include <gtest/gtest.h>

namespace lamina::kernels::cuda {
namespace {

TEST(TimeoutTest, EndsWhenTheTimeoutHasPassed) {
  Timeout timeout(100, 1000, 0);

  EXPECT_FALSE(timeout.IsOver(1000, 0));
  EXPECT_FALSE(timeout.IsOver(1099, 0));
  EXPECT_TRUE(timeout.IsOver(1100, 0));
}

TEST(TimeoutTest, EachHeartbeatStartsItAnew) {
  Timeout timeout(100, 1000, 5);

  EXPECT_FALSE(timeout.IsOver(1090, 6));
  EXPECT_FALSE(timeout.IsOver(1180, 6));
  EXPECT_FALSE(timeout.IsOver(1189, 7));
  EXPECT_FALSE(timeout.IsOver(1288, 7));
  EXPECT_TRUE(timeout.IsOver(1289, 7));
}

}  // namespace
}  // namespace lamina::kernels::cuda
