// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lamina {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AddressBytes Ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}

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

// As the system lists them on a host with many bridges, where what peers reach comes last.
std::vector<InterfaceAddress> ManyBridges() {
  std::vector<InterfaceAddress> there = {{.interface = "docker0", .address = Ipv4(172, 17, 0, 1)}};
  for (uint8_t i = 0; i < 8; ++i) {
    there.push_back({.interface = "br-" + std::to_string(i), .address = Ipv4(172, 18, i, 1)});
  }
  there.push_back({.interface = "veth7", .address = Ipv4(169, 254, 0, 7)});
  there.push_back({.interface = "eth0", .address = Ipv4(192, 0, 2, 1)});
  there.push_back({.interface = "wg0", .address = Ipv4(10, 1, 0, 1)});
  there.push_back(
      {.interface = "eth0", .address = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}});
  return there;
}

TEST(NetworkTest, PeersTryTheNetworkFirstAndBridgesLast) {
  const AddressBytes eth0 = Ipv4(192, 0, 2, 1);
  const AddressBytes wg0 = Ipv4(10, 1, 0, 1);
  const AddressBytes ipv6 = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const AddressBytes docker0 = Ipv4(172, 17, 0, 1);

  for (const std::string network : {"10.1.0.0/16", "wg0"}) {
    EXPECT_THAT(AddressesForPeers(ManyBridges(), {network}, 4),
                ElementsAre(wg0, eth0, ipv6, docker0));
  }
  EXPECT_THAT(AddressesForPeers(ManyBridges(), {"fd00::/64"}, 2), ElementsAre(ipv6, eth0));
  EXPECT_THAT(AddressesForPeers(ManyBridges(), {"br-3", "mlx5_0:1"}, 2),
              ElementsAre(Ipv4(172, 18, 3, 1), eth0))
      << "a bridge that is named is wanted";
  for (const std::vector<std::string>& none :
       {std::vector<std::string>(), std::vector<std::string>{""}}) {
    EXPECT_THAT(AddressesForPeers(ManyBridges(), none, 4), ElementsAre(eth0, wg0, ipv6, docker0));
  }
  EXPECT_EQ(AddressesForPeers(ManyBridges(), {}, 100).size(), ManyBridges().size());
}

TEST(NetworkTest, AddressesForPeersAreNotLoopbackNorLinkLocal) {
  const std::vector<InterfaceAddress> there = InterfaceAddresses();

  EXPECT_TRUE(std::none_of(there.begin(), there.end(), [](const InterfaceAddress& found) {
    return found.interface == "lo" || found.address == Ipv4(127, 0, 0, 1) ||
           (found.address[0] == 0xfe && (found.address[1] & 0xc0) == 0x80);
  }));
}

}  // namespace
}  // namespace lamina
