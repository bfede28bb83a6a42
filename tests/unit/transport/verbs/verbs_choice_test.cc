// SPDX-License-Identifier: Apache-2.0
//
// The rule by which verbs:// takes a port, a GID and an MTU.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/verbs/verbs_device.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

VerbsPort Port(const std::string& device, double gbit) {
  VerbsPort port = {.device = device,
                    .port = 1,
                    .active = true,
                    .state = "active",
                    .ethernet = true,
                    .mtu = 4096,
                    .gbit = gbit};
  port.gids = {
      {.index = 0, .kind = GidKind::kRoceV1, .text = "fe80::1", .link_local = true},
      {.index = 1, .kind = GidKind::kRoceV2, .text = "fe80::1", .link_local = true},
      {.index = 2, .kind = GidKind::kRoceV1, .text = "::ffff:192.0.2.1", .ipv4 = true},
      {.index = 3, .kind = GidKind::kRoceV2, .text = "::ffff:192.0.2.1", .ipv4 = true},
      {.index = 4, .kind = GidKind::kRoceV2, .text = "2001:db8::1"},
  };
  return port;
}

std::string Error(const absl::StatusOr<VerbsChoice>& choice) {
  return std::string(choice.status().message());
}

TEST(VerbsChoiceTest, TakesTheFastestActivePort) {
  std::vector<VerbsPort> ports = {Port("a", 100), Port("b", 400), Port("c", 400), Port("d", 800)};
  ports[3].active = false;

  EXPECT_EQ(ChooseVerbsPort(ports, {}).value().port.device, "b");
}

TEST(VerbsChoiceTest, TakesTheNearestToADeviceThenTheFastest) {
  const PciPlace gpu = {.path = {"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, .numa_node = 0};
  std::vector<VerbsPort> ports = {Port("far", 800), Port("root", 400), Port("node", 800),
                                  Port("switch", 100), Port("switch_too", 200)};
  ports[0].place = {.path = {"pci0000:80", "0000:80:01.0", "0000:81:00.0"}, .numa_node = 1};
  ports[1].place = {.path = {"pci0000:40", "0000:40:02.0", "0000:43:00.0"}, .numa_node = 0};
  ports[2].place = {.path = {"pci0000:60", "0000:60:01.0", "0000:61:00.0"}, .numa_node = 0};
  ports[3].place = {.path = {"pci0000:40", "0000:40:01.0", "0000:42:00.0"}, .numa_node = 0};
  ports[4].place = ports[3].place;

  for (const std::string wanted : {"switch_too", "switch", "root", "node", "far"}) {
    const VerbsChoice choice = ChooseVerbsPort(ports, {}, gpu).value();
    EXPECT_EQ(choice.port.device, wanted);
    EXPECT_THAT(choice.reason, HasSubstr("as 0000:41:00.0"));
    std::erase_if(ports, [&](const VerbsPort& port) { return port.device == wanted; });
  }
}

TEST(VerbsChoiceTest, KeepsToTheNetworkThatIsNamed) {
  std::vector<VerbsPort> ports = {Port("a", 400), Port("b", 100), Port("c", 200)};
  ports[1].gids.push_back(
      {.index = 5, .kind = GidKind::kRoceV1, .text = "::ffff:10.1.2.3", .ipv4 = true});
  ports[1].gids.push_back({.index = 6,
                           .kind = GidKind::kRoceV2,
                           .text = "::ffff:10.1.2.3",
                           .ipv4 = true,
                           .interface = "eth1"});
  ports[2].gids.push_back({.index = 5, .kind = GidKind::kRoceV2, .text = "2001:db8:7::2"});

  for (const auto& [network, device, gid] :
       {std::tuple("10.1.0.0/16", "b", 6u), std::tuple("eth1", "b", 6u),
        std::tuple("2001:db8:7::/48", "c", 5u), std::tuple("192.0.2.0/24", "a", 3u)}) {
    const VerbsChoice choice = ChooseVerbsPort(ports, {.network = network}).value();
    EXPECT_EQ(choice.port.device, device) << network;
    EXPECT_EQ(choice.gid.index, gid) << network;
  }
  EXPECT_EQ(ChooseVerbsPort(ports, {.network = "192.0.2.0/24", .gid = 2}).value().gid.index, 2u);
}

TEST(VerbsChoiceTest, OnInfiniBandTheNamedDeviceIsOfTheNetwork) {
  VerbsPort port = Port("mlx5_0", 400);
  port.gids = {{.index = 0, .kind = GidKind::kInfiniBand, .text = "fe80::a", .link_local = true}};

  EXPECT_EQ(ChooseVerbsPort({port}, {.device = "mlx5_0", .network = "10.1.0.0/16"})->gid.index, 0u);
  EXPECT_THAT(Error(ChooseVerbsPort({port}, {.network = "10.1.0.0/16"})),
              HasSubstr("on InfiniBand name the device (verbs.device)"));
}

TEST(VerbsChoiceTest, SaysWhichAddressesThereAreWhenNoneIsOfTheNetwork) {
  std::vector<VerbsPort> ports = {Port("a", 400)};
  ports[0].gids.back().interface = "eth7";

  const std::string error = Error(ChooseVerbsPort(ports, {.network = "10.1.0.0/16"}));
  EXPECT_THAT(error, HasSubstr("no active port has an address of network 10.1.0.0/16"));
  EXPECT_THAT(error, HasSubstr("2001:db8::1 of a on eth7"));
  EXPECT_THAT(Error(ChooseVerbsPort(ports, {.device = "a", .network = "eth7", .gid = 0})),
              HasSubstr("GID 0 of a is fe80::1, which is not of network eth7"));
}

TEST(VerbsChoiceTest, NamedDeviceOverridesTheNearest) {
  const PciPlace gpu = {.path = {"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, .numa_node = 0};
  std::vector<VerbsPort> ports = {Port("a", 100), Port("b", 100)};
  ports[0].place = gpu;

  EXPECT_EQ(ChooseVerbsPort(ports, {}, gpu).value().port.device, "a");
  EXPECT_EQ(ChooseVerbsPort(ports, {.device = "b"}, gpu).value().port.device, "b");
}

TEST(VerbsChoiceTest, DeviceThatIsNotOfThisHostIsAFailedPrecondition) {
  const auto near = FindNear({.near = "ffff:ff:1f.7"});

  EXPECT_TRUE(absl::IsFailedPrecondition(near.status()));
  EXPECT_THAT(std::string(near.status().message()), HasSubstr("lspci -D"));
  EXPECT_TRUE(FindNear({}).value().path.empty());
}

TEST(VerbsChoiceTest, TakesTheRoutableGid) {
  VerbsPort port = Port("a", 100);
  EXPECT_EQ(ChooseVerbsPort({port}, {}).value().gid.index, 3u);
  port.gids.erase(port.gids.begin() + 3);
  EXPECT_EQ(ChooseVerbsPort({port}, {}).value().gid.index, 4u);
  port.gids.pop_back();
  EXPECT_EQ(ChooseVerbsPort({port}, {}).value().gid.index, 1u);
}

TEST(VerbsChoiceTest, WhatIsNamedIsTaken) {
  const std::vector<VerbsPort> ports = {Port("a", 100), Port("b", 400)};

  const VerbsChoice choice =
      ChooseVerbsPort(ports, {.device = "a", .port = 1, .gid = 0, .mtu = 1024}).value();

  EXPECT_EQ(choice.port.device, "a");
  EXPECT_EQ(choice.gid.index, 0u);
  EXPECT_EQ(choice.mtu, 1024u);
  EXPECT_EQ(choice.reason, "a port 1, GID 0 (fe80::1, RoCE v1), MTU 1024");
}

TEST(VerbsChoiceTest, MtuIsNeverMoreThanThePorts) {
  VerbsPort port = Port("a", 100);
  port.mtu = 1024;
  EXPECT_EQ(ChooseVerbsPort({port}, {.mtu = 4096}).value().mtu, 1024u);
}

TEST(VerbsChoiceTest, NoDeviceIsAFailedPreconditionThatSaysWhatToUse) {
  const auto choice = ChooseVerbsPort({}, {});

  EXPECT_TRUE(absl::IsFailedPrecondition(choice.status()));
  EXPECT_THAT(Error(choice), HasSubstr("ucx://"));
}

TEST(VerbsChoiceTest, AnotherNameListsWhatThereIs) {
  const auto choice = ChooseVerbsPort({Port("mlx5_0", 100)}, {.device = "mlx5_1"});

  EXPECT_TRUE(absl::IsFailedPrecondition(choice.status()));
  EXPECT_THAT(Error(choice), HasSubstr("mlx5_0 port 1 (active)"));
}

TEST(VerbsChoiceTest, PortThatIsDownIsAFailedPrecondition) {
  VerbsPort port = Port("a", 100);
  port.active = false;
  port.state = "down";

  const auto choice = ChooseVerbsPort({port}, {});

  EXPECT_TRUE(absl::IsFailedPrecondition(choice.status()));
  EXPECT_THAT(Error(choice), HasSubstr("a port 1 (down)"));
}

TEST(VerbsChoiceTest, PortWithoutTheGidIsAFailedPrecondition) {
  VerbsPort port = Port("a", 100);
  EXPECT_TRUE(absl::IsFailedPrecondition(ChooseVerbsPort({port}, {.gid = 9}).status()));
  port.gids.clear();
  EXPECT_THAT(Error(ChooseVerbsPort({port}, {})), HasSubstr("IP address"));
}

TEST(VerbsChoiceTest, DeviceThatCannotBeOpenedIsPermissionDenied) {
  const VerbsPort port = {.device = "a", .port = 1, .refused = "Permission denied"};

  const auto choice = ChooseVerbsPort({port}, {});

  EXPECT_TRUE(absl::IsPermissionDenied(choice.status()));
  EXPECT_THAT(Error(choice), HasSubstr("/dev/infiniband"));
}

}  // namespace
}  // namespace lamina::transport
