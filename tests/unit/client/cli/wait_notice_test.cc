// SPDX-License-Identifier: Apache-2.0
#include "client/cli/wait_notice.h"

#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

TEST(WaitLineTest, SaysHowLongAndOfAPromptHowFar) {
  EXPECT_EQ(WaitLine("thinking", 0, 0, 4.2), "thinking, 4 s");
  EXPECT_EQ(WaitLine("thinking", 300, 1200, 4),
            "thinking, 4 s, 300 of 1200 tokens of the prompt, 12 s left");
  EXPECT_EQ(WaitLine("thinking", 300, 0, 4), "thinking, 4 s, 300 of 300 tokens of the prompt")
      << "of a server that does not say how many";
}

}  // namespace
}  // namespace lamina::cli
