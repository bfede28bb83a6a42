// SPDX-License-Identifier: Apache-2.0
//
// What a score's answer may take, by the request alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/request_table.h"
#include "tests/support/id_tokenizer.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

struct DeafSink final : RequestSink {
  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput) override {}
  void OnScores(std::vector<float>, std::vector<plan::TokenRank>) override {}
  void OnProgress(uint32_t) override {}
  void OnDone(const absl::Status&) override {}
};

TEST(ScoreBytesTest, AScoreWhoseAnswerCannotBeSentIsRefused) {
  const test_support::IdTokenizer tokenizer(100);
  RequestTable table(tokenizer, RealClock(), /*sequence_tokens_max=*/1U << 20);
  const auto sink = std::make_shared<DeafSink>();
  GenerateSpec spec{.sampling = {.logprobs = 20}, .score = true};
  spec.prompt.assign(159'783, 1);
  EXPECT_TRUE(table.Admit(spec, 1, sink).ok());

  spec.prompt.push_back(1);
  const absl::Status refused = table.Admit(spec, 2, sink).status();

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("159784 tokens with 20 alternatives each (logprobs) would take some "
                        "67109280 bytes; at most 67108864"));
  spec.sampling.logprobs = -1;
  EXPECT_TRUE(table.Admit(spec, 3, sink).ok());
}

}  // namespace
}  // namespace lamina::coordinator
