// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

TEST(NormalizerTest, ComposesAndDecomposes) {
  EXPECT_EQ(NormalizeUnicode("e\u0301", UnicodeForm::kNfc), "\u00e9");
  EXPECT_EQ(NormalizeUnicode("\u00e9", UnicodeForm::kNfd), "e\u0301");
  EXPECT_EQ(NormalizeUnicode("\uFB01", UnicodeForm::kNfkc), "fi");
  EXPECT_EQ(NormalizeUnicode("\uFB01", UnicodeForm::kNfc), "\uFB01");
  EXPECT_EQ(NormalizeUnicode("\u1100\u1161\u11a8", UnicodeForm::kNfc), "\uac01");
  EXPECT_EQ(NormalizeUnicode("\u00bd", UnicodeForm::kNfkd), "1\u20442");
}

TEST(NormalizerTest, OrdersMarksByClassBeforeComposing) {
  EXPECT_EQ(NormalizeUnicode("q\u0307\u0323", UnicodeForm::kNfc), "q\u0323\u0307");
}

TEST(NormalizerTest, TakesALongRunOfMarksWithoutQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) {
    text += "\u0301\u0316";
  }

  const auto start = std::chrono::steady_clock::now();
  const std::string normalized = NormalizeUnicode(text, UnicodeForm::kNfc);

  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(normalized.substr(0, 2), "\u00e1") << "the first acute joins the letter";
}

TEST(NormalizerTest, AppliesStepsInOrder) {
  std::vector<NormalizerStep> steps;
  steps.emplace_back(PrependStep{"_"});
  steps.emplace_back(ReplaceStep{std::move(Regex::Compile(" ").value()), "_"});
  const Normalizer normalizer(std::move(steps));

  EXPECT_EQ(normalizer.Apply("a b").value(), "_a_b");
  EXPECT_EQ(normalizer.Apply("").value(), "") << "nothing is put before nothing";
}

// Each code point of a composite may come from one of four bytes; see kUnicodeShrinkMax.
TEST(NormalizerTest, NoFormMakesOneByteOfMoreThanItSays) {
  for (uint32_t codepoint = 1; codepoint < 0x110000; ++codepoint) {
    if (codepoint >= 0xD800 && codepoint < 0xE000) {
      continue;
    }
    std::string character;
    AppendUtf8(codepoint, &character);
    const std::string parts = NormalizeUnicode(character, UnicodeForm::kNfd);
    const auto count = std::count_if(parts.begin(), parts.end(), [](char c) {
      return (static_cast<uint8_t>(c) & 0xC0) != 0x80;
    });
    if (NormalizeUnicode(parts, UnicodeForm::kNfc) == character) {
      ASSERT_LE(static_cast<size_t>(count) * 4, kUnicodeShrinkMax * character.size()) << codepoint;
    }
  }
}

TEST(NormalizerTest, TellsHowMuchItMayShrink) {
  const auto shrink = [](auto... step) {
    std::vector<NormalizerStep> steps;
    (steps.emplace_back(std::move(step)), ...);
    return Normalizer(std::move(steps)).shrink_max();
  };
  const auto replace = [](size_t literal_bytes, const char* by) {
    return ReplaceStep{std::move(Regex::Compile(" ").value()), by, literal_bytes};
  };
  EXPECT_EQ(shrink(), 1u);
  EXPECT_EQ(shrink(PrependStep{"_"}, replace(1, "\u2581")), 1u);
  EXPECT_EQ(shrink(UnicodeForm::kNfc), kUnicodeShrinkMax);
  EXPECT_EQ(shrink(replace(5, "ab"), UnicodeForm::kNfkc), 3 * kUnicodeShrinkMax);
  EXPECT_EQ(shrink(replace(0, "_")), 0u) << "an expression";
  EXPECT_EQ(shrink(replace(1, "")), 0u) << "drops its matches";
}

}  // namespace
}  // namespace lamina::model
