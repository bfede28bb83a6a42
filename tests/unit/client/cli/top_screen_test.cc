// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_screen.h"

#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

TEST(FitScreenTest, LeavesWhatFitsAsItIs) {
  EXPECT_EQ(FitScreen("one\ntwo\n", {.columns = 3, .rows = 3}), "one\ntwo\n");
}

TEST(FitScreenTest, CutsLinesAtTheWindowWithoutCountingColours) {
  EXPECT_EQ(FitScreen("\033[32mready\033[0m and more\n", {.columns = 8, .rows = 9}),
            "\033[32mready\033[0m an\n");
  EXPECT_EQ(FitScreen("\033[1mbold text\033[0m\n", {.columns = 4, .rows = 9}),
            "\033[1mbold\033[0m\n")
      << "no colour runs on into the next line";
  EXPECT_EQ(FitScreen("\u00fcber alles\n", {.columns = 4, .rows = 9}), "\u00fcber\n");
}

TEST(FitScreenTest, SaysHowManyLinesALowWindowLeavesOut) {
  EXPECT_EQ(FitScreen("1\n2\n3\n4\n5\n", {.columns = 80, .rows = 5}),
            "1\n2\n3\n... 2 more lines\n");
  EXPECT_EQ(FitScreen("1\n2\n3\n", {.columns = 5, .rows = 1}), "... 3\n");
}

TEST(FitScreenTest, TheLastLineStandsInAnyCase) {
  EXPECT_EQ(FitScreen("1\n2\n", {.columns = 80, .rows = 9}, "rates"), "1\n2\nrates\n");
  EXPECT_EQ(FitScreen("1\n2\n3\n4\n", {.columns = 4, .rows = 4}, "rates"), "1\n... \nrate\n");
  EXPECT_EQ(FitScreen("1\n2\n", {.columns = 80, .rows = 1}, "rates"), "... 2 more lines\nrates\n");
}

TEST(RateHistoryTest, ShowsTheNewestThatFitAgainstTheirMost) {
  RateHistory history;
  EXPECT_EQ(history.Line(80), "tokens/s   max 0.0");
  for (const double rate : {9.0, 0.0, 4.5, 9.0}) {
    history.Add(rate);
  }
  EXPECT_EQ(history.Line(80), "tokens/s @ +@  max 9.0");
  EXPECT_EQ(history.Line(27), "tokens/s +@  max 9.0");
}

}  // namespace
}  // namespace lamina::cli
