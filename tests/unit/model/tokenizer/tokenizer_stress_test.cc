// SPDX-License-Identifier: Apache-2.0
//
// Seeded random bytes, random token streams, and inputs made to take long.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

constexpr char kFolder[] = LAMINA_SOURCE_DIR "/tests/fidelity/tokenizers/";
constexpr size_t kLongBytes = 1'000'000;
// Far above what it takes (under a second), far below what quadratic time would take (hours).
constexpr auto kLongTimeMax = std::chrono::seconds(60);

class TokenizerStressTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded = LoadTokenizer(absl::StrCat(kFolder, GetParam()));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = std::move(*loaded);
  }

  // What Decode(Encode(text)) has to give.
  std::string Expected(const std::string& text) const {
    const std::string valid = ToValidUtf8(text);
    const std::string kind = GetParam();
    return kind == "qwen2" || kind == "gpt_neox" ? NormalizeUnicode(valid, UnicodeForm::kNfc)
                                                 : valid;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

std::string RandomText(std::mt19937* random) {
  std::string out;
  const size_t parts = (*random)() % 12;
  for (size_t i = 0; i < parts; ++i) {
    switch ((*random)() % 4) {
      case 0:
        out.push_back(static_cast<char>((*random)() % 256));
        break;
      case 1:
        AppendUtf8(static_cast<uint32_t>((*random)() % 0xD800), &out);
        break;
      case 2:
        out.append((*random)() % 6, " \n\ta1."[(*random)() % 6]);
        break;
      default:
        out += "it's 42";
    }
  }
  return out;
}

TEST_P(TokenizerStressTest, DecodingGivesTheTextBack) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(&random);
    const auto tokens = tokenizer_->Encode(text, {.add_special = false, .parse_special = false});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    const auto back = tokenizer_->Decode(*tokens, false);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(*back, Expected(text)) << "string " << i;
  }
}

// What a text of so many bytes is refused by before it is tokenized.
TEST_P(TokenizerStressTest, NoTokenStandsForMoreBytesThanPromised) {
  const size_t most = tokenizer_->text_bytes_per_token_max();
  std::mt19937 random(3);
  std::vector<std::string> texts = {std::string(kLongBytes, ' '), std::string(kLongBytes, '=')};
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(RandomText(&random));
  }
  for (size_t id = 0; id < tokenizer_->vocabulary_size(); ++id) {
    texts.push_back(tokenizer_->TokenBytes(static_cast<TokenId>(id), /*skip_special=*/false));
  }
  for (const std::string& text : texts) {
    const auto tokens = tokenizer_->Encode(text, {.add_special = false});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    ASSERT_TRUE(most == 0 || tokens->size() * most >= text.size()) << text.size() << " bytes";
  }
  RecordProperty("bytes_per_token_max", static_cast<int>(most));
}

TEST(TokenizerBoundTest, ByteLevelTokenizersPromiseOne) {
  for (const char* kind : {"llama3", "smollm", "qwen2"}) {
    const auto tokenizer = LoadTokenizer(absl::StrCat(kFolder, kind));
    ASSERT_TRUE(tokenizer.ok());
    EXPECT_GT((*tokenizer)->text_bytes_per_token_max(), 0u) << kind;
    EXPECT_LT((*tokenizer)->text_bytes_per_token_max(), 4096u) << kind;
  }
}

// This one's added tokens take the white space beside them, however much there is.
TEST(TokenizerBoundTest, TokensThatTakeWhiteSpacePromiseNothing) {
  const auto tokenizer = LoadTokenizer(absl::StrCat(kFolder, "gpt2"));
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->text_bytes_per_token_max(), 0u);
}

TEST_P(TokenizerStressTest, StreamEqualsTheLossyDecodingOfAnyTokens) {
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    const bool skip_special = random() % 2 == 0;
    StreamDecoder decoder(*tokenizer_, skip_special);
    std::vector<TokenId> tokens;
    std::string streamed;
    for (size_t n = random() % 20; n > 0; --n) {
      tokens.push_back(static_cast<TokenId>(random() % tokenizer_->vocabulary_size()));
      const std::string out = decoder.Push(tokens.back());
      ASSERT_EQ(ToValidUtf8(out), out) << "half a character";
      streamed += out;
      // Nothing is held back longer than it must: three bytes are the longest proper prefix.
      const std::string so_far = *tokenizer_->Decode(tokens, skip_special);
      std::string pending = so_far;
      ASSERT_EQ(streamed, TakeWholeCharacters(&pending));
      ASSERT_LE(pending.size(), 3u);
    }
    streamed += decoder.Finish();
    ASSERT_EQ(streamed, ToValidUtf8(*tokenizer_->Decode(tokens, skip_special)));
  }
}

TEST_P(TokenizerStressTest, LongRunsTakeNoLongerThanTheirLength) {
  for (const std::string& unit :
       {std::string(" "), std::string("a"), std::string("7"), std::string("\n"), std::string(" \n"),
        std::string("\u0301\u0316"), std::string("ab "), std::string("!"), std::string("\xFF")}) {
    std::string text;
    while (text.size() < kLongBytes) {
      text += unit;
    }
    const auto start = std::chrono::steady_clock::now();
    const auto tokens = tokenizer_->Encode(text, {.add_special = false});
    const auto taken = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_LT(taken, kLongTimeMax) << "unit of " << unit.size() << " bytes";
    RecordProperty(
        absl::StrCat("ms_", static_cast<int>(static_cast<uint8_t>(unit[0])), "_", unit.size()),
        static_cast<int>(taken / std::chrono::milliseconds(1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerStressTest,
                         ::testing::Values("gpt2", "gpt_neox", "llama3", "qwen2", "smollm",
                                           "falcon", "llama2", "spm_bpe"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace lamina::model
