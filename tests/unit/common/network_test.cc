// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina {
namespace {

using ::testing::HasSubstr;

TEST(NetworkTest, AnAddressIsInTheNetworkOfItsPrefix) {
  EXPECT_TRUE(IsInNetwork("10.1.2.3", "10.1.0.0/16"));
  EXPECT_FALSE(IsInNetwork("10.2.2.3", "10.1.0.0/16"));
  EXPECT_TRUE(IsInNetwork("10.1.127.3", "10.1.0.0/17"));
  EXPECT_FALSE(IsInNetwork("10.1.128.3", "10.1.0.0/17"));
  EXPECT_TRUE(IsInNetwork("fd00::1", "fd00::/64"));
  EXPECT_FALSE(IsInNetwork("fd00:0:0:1::1", "fd00::/64"));
  EXPECT_TRUE(IsInNetwork("192.0.2.1", "0.0.0.0/0"));
  EXPECT_FALSE(IsInNetwork("fd00::1", "0.0.0.0/0")) << "another family";
  EXPECT_FALSE(IsInNetwork("10.1.2.3", "10.1.0.0/33"));
  EXPECT_FALSE(IsInNetwork("10.1.2.3", "eth0"));
}

TEST(NetworkTest, FindsLoopbackByNetworkAndByName) {
  EXPECT_EQ(InterfaceOf("127.0.0.0/8").value(), "lo");
  EXPECT_EQ(InterfaceOf("lo").value(), "lo");
}

TEST(NetworkTest, SaysWhatThereIs) {
  const auto none = InterfaceOf("203.0.113.0/24");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().message(), HasSubstr("lo 127.0.0.1"));
}

}  // namespace
}  // namespace lamina
