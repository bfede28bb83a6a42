// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lamina::model {
namespace {

using ::testing::ElementsAre;

// Special entries of these names, with ids from 0 on.
Vocabulary Special(const std::vector<std::string>& names) {
  Vocabulary vocabulary(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(vocabulary.Put(static_cast<TokenId>(i), {.name = names[i], .special = true}).ok());
  }
  return vocabulary;
}

TEST(FindEndTokensTest, TakesWhatTheFilesSayAndNamesThatEndATurn) {
  const Vocabulary vocabulary = Special({"a", "<|im_end|>", "</s>", "<|end|>"});

  EXPECT_THAT(FindEndTokens(vocabulary, 2, {0, 99}), ElementsAre(2, 0, 1, 3));
}

TEST(FindEndTokensTest, ANameThatIsNotSpecialEndsNothing) {
  Vocabulary vocabulary = Special({"</s>", "a"});
  ASSERT_TRUE(vocabulary.Put(1, {.name = "<|end|>"}).ok());

  EXPECT_THAT(FindEndTokens(vocabulary, 0, {}), ElementsAre(0));
}

// gpt-oss thinks, ends that message, and then answers.
TEST(FindEndTokensTest, OfHarmonyTheEndOfAMessageIsNotTheEnd) {
  const Vocabulary vocabulary = Special({"<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"});

  EXPECT_THAT(FindEndTokens(vocabulary, 1, {}), ElementsAre(1, 0, 3));
  EXPECT_THAT(FindEndTokens(vocabulary, 0, {}), ElementsAre(0, 1, 3));
}

}  // namespace
}  // namespace lamina::model
