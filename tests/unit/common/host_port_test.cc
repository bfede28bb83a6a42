// SPDX-License-Identifier: Apache-2.0
#include "common/host_port.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(HostPortTest, SplitsAtThePort) {
  const auto parsed = ParseHostPort("node-1.example.org:7400");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->host, "node-1.example.org");
  EXPECT_EQ(parsed->port, 7400);
  EXPECT_EQ(ParseHostPort("127.0.0.1:0")->port, 0);
  EXPECT_EQ(ParseHostPort("a:65535")->port, 65535);
}

TEST(HostPortTest, TakesIpv6InBracketsAlone) {
  const auto parsed = ParseHostPort("[::1]:7400");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->host, "::1");
  EXPECT_EQ(parsed->port, 7400);
  EXPECT_FALSE(ParseHostPort("::1").has_value());
  EXPECT_FALSE(ParseHostPort("fe80::1:7400").has_value());
  EXPECT_FALSE(ParseHostPort("[::1]").has_value());
  EXPECT_FALSE(ParseHostPort("[]:1").has_value()) << "brackets around nothing";
}

TEST(HostPortTest, RefusesWhatHasNoHostOrNoPort) {
  for (const char* text : {"", "localhost", ":7400", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:70000",
                           "10.0.0.1:-1", "10.0.0.1:+1", "10.0.0.1: 7400", "10.0.0.1:7400/"}) {
    EXPECT_FALSE(ParseHostPort(text).has_value()) << text;
  }
}

TEST(HostPortTest, ExchangesThePort) {
  EXPECT_EQ(WithPort("127.0.0.1:0", 7400), "127.0.0.1:7400");
  EXPECT_EQ(WithPort("[::1]:0", 1), "[::1]:1");
}

TEST(HostPortTest, AllAddressesAreReachedByLoopback) {
  EXPECT_EQ(ReachedFromHere("0.0.0.0:7400"), "127.0.0.1:7400");
  EXPECT_EQ(ReachedFromHere("[::]:7400"), "127.0.0.1:7400");
  for (const char* other : {"10.1.0.5:7400", "[::1]:7400", "0.0.0.0", "unix:/run/lamina.sock"}) {
    EXPECT_EQ(ReachedFromHere(other), other);
  }
}

TEST(HostPortTest, AServerHasAPort) {
  EXPECT_TRUE(IsServerAddress("localhost:7400"));
  EXPECT_TRUE(IsServerAddress("unix:/run/lamina.sock"));
  EXPECT_FALSE(IsServerAddress("localhost:0"));
  EXPECT_FALSE(IsServerAddress("localhost"));
  EXPECT_FALSE(IsServerAddress("http://localhost:7400"));
}

}  // namespace
}  // namespace lamina
