// SPDX-License-Identifier: Apache-2.0
#include "common/foreign_text.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(ForeignTextTest, StaysOneLineOfBoundedLength) {
  EXPECT_EQ(ForeignText(""), "");
  EXPECT_EQ(ForeignText("m0 is here"), "m0 is here");
  EXPECT_EQ(ForeignText("a\nb\x1b[31m\x7f"), "a\\nb\\x1b[31m\\x7f");
  EXPECT_EQ(ForeignText("12345", 5), "12345");
  EXPECT_EQ(ForeignText("123456", 5), "12345... (6 bytes)");
  EXPECT_LT(ForeignText(std::string(50 << 20, '\n')).size(), 2100u);
}

// In a message of gRPC half a character is an error.
TEST(ForeignTextTest, CutsNoCharacter) {
  EXPECT_EQ(ForeignText("né €", 2), "n... (7 bytes)");
  EXPECT_EQ(ForeignText("né €", 3), "né... (7 bytes)");
  EXPECT_EQ(ForeignText("né €", 5), "né ... (7 bytes)");
  EXPECT_EQ(ForeignText("né €", 6), "né ... (7 bytes)");
  EXPECT_EQ(ForeignText("né €", 7), "né €");
  for (const size_t bytes_max : {1u, 2u, 3u, 4u}) {
    EXPECT_EQ(ForeignText("a😀b", bytes_max), "a... (6 bytes)") << bytes_max;
  }
  EXPECT_EQ(ForeignText("é", 1), "... (2 bytes)");
  EXPECT_EQ(ForeignText("é", 0), "... (2 bytes)");
}

TEST(ForeignTextTest, WhatIsNotUtf8IsCutAnywhere) {
  EXPECT_EQ(WholeCharacters(std::string(8, '\x80'), 5).size(), 5u);
  EXPECT_EQ(WholeCharacters(std::string(8, '\x80'), 1).size(), 1u);
  EXPECT_EQ(WholeCharacters(std::string(8, '\x80'), 0).size(), 0u);
}

}  // namespace
}  // namespace lamina
