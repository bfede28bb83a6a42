// SPDX-License-Identifier: Apache-2.0
#include "coordinator/departures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/stub_port.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DeparturesTest, ThoseWhoAskTogetherAreDueTogether) {
  StubPort m0;
  StubPort m1;
  Departures departures;
  departures.Asked({.name = "m0", .port = &m0}, Seconds(10));
  departures.Asked({.name = "m1", .port = &m1}, Seconds(10) + Millis(900));
  EXPECT_THAT(departures.Due(Seconds(11) - 1), IsEmpty());
  EXPECT_THAT(departures.Due(Seconds(11)), ElementsAre("m0", "m1"));
}

TEST(DeparturesTest, AskingAgainChangesNothing) {
  StubPort m0;
  Departures departures;
  departures.Asked({.name = "m0", .port = &m0}, Seconds(10));
  departures.Asked({.name = "m0", .port = &m0}, Seconds(15));
  EXPECT_THAT(departures.Due(Seconds(11)), ElementsAre("m0"));
}

TEST(DeparturesTest, ThoseThatAreGoneAreNeitherDueNorHeld) {
  StubPort c0;
  Departures departures;
  departures.Asked({.name = "c0", .port = &c0}, Seconds(10));
  departures.Hold(true);
  EXPECT_EQ(departures.held(), "c0");
  departures.Keep([](const NodeSource&) { return false; });
  EXPECT_EQ(departures.held(), "");
  EXPECT_THAT(departures.Due(Seconds(20)), IsEmpty());
}

TEST(DeparturesTest, NobodyIsHeldThatTheOthersDoNotNeed) {
  StubPort m0;
  Departures departures;
  departures.Asked({.name = "m0", .port = &m0}, Seconds(10));
  departures.Hold(false);
  EXPECT_EQ(departures.held(), "");
}

}  // namespace
}  // namespace lamina::coordinator
