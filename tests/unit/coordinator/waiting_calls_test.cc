// SPDX-License-Identifier: Apache-2.0
#include "coordinator/waiting_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(WaitingCallsTest, CancelsAllThatWaitUnderAnId) {
  WaitingCalls calls(8);
  std::string cancelled;
  const auto cancel = [&cancelled](char name) { return [&cancelled, name] { cancelled += name; }; };
  calls.Enter("a", 7, cancel('x'));
  calls.Enter("a", UINT64_MAX, cancel('y'));
  calls.Enter("a", 9, cancel('z'));
  calls.Enter("b", 1, cancel('b'));
  calls.Leave("a", 9);
  calls.Leave("a", 10);  // Is not there.

  EXPECT_FALSE(calls.Cancel("c"));
  EXPECT_FALSE(calls.Cancel(""));
  EXPECT_TRUE(calls.Cancel("a"));
  EXPECT_EQ(cancelled, "xy");
  EXPECT_FALSE(calls.Cancel("a"));
  calls.Leave("a", 7);
  EXPECT_TRUE(calls.Cancel("b"));
  EXPECT_EQ(cancelled, "xyb");
}

TEST(WaitingCallsTest, BoundsThoseThatWaitForForms) {
  WaitingCalls calls(2);
  EXPECT_TRUE(calls.BeginForm().ok());
  EXPECT_TRUE(calls.BeginForm().ok());
  const absl::Status refused = calls.BeginForm();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.ToString(), HasSubstr("2 requests wait for their forms"));
  calls.EndForm();
  EXPECT_TRUE(calls.BeginForm().ok());
}

}  // namespace
}  // namespace lamina::coordinator
