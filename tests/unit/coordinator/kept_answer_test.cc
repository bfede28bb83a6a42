// SPDX-License-Identifier: Apache-2.0
#include "coordinator/kept_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/coordinator/recording_sink.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class KeptAnswerTest : public ::testing::Test {
 protected:
  bool Connect(const std::vector<ReceivedTokens>& received) {
    return answer_.Connect(
        sink_, [] { return false; }, received);
  }

  int cancelled_ = 0;
  KeptAnswer answer_{"mine", [this] { ++cancelled_; }};
  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

TEST_F(KeptAnswerTest, ScoresAreKeptUntilTheClientComes) {
  answer_.OnScores({-1.0f, -2.0f}, {});
  answer_.OnDone(absl::OkStatus());

  EXPECT_TRUE(Connect({}));

  EXPECT_THAT(sink_->accepted, ElementsAre("mine"));
  EXPECT_THAT(sink_->logprobs, ElementsAre(-1.0f, -2.0f));
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
  EXPECT_FALSE(answer_.gone());
}

TEST_F(KeptAnswerTest, ScoresThatComeLaterArePassedOn) {
  EXPECT_TRUE(Connect({}));
  answer_.OnScores({-1.0f}, {});
  EXPECT_THAT(sink_->logprobs, ElementsAre(-1.0f));
}

// The request may wait for nodes at that time, and is not to run for nobody.
TEST_F(KeptAnswerTest, AClientWithOtherTokensIsNotWaitedForAnyMore) {
  answer_.OnOutput(OutputOf({10}));
  EXPECT_TRUE(Connect({{.count = 1, .digest = 99}}));
  ASSERT_THAT(sink_->done, SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(sink_->done[0]));
  EXPECT_EQ(cancelled_, 1);
  EXPECT_TRUE(answer_.gone());
  answer_.OnAccepted("mine");
  EXPECT_EQ(cancelled_, 2);
}

}  // namespace
}  // namespace lamina::coordinator
