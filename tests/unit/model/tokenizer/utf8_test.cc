// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "model/tokenizer/byte_alphabet.h"

namespace lamina::model {
namespace {

TEST(Utf8Test, ReadsWhatItWrites) {
  for (uint32_t codepoint = 0; codepoint < 0x110000; ++codepoint) {
    if (codepoint >= 0xD800 && codepoint < 0xE000) {
      continue;
    }
    std::string text;
    AppendUtf8(codepoint, &text);
    const Utf8Step step = ReadUtf8(text);
    ASSERT_EQ(step.state, Utf8State::kCharacter) << codepoint;
    ASSERT_EQ(step.codepoint, codepoint);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Utf8Test, ReplacesEachMaximalInvalidPartByOneReplacementCharacter) {
  EXPECT_EQ(ToValidUtf8("a\xFF"
                        "b"),
            "a\uFFFDb");
  EXPECT_EQ(ToValidUtf8("\xE2\x82"), "\uFFFD");  // Cut off.
  EXPECT_EQ(ToValidUtf8("\xE2\x82"
                        "x"),
            "\uFFFDx");                                          // Two bytes, one part.
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // A surrogate.
  EXPECT_EQ(ToValidUtf8("\xC0\x80"), "\uFFFD\uFFFD");            // Overlong.
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD\U0001F600");
}

TEST(Utf8Test, TakesAllButAnIncompleteEnd) {
  std::string pending = "a\xF0\x9F\x98";

  EXPECT_EQ(TakeWholeCharacters(&pending), "a");
  EXPECT_EQ(pending, "\xF0\x9F\x98");

  pending += '\x80';
  EXPECT_EQ(TakeWholeCharacters(&pending), "\U0001F600");
  EXPECT_EQ(pending, "");
}

TEST(ByteAlphabetTest, SpellsAllBytesAndReadsThemBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  std::string text;
  AppendAsByteCharacters(bytes, &text);
  std::string back;

  EXPECT_TRUE(FromByteCharacters(text, &back));
  EXPECT_EQ(back, bytes);
  EXPECT_FALSE(FromByteCharacters("a b", &back)) << "a space is spelled \u0120";
}

}  // namespace
}  // namespace lamina::model
