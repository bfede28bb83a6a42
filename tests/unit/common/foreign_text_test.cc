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

}  // namespace
}  // namespace lamina
