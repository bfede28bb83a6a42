// SPDX-License-Identifier: Apache-2.0
#include "client/cli/generation_json.h"

#include <gtest/gtest.h>

#include "common/sampling_params.h"

namespace lamina::cli {
namespace {

TEST(CutNoteTest, SaysWhatCutTheAnswer) {
  Choice answer;
  answer.usage.completion_tokens = 8;
  answer.finish_reason = client::FinishReason::kStop;
  EXPECT_EQ(CutNote(answer, 8), "");
  answer.finish_reason = client::FinishReason::kCancelled;
  EXPECT_EQ(CutNote(answer, 8), "");
  answer.finish_reason = client::FinishReason::kLength;
  EXPECT_EQ(CutNote(answer, 8), "(cut at --max-tokens 8)");
  EXPECT_EQ(CutNote(answer, std::nullopt),
            "(cut after 8 tokens: the conversation may be no longer)");
  answer.usage.completion_tokens = kMaxTokensDefault;
  EXPECT_EQ(CutNote(answer, std::nullopt), "(cut at --max-tokens 512)");
}

}  // namespace
}  // namespace lamina::cli
