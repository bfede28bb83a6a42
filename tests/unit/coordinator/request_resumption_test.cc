// SPDX-License-Identifier: Apache-2.0
//
// Requests that go on where a coordinator before left them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/request_table.h"
#include "tests/unit/coordinator/request_table_fixture.h"

namespace lamina::coordinator {
namespace {

using plan::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using RequestResumptionTest = RequestTableTest;

// Texts and stop strings go on across the tokens that it comes with.
TEST_F(RequestResumptionTest, ARequestGoesOnBehindTokensOfTheCoordinatorBefore) {
  const auto sequences =
      Admit({.prompt = {1},
             .max_tokens = 9,
             .stop = {" 5 6"},
             .generated = {{.tokens = {{.token = 3, .logprob = -1.0f}, {.token = 5}}}}});
  ASSERT_EQ(sequences.size(), 1u);
  EXPECT_THAT(sequences[0].generated, ElementsAre(3, 5));
  EXPECT_EQ(sequences[0].tokens_max, 10u);
  ASSERT_EQ(sink_->outputs.size(), 2u);
  EXPECT_EQ(sink_->outputs[0].tokens[0].logprob, -1.0f);
  EXPECT_EQ(sink_->text, " 3");

  EXPECT_THAT(Token(sequences[0].id, 6), ElementsAre(sequences[0].id));

  EXPECT_EQ(sink_->text, " 3");
  EXPECT_EQ(sink_->outputs.back().finish, FinishReason::kStop);
  EXPECT_EQ(sink_->outputs.back().usage.completion_tokens, 3u);
  EXPECT_EQ(table_.tokens(), 1u);  // This coordinator has made one.
}

TEST_F(RequestResumptionTest, TimesOfOneThatGoesOnAreThoseOfItsNewTokens) {
  const auto sequences =
      Admit({.prompt = {1}, .generated = {{.tokens = {{.token = 3}, {.token = 5}}}}});
  clock_.now += Seconds(8);
  Token(sequences[0].id, 6);
  clock_.now += Millis(50);
  Token(sequences[0].id, 7, FinishReason::kLength);
  EXPECT_NEAR(sink_->outputs.back().usage.ttft_ms, 8000, 0.01);
  EXPECT_NEAR(sink_->outputs.back().usage.tpot_ms, 50, 0.01);
  EXPECT_NEAR(table_.metrics().inter_token_latency.Take().sum, 0.05, 1e-6);
}

TEST_F(RequestResumptionTest, ARequestThatComesWithAllOfItsTokensEndsAtOnce) {
  EXPECT_THAT(Admit({.prompt = {1},
                     .max_tokens = 2,
                     .generated = {{.tokens = {{.token = 3}, {.token = 4}}}}}),
              IsEmpty());
  ASSERT_EQ(sink_->done.size(), 1u);
  EXPECT_TRUE(sink_->done[0].ok());
  EXPECT_EQ(sink_->text, " 3 4");
  EXPECT_EQ(sink_->outputs.back().finish, FinishReason::kLength);
  EXPECT_TRUE(table_.empty());

  EXPECT_THAT(Admit({.prompt = {1},
                     .generated = {{.tokens = {{.token = 3}}, .ended = FinishReason::kStop}}}),
              IsEmpty());
  EXPECT_EQ(sink_->outputs.back().finish, FinishReason::kStop);
}

TEST_F(RequestResumptionTest, ChoicesGoOnBehindTokensOfTheirOwn) {
  std::vector<GeneratedChoice> generated(3);
  generated[0] = {.tokens = {{.token = 3}, {.token = 4}}, .ended = FinishReason::kStop};
  generated[1].tokens = {{.token = 5}};

  const auto sequences =
      Admit({.prompt = {1}, .sampling = {.seed = 40}, .choices = 3, .generated = generated});

  ASSERT_EQ(sequences.size(), 2u) << "the first one has ended";
  EXPECT_THAT(sequences[0].generated, ElementsAre(5));
  EXPECT_THAT(sequences[1].generated, IsEmpty());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(sequences[i].fork_of, 0u) << "each has a prompt of its own";
    EXPECT_EQ(sequences[i].sampling.seed, 41 + i);
  }
  ASSERT_EQ(sink_->outputs.size(), 4u);
  EXPECT_EQ(sink_->outputs[2].index, 1u);
  EXPECT_EQ(sink_->outputs[3].index, 0u);
  EXPECT_EQ(sink_->outputs[3].finish, FinishReason::kStop);
  EXPECT_TRUE(sink_->done.empty());

  Token(sequences[0].id, 6, FinishReason::kLength);
  Token(sequences[1].id, 7, FinishReason::kLength);

  EXPECT_EQ(sink_->outputs[4].index, 1u);
  EXPECT_EQ(sink_->outputs[4].usage.completion_tokens, 2u);
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
}

TEST_F(RequestResumptionTest, ChoicesThatHaveNoTokensShareTheirPrompt) {
  const auto sequences =
      Admit({.prompt = {1}, .choices = 2, .generated = std::vector<GeneratedChoice>(2)});

  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[1].fork_of, sequences[0].id);
}

TEST_F(RequestResumptionTest, TokensOfOtherThanItsChoicesAreRefused) {
  const auto refusal = table_.Admit(
      {.prompt = {1}, .choices = 2, .generated = std::vector<GeneratedChoice>(1)}, 9, sink_);
  EXPECT_EQ(refusal.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal.status().message()), HasSubstr("2 choices"));
}

}  // namespace
}  // namespace lamina::coordinator
