// SPDX-License-Identifier: Apache-2.0
#include "coordinator/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/philox.h"

namespace lamina::coordinator {
namespace {

TEST(StopMatcherTest, PassesEverythingOnWithoutStops) {
  StopMatcher matcher({});

  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcherTest, HoldsBackWhatMayBecomeAStopAndDropsIt) {
  StopMatcher matcher({"END"});

  EXPECT_EQ(matcher.Push("the E"), "the ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "");
  EXPECT_EQ(matcher.Push("D and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.Push("even more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, ShowsTheStopItselfWhereThatWasAskedFor) {
  StopMatcher matcher({"END", "E"}, /*inclusive=*/true);

  EXPECT_EQ(matcher.Push("the END and more"), "the E");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "E");
  EXPECT_EQ(matcher.Push("more"), "");
}

TEST(StopMatcherTest, ShowsHeldTextOnceItCannotBecomeAStop) {
  StopMatcher matcher({"END"});

  EXPECT_EQ(matcher.Push("EN"), "");
  EXPECT_EQ(matcher.Push("EN"), "EN");
  EXPECT_EQ(matcher.Push("O"), "ENO");
}

TEST(StopMatcherTest, ShowsHeldTextAtTheEnd) {
  StopMatcher matcher({"END"});

  EXPECT_EQ(matcher.Push("xE"), "x");
  EXPECT_EQ(matcher.Finish(), "E");
}

TEST(StopMatcherTest, EndsAtTheFirstOfSeveralStops) {
  StopMatcher matcher({"world", "lo w"});

  EXPECT_EQ(matcher.Push("hello world"), "hel");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcherTest, NoStopEndsInTextThatMayNotStop) {
  StopMatcher matcher({"END"});

  EXPECT_EQ(matcher.Push("an END, EN", /*may_stop=*/false), "an END, ");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("D, more"), "") << "it ends where it may";
  EXPECT_TRUE(matcher.stopped());

  // A whole one that is held for a longer one's sake is no stop either.
  StopMatcher nested({"abcX", "bc"});
  EXPECT_EQ(nested.Push("abc", /*may_stop=*/false), "");
  EXPECT_EQ(nested.Push("d"), "abcd");
  EXPECT_FALSE(nested.stopped());
}

TEST(StopMatcherTest, EndsAtTheFirstStopBehindTextThatMayNotStop) {
  Prng random(2);
  const auto text_of = [&random](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      text.push_back(static_cast<char>('a' + random.Below(2)));
    }
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = text_of(random.Below(24));
    const size_t exempt = random.Below(text.size() + 1);
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random.Below(3); ++i) {
      stops.push_back(text_of(1 + random.Below(5)));
    }
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t i = 0; i < text.size(); ++i) {
      shown += matcher.Push(text.substr(i, 1), /*may_stop=*/i >= exempt);
    }
    shown += matcher.Finish();
    // Byte by byte the stop that ends first counts, and of those the longest.
    size_t end = std::string::npos;
    size_t first = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t from = exempt < stop.size() ? 0 : exempt - stop.size() + 1;
      const size_t place = text.find(stop, from);
      if (place != std::string::npos && place + stop.size() <= end) {
        first = place + stop.size() < end ? place : std::min(first, place);
        end = place + stop.size();
      }
    }
    EXPECT_EQ(matcher.stopped(), first != std::string::npos) << text;
    EXPECT_EQ(shown, text.substr(0, first)) << text << " " << exempt;
  }
}

// Over any text, any stops and any cuts: what is shown is the text up to the first stop, and
// nothing that could still turn out to be shown is ever shown too late to be taken back.
TEST(StopMatcherTest, DoesNotDependOnTheCuts) {
  Prng random(1);
  const auto text_of = [&random](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      text.push_back(static_cast<char>('a' + random.Below(2)));
    }
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = text_of(random.Below(24));
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random.Below(3); ++i) {
      stops.push_back(text_of(1 + random.Below(5)));
    }
    StopMatcher matcher(stops);
    std::string shown;
    size_t pushed = 0;
    while (pushed < text.size()) {
      const size_t count = 1 + random.Below(text.size() - pushed);
      shown += matcher.Push(text.substr(pushed, count));
      pushed += count;
      EXPECT_EQ(shown, text.substr(0, shown.size()));
      if (matcher.stopped()) {
        break;
      }
    }
    // Stops in the text seen so far count: one push may bring several.
    const std::string seen = text.substr(0, pushed);
    size_t first = std::string::npos;
    for (const std::string& stop : stops) {
      first = std::min(first, seen.find(stop));
    }
    EXPECT_EQ(matcher.stopped(), first != std::string::npos);
    shown += matcher.Finish();
    EXPECT_EQ(shown, seen.substr(0, first)) << text;
  }
}

}  // namespace
}  // namespace lamina::coordinator
