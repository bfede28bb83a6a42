// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

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

}  // namespace
}  // namespace lamina::model
