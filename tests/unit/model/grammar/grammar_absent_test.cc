// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/grammar/letter_tokenizer.h"

namespace lamina::model {
namespace {

TEST(GrammarTest, WithoutXGrammarItIsSaidHowToGetIt) {
  const auto compiler = MakeGrammarCompiler(LetterTokenizer({"a"}), 1);

  EXPECT_EQ(compiler.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(compiler.status().message()),
              testing::HasSubstr("deploy/get_xgrammar.sh"));
}

}  // namespace
}  // namespace lamina::model
