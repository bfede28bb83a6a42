// SPDX-License-Identifier: Apache-2.0
#include "coordinator/resumed_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "coordinator/stopped_serving.h"
#include "tests/unit/coordinator/recording_sink.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = ResumedSink::State;

absl::Status Stop() { return StoppedServing(absl::UnavailableError("m0 is gone")); }

std::vector<GeneratedChoice> Generated(const std::vector<std::vector<TokenId>>& choices) {
  std::vector<GeneratedChoice> generated;
  for (const std::vector<TokenId>& ids : choices) {
    generated.push_back({.tokens = OutputOf(ids).tokens});
  }
  return generated;
}

std::vector<TokenId> Ids(const GeneratedChoice& choice) {
  std::vector<TokenId> ids;
  for (const plan::SampledToken& token : choice.tokens) {
    ids.push_back(token.token);
  }
  return ids;
}

class ResumedSinkTest : public ::testing::Test {
 protected:
  // The engine takes it in, tells what there is, token by token, and these.
  void Begin(const std::vector<GeneratedChoice>& behind) {
    resumed_->OnAccepted("mine");
    for (uint32_t choice = 0; choice < behind.size(); ++choice) {
      for (const TokenId id : Ids(behind[choice])) {
        resumed_->OnOutput(OutputOf({id}, plan::FinishReason::kNone, choice));
      }
    }
    for (uint32_t choice = 0; choice < behind.size(); ++choice) {
      if (behind[choice].ended != plan::FinishReason::kNone) {
        resumed_->OnOutput(OutputOf({}, behind[choice].ended, choice));
      }
    }
  }
  void Use(std::vector<GeneratedChoice> generated) {
    resumed_ = std::make_unique<ResumedSink>(sink_, std::move(generated));
  }

  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  std::unique_ptr<ResumedSink> resumed_;
};

TEST_F(ResumedSinkTest, WhatWasPassedOnIsNotPassedOnTwice) {
  Use(Generated({{10}}));
  EXPECT_EQ(resumed_->state(), State::kWaits);
  Begin(resumed_->Give());
  resumed_->OnOutput(OutputOf({11, 12}));
  EXPECT_EQ(resumed_->state(), State::kGiven);
  resumed_->OnDone(Stop());
  EXPECT_EQ(resumed_->state(), State::kWaits);

  const std::vector<GeneratedChoice> behind = resumed_->Give();
  ASSERT_THAT(behind, SizeIs(1));
  EXPECT_THAT(Ids(behind[0]), ElementsAre(10, 11, 12));
  Begin(behind);
  resumed_->OnOutput(OutputOf({13}, plan::FinishReason::kLength));
  resumed_->OnDone(absl::OkStatus());

  EXPECT_THAT(sink_->tokens, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(sink_->ended, ElementsAre(0u));
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(resumed_->state(), State::kSettled);
}

TEST_F(ResumedSinkTest, AChoiceThatHasEndedIsToldOnce) {
  Use(Generated({{10}, {20}}));
  Begin(resumed_->Give());
  resumed_->OnOutput(OutputOf({21}, plan::FinishReason::kStop, 1));
  resumed_->OnDone(Stop());

  const std::vector<GeneratedChoice> behind = resumed_->Give();
  ASSERT_THAT(behind, SizeIs(2));
  EXPECT_EQ(behind[0].ended, plan::FinishReason::kNone);
  EXPECT_EQ(behind[1].ended, plan::FinishReason::kStop);
  Begin(behind);
  resumed_->OnOutput(OutputOf({11}, plan::FinishReason::kLength));

  EXPECT_THAT(sink_->tokens, ElementsAre(10, 20, 21, 11));
  EXPECT_THAT(sink_->ended, ElementsAre(1u, 0u));
}

TEST_F(ResumedSinkTest, ItEndsWithTheLastOfSoManyStopsWithoutAToken) {
  Use(Generated({{10}}));
  for (size_t stops = 1; stops < ResumedSink::kLossesMax; ++stops) {
    Begin(resumed_->Give());
    resumed_->OnDone(Stop());
  }
  Begin(resumed_->Give());
  resumed_->OnOutput(OutputOf({11}));  // They are counted anew.
  resumed_->OnDone(Stop());
  for (size_t stops = 2; stops < ResumedSink::kLossesMax; ++stops) {
    Begin(resumed_->Give());
    resumed_->OnDone(Stop());
  }
  EXPECT_THAT(sink_->done, IsEmpty());
  Begin(resumed_->Give());
  resumed_->OnDone(Stop());

  ASSERT_THAT(sink_->done, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(sink_->done[0])) << sink_->done[0];
  EXPECT_EQ(resumed_->state(), State::kSettled);
}

TEST_F(ResumedSinkTest, RefusalsDoNotCount) {
  Use(Generated({{10}}));
  for (size_t i = 0; i < 2 * ResumedSink::kLossesMax; ++i) {
    resumed_->Give();
    resumed_->OnDone(Stop());
  }
  EXPECT_THAT(sink_->done, IsEmpty());
  EXPECT_EQ(resumed_->state(), State::kWaits);
}

TEST_F(ResumedSinkTest, OneThatIsSettledDoesNotWait) {
  Use(Generated({{}}));
  Begin(resumed_->Give());
  EXPECT_EQ(resumed_->Settle(), State::kGiven);
  resumed_->OnDone(Stop());
  EXPECT_THAT(sink_->done, SizeIs(1));
  EXPECT_EQ(resumed_->state(), State::kSettled);
}

TEST_F(ResumedSinkTest, OtherErrorsArePassedOn) {
  Use(Generated({{}}));
  Begin(resumed_->Give());
  resumed_->OnDone(absl::UnavailableError("the request was running in 3 losses of nodes"));
  EXPECT_THAT(sink_->done, SizeIs(1));
}

TEST_F(ResumedSinkTest, OneThatBeginsAnewIsGivenBehindNothing) {
  Use({});
  EXPECT_THAT(resumed_->Give(), IsEmpty());
  resumed_->OnAccepted("mine");
  resumed_->OnDone(Stop());
  EXPECT_THAT(resumed_->Give(), IsEmpty());
  resumed_->OnAccepted("mine");
  resumed_->OnScores({-1.0f}, {});
  resumed_->OnOutput(OutputOf({10, 11}, plan::FinishReason::kLength));
  resumed_->OnDone(absl::OkStatus());

  EXPECT_THAT(sink_->logprobs, ElementsAre(-1.0f));
  EXPECT_THAT(sink_->tokens, ElementsAre(10, 11));
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
}

}  // namespace
}  // namespace lamina::coordinator
