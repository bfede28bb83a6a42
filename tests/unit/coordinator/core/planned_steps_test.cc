// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/planned_steps.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::HasSubstr;

class PlannedStepsTest : public PartsTest {
 protected:
  PlannedStepsTest() {
    MakeNodes({100});
    Run(1, 10);
    Run(2, 10);
    steps_.Reset(2);
    steps_.Add(0, {.step = 1,
                   .tokens = {{.sequence = 9, .position = 10, .seat = life_.Find(1)->seat},
                              {.sequence = 2, .position = 11, .seat = life_.Find(2)->seat},
                              {.sequence = 1, .position = 10, .seat = life_.Find(1)->seat}}});
  }
  std::string Check(std::vector<plan::SampledToken> tokens, uint64_t step = 1) {
    return std::string(
        steps_.Check({.lane = 0, .step = step, .tokens = std::move(tokens)}, life_).message());
  }

  PlannedSteps steps_;
};

TEST_F(PlannedStepsTest, AResultWithoutThoseThatHaveEndedIsTaken) {
  EXPECT_EQ(Check({{.sequence = 1, .position = 10}, {.sequence = 2, .position = 11}}), "");
  EXPECT_EQ(steps_.TakeOldest(0).tokens.size(), 3u);
  EXPECT_EQ(steps_.done(0), 1u);
  EXPECT_TRUE(steps_.empty());
}

TEST_F(PlannedStepsTest, TheOrderOfTheTokensDoesNotMatter) {
  EXPECT_EQ(Check({{.sequence = 2, .position = 11}, {.sequence = 1, .position = 10}}), "");
  EXPECT_THAT(Check({{.sequence = 2, .position = 11}}), HasSubstr("no token for sequence 1 at 10"));
  EXPECT_THAT(Check({{.sequence = 2, .position = 11}, {.sequence = 1, .position = 12}}),
              HasSubstr("sequence 1 samples position 10, not 12"));
  EXPECT_THAT(Check({{.sequence = 2, .position = 11},
                     {.sequence = 1, .position = 10},
                     {.sequence = 1, .position = 10}}),
              HasSubstr("or two tokens"));
}

TEST_F(PlannedStepsTest, ATokenThatWasNotPlannedIsRefused) {
  EXPECT_THAT(Check({{.sequence = 7, .position = 10}}), HasSubstr("sequence 7 has no row there"));
}

TEST_F(PlannedStepsTest, TwoTokensOfARowAreRefused) {
  EXPECT_THAT(Check({{.sequence = 1, .position = 10}, {.sequence = 1, .position = 10}}),
              HasSubstr("or two tokens"));
}

TEST_F(PlannedStepsTest, ATokenAtAnotherPositionIsRefused) {
  EXPECT_THAT(Check({{.sequence = 1, .position = 12}}),
              HasSubstr("sequence 1 samples position 10, not 12"));
}

TEST_F(PlannedStepsTest, AMissingTokenIsRefused) {
  EXPECT_THAT(Check({{.sequence = 1, .position = 10}}), HasSubstr("no token for sequence 2 at 11"));
}

TEST_F(PlannedStepsTest, AStepOutOfOrderIsRefused) {
  EXPECT_THAT(Check({}, 2), HasSubstr("step 1 is next, 1 are planned"));
  EXPECT_THAT(std::string(steps_.Check({.lane = 2, .step = 1}, life_).message()),
              HasSubstr("there is no such lane"));
}

TEST_F(PlannedStepsTest, TheAuditFindsTooManyAhead) {
  steps_.Add(0, {.step = 2});
  EXPECT_TRUE(steps_.Audit(2).ok());
  EXPECT_FALSE(steps_.Audit(1).ok());
}

}  // namespace
}  // namespace lamina::core
