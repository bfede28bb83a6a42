// SPDX-License-Identifier: Apache-2.0
#include "coordinator/best_choices.h"

#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

struct Heard final : RequestSink {
  void OnAccepted(const std::string& id) override { request_id = id; }
  void OnOutput(ChoiceOutput output) override { outputs.push_back(std::move(output)); }
  void OnProgress(uint32_t tokens_done) override { progress = tokens_done; }
  void OnScores(std::vector<float>, std::vector<plan::TokenRank>) override {}
  void OnDone(const absl::Status& status) override { done.push_back(status); }

  std::string request_id;
  std::vector<ChoiceOutput> outputs;
  uint32_t progress = 0;
  std::vector<absl::Status> done;
};

ChoiceOutput Piece(uint32_t index, const std::string& text, float logprob, bool last) {
  ChoiceOutput output{.index = index, .text = text, .tokens = {{.logprob = logprob}}};
  if (last) {
    output.finish = plan::FinishReason::kLength;
    output.stop = text;
    output.usage = {.completion_tokens = 2, .seed = index};
  }
  return output;
}

TEST(BestChoicesTest, PassesOnThoseOfTheHighestMeanLogProbabilityBestFirst) {
  const auto heard = std::make_shared<Heard>();
  BestChoices best(heard, 2);
  best.OnAccepted("r");
  best.OnProgress(7);
  const float logprobs[] = {-4, -1, -3, -2};
  for (const bool last : {false, true}) {
    for (uint32_t i = 0; i < 4; ++i) {
      best.OnOutput(Piece(i, std::string(1, static_cast<char>('a' + i)), logprobs[i], last));
    }
  }
  EXPECT_TRUE(heard->outputs.empty()) << "who is best is not known yet";
  best.OnDone(absl::OkStatus());

  EXPECT_EQ(heard->request_id, "r");
  EXPECT_EQ(heard->progress, 7u);
  ASSERT_EQ(heard->outputs.size(), 2u);
  const char* texts[] = {"bb", "dd"};
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(heard->outputs[i].index, i);
    EXPECT_EQ(heard->outputs[i].text, texts[i]);
    EXPECT_EQ(heard->outputs[i].tokens.size(), 2u);
    EXPECT_EQ(heard->outputs[i].finish, plan::FinishReason::kLength);
    EXPECT_EQ(heard->outputs[i].stop, std::string(1, texts[i][0]));
  }
  EXPECT_EQ(heard->outputs[0].usage.seed, 1u);
  EXPECT_EQ(heard->outputs[0].usage.left_out_tokens, 4u);
  EXPECT_EQ(heard->outputs[1].usage.left_out_tokens, 0u);
  ASSERT_EQ(heard->done.size(), 1u);
}

TEST(BestChoicesTest, OfARequestThatFailedNothingIsPassedOn) {
  const auto heard = std::make_shared<Heard>();
  BestChoices best(heard, 1);
  best.OnOutput(Piece(0, "a", -1, true));
  best.OnDone(absl::UnavailableError("gone"));
  EXPECT_TRUE(heard->outputs.empty());
  ASSERT_EQ(heard->done.size(), 1u);
  EXPECT_EQ(heard->done[0].message(), "gone");
}

}  // namespace
}  // namespace lamina::coordinator
