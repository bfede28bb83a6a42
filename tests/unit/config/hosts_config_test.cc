// SPDX-License-Identifier: Apache-2.0
#include "config/hosts_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoHosts[] = R"(model: m.gguf
cluster_token_file: token
tls: {ca: ca.pem, certificate: a.pem, key: a.key}
bundle: {dir: /opt/lamina}
network: 10.1.0.0/16
ports: 23000-23099
drain_seconds: 7
coordinator: {listen: "0.0.0.0:7400", advertise: "10.1.0.5:7400"}
compute: [{name: c0}]
memory: [{name: m0, host: b, capacity: 2GiB}]
transport: ucx
)";

std::string ErrorOf(const std::string& assignment) {
  const auto config = ParseClusterConfig(kTwoHosts, "test.yaml", {assignment});
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(HostsConfigTest, ReadsAndWritesEveryKey) {
  const auto config = ParseClusterConfig(kTwoHosts, "test.yaml", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tls, (TlsFiles{.ca = "ca.pem", .certificate = "a.pem", .key = "a.key"}));
  EXPECT_EQ(config->bundle.dir, "/opt/lamina");
  EXPECT_EQ(config->network, "10.1.0.0/16");
  EXPECT_EQ(config->ports, (PortRange{.first = 23000, .last = 23099}));
  EXPECT_EQ(config->drain_seconds, 7);
  EXPECT_EQ(config->coordinator_advertise, "10.1.0.5:7400");

  const auto again = ParseClusterConfig(ToYaml(*config), "again.yaml", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToYaml(*again), ToYaml(*config));
}

TEST(HostsConfigTest, TheCoordinatorIsWhereItAdvertisesElseWhereItListens) {
  auto config = *ParseClusterConfig(kTwoHosts, "test.yaml", {});
  EXPECT_EQ(config.CoordinatorAddress(), "10.1.0.5:7400");
  config.coordinator_advertise = "";
  EXPECT_EQ(config.CoordinatorAddress(), "127.0.0.1:7400") << "it listens at all addresses";
  config.coordinator_listen = "10.1.0.6:7401";
  EXPECT_EQ(config.CoordinatorAddress(), "10.1.0.6:7401");
}

TEST(HostsConfigTest, TakesNetworksAndInterfaces) {
  for (const char* good : {"10.0.0.0/8", "fd00::/64", "eth1", "ib0.8001", "bond-a", "0.0.0.0/0"}) {
    EXPECT_TRUE(CheckNetwork("network", good).ok()) << good;
  }
  for (const char* bad : {"10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "an interface", "fd00::/129",
                          "averyveryverylongname"}) {
    EXPECT_FALSE(CheckNetwork("network", bad).ok()) << bad;
  }
}

TEST(HostsConfigTest, TransportsAreToldThePorts) {
  auto config = *ParseClusterConfig(kTwoHosts, "test.yaml", {});
  EXPECT_EQ(config.UcxUri(), "ucx://?ports=23000-23099");
  EXPECT_EQ(config.VerbsUri(), "verbs://?network=10.1.0.0/16&ports=23000-23099");
  config.memory[0].host = "localhost";
  config.verbs.gid = 3;
  EXPECT_EQ(config.UcxUri(), "ucx://?ports=23000-23099&peers=local");
  EXPECT_EQ(config.VerbsUri(), "verbs://?gid=3&network=10.1.0.0/16&ports=23000-23099&peers=local");
  EXPECT_EQ(config.UcxUriBetweenHosts(), "ucx://?ports=23000-23099");
  EXPECT_THAT(ErrorOf("ports=23099-23000"), HasSubstr("ports: '23099-23000' is not a range"));
}

TEST(HostsConfigTest, RefusesAddressesThatNobodyCanConnectTo) {
  EXPECT_THAT(ErrorOf("coordinator.advertise=10.1.0.5:0"), HasSubstr("coordinator.advertise"));
  EXPECT_THAT(ErrorOf("drain_seconds=86401"), HasSubstr("in [0, 86400]"));
}

TEST(HostsConfigTest, VerbsIsToldTheNetwork) {
  auto config = *ParseClusterConfig(kTwoHosts, "test.yaml", {"transport=[verbs, ucx]"});
  EXPECT_EQ(config.VerbsUriBetweenHosts(), "verbs://?network=10.1.0.0/16&ports=23000-23099");
  config.verbs.device = "mlx5_0";
  EXPECT_EQ(config.VerbsUriBetweenHosts(), "verbs://mlx5_0?network=10.1.0.0/16&ports=23000-23099");
  config.network = "";
  EXPECT_EQ(config.VerbsUriBetweenHosts(), "verbs://mlx5_0?ports=23000-23099");
}

}  // namespace
}  // namespace lamina
