// SPDX-License-Identifier: Apache-2.0
#include "common/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace lamina {
namespace {

TEST(JsonDepthTest, CountsArraysAndObjectsWithinEachOther) {
  EXPECT_EQ(JsonDepth(""), 0u);
  EXPECT_EQ(JsonDepth("1"), 0u);
  EXPECT_EQ(JsonDepth("[]"), 1u);
  EXPECT_EQ(JsonDepth(R"({"a": [1, {"b": 2}], "c": [[]]})"), 3u);
  EXPECT_EQ(JsonDepth("[[], [], []]"), 2u);
}

TEST(JsonDepthTest, LooksOverBracketsInStrings) {
  EXPECT_EQ(JsonDepth(R"(["[[[{{{"])"), 1u);
  EXPECT_EQ(JsonDepth(R"(["\"[[[", "\\", []])"), 2u);
}

TEST(JsonDepthTest, MeasuresTextsThatEndEarlyOrCloseTooMuch) {
  EXPECT_EQ(JsonDepth(std::string(100'000, '[')), 100'000u);
  EXPECT_EQ(JsonDepth("]]]}[["), 2u);
  EXPECT_EQ(JsonDepth("[\"\\"), 1u);
}

}  // namespace
}  // namespace lamina
