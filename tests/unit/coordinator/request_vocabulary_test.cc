// SPDX-License-Identifier: Apache-2.0
//
// A request may name the tokens that the tokenizer and the model both have. Gemma 3's tokenizer has
// one more than the model, and a node takes a token that its model does not have for a fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

class RequestVocabularyTest : public ::testing::Test {
 protected:
  absl::Status Admitted(const GenerateSpec& spec, uint32_t vocabulary) const {
    RequestTable table(tokenizer_, RealClock(), /*sequence_tokens_max=*/100, vocabulary);
    return table.Admit(spec, 1, std::make_shared<DeafSink>()).status();
  }

  const test_support::IdTokenizer tokenizer_{1000};
};

TEST_F(RequestVocabularyTest, ATokenThatTheModelDoesNotHaveIsRefused) {
  for (const GenerateSpec& spec :
       {GenerateSpec{.prompt = {900}}, GenerateSpec{.prompt = {900}, .score = true},
        GenerateSpec{.prompt = {1}, .stop_tokens = {900}},
        GenerateSpec{.prompt = {1}, .sampling = {.logit_bias = {{900, 1.0f}}}},
        GenerateSpec{.prompt = {1}, .sampling = {.allowed_tokens = {900}}},
        GenerateSpec{.prompt = {1}, .generated = {{.tokens = {{.token = 900}}}}}}) {
    const absl::Status refused = Admitted(spec, 900);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("token 900 is not in the vocabulary of 900 tokens"));
    EXPECT_TRUE(Admitted(spec, 901).ok());
  }
}

TEST_F(RequestVocabularyTest, ATokenThatTheTokenizerDoesNotHaveIsRefused) {
  for (const uint32_t vocabulary : {0u, 1000u, 1024u}) {
    EXPECT_TRUE(Admitted({.prompt = {999}}, vocabulary).ok()) << vocabulary;
    EXPECT_TRUE(absl::IsInvalidArgument(Admitted({.prompt = {1000}}, vocabulary))) << vocabulary;
  }
}

}  // namespace
}  // namespace lamina::coordinator
