// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/grammar/grammar_budget.h"

namespace lamina::model {
namespace {

using ::testing::HasSubstr;

void Work(Nanos time) {
  const Nanos began = ThreadTime();
  while (ThreadTime() - began < time) {
  }
}

// An output of so many bytes.
class Walk final : public GrammarWalk {
 public:
  explicit Walk(int bytes) : bytes_(bytes) {}

  bool GoOn() override {
    Work(time_of_byte);
    return ++gone < bytes_;
  }
  void FindTokens() override {
    ++searches;
    Work(gone == slow_at ? GrammarBudget::kCallMax : 0);
  }

  int slow_at = -1;
  Nanos time_of_byte = 0;
  int gone = 0;
  int searches = 0;

 private:
  const int bytes_;
};

TEST(GrammarSpeedTest, WhatIsQuickIsFollowedToItsEndOrTheBound) {
  Walk short_one(100);
  EXPECT_TRUE(CheckGrammarSpeed(short_one).ok());
  EXPECT_EQ(short_one.gone, 100);
  EXPECT_EQ(short_one.searches, 2) << "before the first byte, and behind the 64th";
  Walk long_one(5000);
  EXPECT_TRUE(CheckGrammarSpeed(long_one).ok());
  EXPECT_EQ(long_one.gone, 1024);
  EXPECT_EQ(long_one.searches, 16);
}

// Outputs would be cut there, though each byte is quick.
TEST(GrammarSpeedTest, ASlowSearchForTokensIsRefused) {
  for (const int at : {0, 128}) {
    Walk walk(5000);
    walk.slow_at = at;
    const absl::Status status = CheckGrammarSpeed(walk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("follow " + std::to_string(at) +
                                                         " bytes of an output took more than 100"));
  }
}

TEST(GrammarSpeedTest, SlowBytesAreRefused) {
  Walk walk(5000);
  walk.time_of_byte = Millis(60);
  const absl::Status status = CheckGrammarSpeed(walk);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("follow 9 bytes of an output"));
}

}  // namespace
}  // namespace lamina::model
