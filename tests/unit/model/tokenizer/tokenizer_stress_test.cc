// SPDX-License-Identifier: Apache-2.0
//
// Seeded random bytes, random token streams, and inputs made to take long.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer_catalog.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

constexpr char kFolder[] = "tests/fidelity/tokenizers/";
constexpr size_t kLongBytes = 1'000'000;
// Far above what it takes (under a second), far below what quadratic time would take (hours).
constexpr auto kLongTimeMax = std::chrono::seconds(60);

class TokenizerStressTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded = LoadTokenizer(test_support::SourcePath(absl::StrCat(kFolder, GetParam())));
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

// Bytes that no token spells in the vocabulary of SmolLM2: some never occur in UTF-8.
constexpr absl::string_view kWithoutToken =
    "\x04\x06\x13\x14\x16\x1D\xC0\xC1\xF1\xF2\xF5\xF6\xF7\xF8\xF9\xFA\xFB\xFC\xFD\xFE\xFF";

std::string Repeated(absl::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    absl::StrAppend(&text, unit);
  }
  return text;
}

// Random ones, each entry of the vocabulary, and long runs of what becomes few tokens, or none.
std::vector<std::string> TextsToBound(const Tokenizer& tokenizer) {
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (const absl::string_view unit : {" ", "=", "\x04", "a\x04", " the\x06\x1D", "\U00040000",
                                       "\U00080000\xFF", "\xF1\x80\x80", "\xFF"}) {
    texts.push_back(Repeated(unit, kLongBytes / 10));
  }
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(RandomText(&random));
    for (size_t holes = random() % 4; holes > 0; --holes) {
      texts.back().insert(random() % (texts.back().size() + 1), 1 + random() % 3,
                          kWithoutToken[random() % kWithoutToken.size()]);
    }
  }
  for (size_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    texts.push_back(tokenizer.TokenBytes(static_cast<TokenId>(id), /*skip_special=*/false));
  }
  return texts;
}

void ExpectNoFewerTokensThanPromised(const Tokenizer& tokenizer) {
  for (const std::string& text : TextsToBound(tokenizer)) {
    for (const bool parse_special : {false, true}) {
      const auto tokens =
          tokenizer.Encode(text, {.add_special = false, .parse_special = parse_special});
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      ASSERT_GE(tokens->size(), tokenizer.tokens_min(text)) << text.size() << " bytes";
    }
  }
}

// What a text is refused by before it is tokenized.
TEST_P(TokenizerStressTest, NoTextHasFewerTokensThanPromised) {
  ExpectNoFewerTokensThanPromised(*tokenizer_);
  RecordProperty("tokens_min_of_a_million_bytes",
                 static_cast<int>(tokenizer_->tokens_min(std::string(kLongBytes, 'a'))));
}

TEST(TokenizerBoundTest, ByteLevelTokenizersPromiseSome) {
  for (const char* kind : {"llama3", "smollm", "qwen2"}) {
    const auto tokenizer = LoadTokenizer(test_support::SourcePath(absl::StrCat(kFolder, kind)));
    ASSERT_TRUE(tokenizer.ok());
    EXPECT_GT((*tokenizer)->tokens_min(std::string(kLongBytes, 'a')), kLongBytes / 4096) << kind;
    EXPECT_GT((*tokenizer)->tokens_min(std::string(kLongBytes, '\x04')), 0u) << kind;
  }
}

// This one's added tokens take the white space around them, however much there is.
TEST(TokenizerBoundTest, TokensThatTakeWhiteSpacePromiseNothing) {
  const auto tokenizer = LoadTokenizer(test_support::SourcePath(absl::StrCat(kFolder, "gpt2")));
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->tokens_min(std::string(kLongBytes, 'a')), 0u);
}

// A byte-level tokenizer of letters, spaces and what U+FFFD needs, but without kWithoutToken.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizerWithHoles(
    BpeOptions options, Normalizer normalizer = {}, absl::string_view holes = kWithoutToken) {
  TokenizerSettings settings{.vocabulary = Vocabulary(300)};
  const auto add = [&](const std::string& name) {
    const auto id = static_cast<TokenId>(options.vocabulary.size());
    options.vocabulary.emplace(name, id);
    VocabularyEntry entry{.name = name};
    EXPECT_TRUE(FromByteCharacters(name, &entry.bytes));
    EXPECT_TRUE(settings.vocabulary.Put(id, std::move(entry)).ok());
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    AppendAsByteCharacters(std::string(1, static_cast<char>(byte)), &spelling);
    if (!absl::StrContains(holes, static_cast<char>(byte))) {
      add(spelling);
    }
  }
  for (const auto& [left, right] : options.merges) {
    add(left + right);
  }
  LAMINA_ASSIGN_OR_RETURN(NamedPreTokenizer pre, MakeNamedPreTokenizer("smollm"));
  LAMINA_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(std::move(options)));
  return BpeTokenizer::Create({.normalizer = std::move(normalizer),
                               .pre_tokenizer = std::move(pre.pre_tokenizer),
                               .model = std::move(model)},
                              std::move(settings));
}

const std::vector<std::pair<std::string, std::string>> kSomeMerges = {
    {"t", "h"}, {"th", "e"}, {"\u0120", "the"}, {"a", "a"}, {"aa", "aa"}, {"=", "="}, {"==", "=="}};

// Only those bytes count that cannot vanish.
TEST(TokenizerBoundTest, BytesWithoutTokenDoNotCount) {
  for (const bool fuse : {false, true}) {
    const auto tokenizer = MakeTokenizerWithHoles(
        {.merges = kSomeMerges, .unknown = fuse ? 0 : -1, .fuse_unknown = fuse});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ExpectNoFewerTokensThanPromised(**tokenizer);
    EXPECT_EQ((*tokenizer)->tokens_min(std::string(kLongBytes, 'a')), kLongBytes / 4);
    EXPECT_EQ((*tokenizer)->tokens_min(std::string(kLongBytes, '\x04') + "abcd"), 1u);
  }
}

TEST(TokenizerBoundTest, EachUnknownByteCountsWhereItHasAToken) {
  const auto tokenizer = MakeTokenizerWithHoles({.merges = kSomeMerges, .unknown = 0});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectNoFewerTokensThanPromised(**tokenizer);
  EXPECT_EQ((*tokenizer)->tokens_min(std::string(kLongBytes, '\x04')), kLongBytes / 4);
}

// A normalizer may make bytes without token of those that have one, and so does what stands for
// invalid ones.
TEST(TokenizerBoundTest, NothingIsPromisedWhereBytesMayBecomeOnesWithoutToken) {
  std::vector<NormalizerStep> steps;
  steps.emplace_back(UnicodeForm::kNfc);
  const auto normalized =
      MakeTokenizerWithHoles({.merges = kSomeMerges}, Normalizer(std::move(steps)));
  ASSERT_TRUE(normalized.ok()) << normalized.status();
  EXPECT_EQ((*normalized)->tokens_min(std::string(kLongBytes, 'a')), 0u);
  const auto replaced = MakeTokenizerWithHoles({.merges = kSomeMerges}, {}, "\xBF");
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ((*replaced)->tokens_min(std::string(kLongBytes, 'a')), 0u);
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
