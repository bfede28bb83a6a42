// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/vocabulary_tokenizer.h"

namespace lamina::model {
namespace {

// Tokens 0 to 255 are bytes, 256 is special, 257 is a space mark's text.
class ByteTokenizer final : public VocabularyTokenizer {
 public:
  explicit ByteTokenizer(bool strip_first_space) : VocabularyTokenizer(Make(strip_first_space)) {}

 private:
  static TokenizerSettings Make(bool strip_first_space) {
    TokenizerSettings settings;
    settings.strip_first_space = strip_first_space;
    for (TokenId id = 0; id < 256; ++id) {
      const std::string byte(1, static_cast<char>(id));
      EXPECT_TRUE(settings.vocabulary.Put(id, {"byte" + std::to_string(id), byte, false}).ok());
    }
    EXPECT_TRUE(settings.vocabulary.Put(256, {"<s>", "<s>", true}).ok());
    EXPECT_TRUE(settings.vocabulary.Put(257, {"_the", " the", false}).ok());
    return settings;
  }

  absl::Status EncodeText(absl::string_view text, bool /*parse_special*/,
                          std::vector<TokenId>* out) const override {
    for (const char c : text) {
      out->push_back(static_cast<uint8_t>(c));
    }
    return absl::OkStatus();
  }
};

TEST(StreamDecoderTest, HoldsBackOnlyAProperPrefixOfACharacter) {
  const ByteTokenizer tokenizer(false);
  StreamDecoder decoder(tokenizer, true);

  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x80), "\U0001F600");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoderTest, ReplacesWhatCanNeverBecomeACharacterAtOnce) {
  const ByteTokenizer tokenizer(false);
  StreamDecoder decoder(tokenizer, true);

  EXPECT_EQ(decoder.Push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push('x'), "\uFFFDx");
  EXPECT_EQ(decoder.Push(0xE0), "");
  EXPECT_EQ(decoder.Push(0x80), "\uFFFD\uFFFD") << "overlong: neither byte can be used";
}

TEST(StreamDecoderTest, FinishGivesTheHeldBackPartOnce) {
  const ByteTokenizer tokenizer(false);
  StreamDecoder decoder(tokenizer, true);

  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoderTest, DropsTheFirstSpaceWhereTheTokenizerDoes) {
  const ByteTokenizer tokenizer(true);
  StreamDecoder decoder(tokenizer, true);

  EXPECT_EQ(decoder.Push(256), "") << "skipped";
  EXPECT_EQ(decoder.Push(257), "the");
  EXPECT_EQ(decoder.Push(257), " the");
}

TEST(StreamDecoderTest, KeepsTheSpaceAfterAShownSpecialToken) {
  const ByteTokenizer tokenizer(true);
  StreamDecoder decoder(tokenizer, false);

  EXPECT_EQ(decoder.Push(256), "<s>");
  EXPECT_EQ(decoder.Push(257), " the");
}

TEST(StreamDecoderTest, KeepsTheSpaceBehindText) {
  const ByteTokenizer tokenizer(true);
  const std::vector<TokenId> special = {256};
  const std::vector<TokenId> text = {256, 257};
  StreamDecoder first(tokenizer, true, special);
  StreamDecoder behind(tokenizer, true, text);

  EXPECT_EQ(first.Push(257), "the") << "nothing of the prompt is to be seen";
  EXPECT_EQ(behind.Push(257), " the");
}

TEST(StreamDecoderTest, AnUnknownIdAddsNothing) {
  const ByteTokenizer tokenizer(false);
  StreamDecoder decoder(tokenizer, true);

  EXPECT_EQ(decoder.Push(-1), "");
  EXPECT_EQ(decoder.Push(100000), "");
}

TEST(VocabularyTokenizerTest, DecodeRefusesIdsOutsideTheVocabulary) {
  const ByteTokenizer tokenizer(false);

  EXPECT_EQ(tokenizer.Decode({258}, true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer.Decode({-1}, true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer.TokenName(300), "");
}

TEST(VocabularyTokenizerTest, EncodeRefusesATextBeyondTheLimit) {
  const ByteTokenizer tokenizer(false);

  // Only the length is looked at.
  const absl::string_view text("x", kTextBytesMax + 1);
  EXPECT_EQ(tokenizer.Encode(text, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::model
