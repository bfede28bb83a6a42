// SPDX-License-Identifier: Apache-2.0
#include "common/port_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"

namespace lamina {
namespace {

using ::testing::ElementsAre;

TEST(PortRangeTest, ReadsARangeAndOnePort) {
  EXPECT_EQ(ParsePortRange("23000-23099").value(), (PortRange{.first = 23000, .last = 23099}));
  EXPECT_EQ(ParsePortRange("7400").value(), (PortRange{.first = 7400, .last = 7400}));
  EXPECT_EQ(ToString({.first = 1, .last = 65535}), "1-65535");
}

TEST(PortRangeTest, RefusesWhatIsNone) {
  for (const char* bad : {"", "-", "23000-", "-23099", "0-10", "5-4", "1-65536", "a-b", "1-2-3"}) {
    EXPECT_EQ(ParsePortRange(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(PortRangeTest, BindsAtTheFirstPortThatIsFree) {
  std::vector<uint16_t> tried;
  const auto bind = [&tried](uint16_t port) {
    tried.push_back(port);
    return port == 0 || port == 12;
  };

  EXPECT_TRUE(BindWithin({.first = 10, .last = 14}, bind));
  EXPECT_THAT(tried, ElementsAre(10, 11, 12));

  tried.clear();
  EXPECT_TRUE(BindWithin({}, bind));
  EXPECT_THAT(tried, ElementsAre(0));

  EXPECT_FALSE(BindWithin({.first = 65534, .last = 65535}, bind));
}

TEST(PortRangeTest, OpensWithinTheRangeWhereTheSystemWouldPick) {
  constexpr PortRange kRange = {.first = 10, .last = 12};
  std::vector<std::string> tried;
  const auto open = [&tried](const std::string& address) {
    tried.push_back(address);
    return address == "h:0" || address == "h:11" || address == "h:7400"
               ? absl::OkStatus()
               : absl::UnavailableError(address);
  };

  EXPECT_TRUE(OpenWithin(kRange, "h:0", open).ok());
  EXPECT_THAT(tried, ElementsAre("h:0", "h:10", "h:11"));

  tried.clear();
  EXPECT_TRUE(OpenWithin(kRange, "h:7400", open).ok());
  EXPECT_THAT(tried, ElementsAre("h:7400"));

  tried.clear();
  EXPECT_FALSE(OpenWithin(kRange, "other:0", open).ok());
  EXPECT_THAT(tried, ElementsAre("other:0"));

  EXPECT_EQ(OpenWithin({.first = 20, .last = 21}, "h:0", open).message(), "h:21");
}

}  // namespace
}  // namespace lamina
