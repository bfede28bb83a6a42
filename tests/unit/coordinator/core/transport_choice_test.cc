// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

using ::testing::HasSubstr;

TEST(TransportChoiceTest, FirstOfTheListIsNoReasonToWarn) {
  const TransportChoice choice({"verbs://", "ucx://"});

  EXPECT_EQ(choice.uri(), "verbs://");
  EXPECT_EQ(choice.Warning(), "");
}

TEST(TransportChoiceTest, GoesDownTheListAndSaysWhy) {
  TransportChoice choice({"verbs://", "ucx://", "shm://"});

  EXPECT_TRUE(choice.PassOver("c0", "no device"));
  EXPECT_EQ(choice.uri(), "ucx://");
  EXPECT_EQ(choice.Warning(),
            "data goes by ucx, not by verbs, the first of the list: verbs does not work: c0: no "
            "device");

  EXPECT_TRUE(choice.PassOver("m1", "no answer"));
  EXPECT_EQ(choice.uri(), "shm://");
  EXPECT_THAT(choice.Warning(), HasSubstr("c0: no device; ucx does not work: m1: no answer"));
}

TEST(TransportChoiceTest, LastOfTheListStays) {
  TransportChoice choice({"verbs://", "ucx://"});
  EXPECT_TRUE(choice.PassOver("c0", "no device"));
  const std::string warning = choice.Warning();

  EXPECT_FALSE(choice.PassOver("c0", "no route"));

  EXPECT_EQ(choice.uri(), "ucx://");
  EXPECT_EQ(choice.Warning(), warning);
  EXPECT_FALSE(TransportChoice({"shm://"}).PassOver("c0", "no memory"));
}

TEST(TransportChoiceTest, ResetTriesTheFirstAgain) {
  TransportChoice choice({"verbs://", "ucx://"});
  EXPECT_TRUE(choice.PassOver("c0", "no device"));

  choice.Reset();

  EXPECT_EQ(choice.uri(), "verbs://");
  EXPECT_EQ(choice.Warning(), "");
}

}  // namespace
}  // namespace lamina::core
