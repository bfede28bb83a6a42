// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/patience.cuh"

#include <gtest/gtest.h>

namespace lamina::kernels::cuda {
namespace {

TEST(PatienceTest, EndsWhenTheTimeoutHasPassed) {
  Patience patience(100, 1000, 0);

  EXPECT_FALSE(patience.IsOver(1000, 0));
  EXPECT_FALSE(patience.IsOver(1099, 0));
  EXPECT_TRUE(patience.IsOver(1100, 0));
}

TEST(PatienceTest, EachHeartbeatStartsItAnew) {
  Patience patience(100, 1000, 5);

  EXPECT_FALSE(patience.IsOver(1090, 6));
  EXPECT_FALSE(patience.IsOver(1180, 6));
  EXPECT_FALSE(patience.IsOver(1189, 7));
  EXPECT_FALSE(patience.IsOver(1288, 7));
  EXPECT_TRUE(patience.IsOver(1289, 7));
}

}  // namespace
}  // namespace lamina::kernels::cuda
