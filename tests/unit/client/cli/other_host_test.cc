// SPDX-License-Identifier: Apache-2.0
#include "client/cli/other_host.h"

#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

TEST(OtherHostTest, ALoopbackServerIsNamedByItsHostElsewhere) {
  EXPECT_EQ(ServerSeenFrom("b.example", "a", "127.0.0.1:7400"), "HOST_OF_THE_COORDINATOR:7400");
  EXPECT_EQ(ServerSeenFrom("b.example", "a", "[::1]:7400"), "HOST_OF_THE_COORDINATOR:7400");
  EXPECT_EQ(ServerSeenFrom("b.example", "a", "unix:door"), "HOST_OF_THE_COORDINATOR:PORT");
  EXPECT_EQ(ServerSeenFrom("b.example", "a", "192.0.2.1:7400"), "192.0.2.1:7400");
}

TEST(OtherHostTest, ALoopbackServerIsReachedFromItsOwnHost) {
  EXPECT_EQ(ServerSeenFrom("localhost", "a", "127.0.0.1:7400"), "127.0.0.1:7400");
  EXPECT_EQ(ServerSeenFrom("a", "a", "127.0.0.1:7400"), "127.0.0.1:7400");
  EXPECT_EQ(ServerSeenFrom("localhost", "a", "unix:door"), "unix:door");
}

TEST(OtherHostTest, AListenerAtAllAddressesIsNamedByItsHost) {
  EXPECT_EQ(ListenerSeenFromElsewhere("0.0.0.0:7500", "a"), "a:7500");
  EXPECT_EQ(ListenerSeenFromElsewhere("[::]:7500", "a"), "a:7500");
  EXPECT_EQ(ListenerSeenFromElsewhere("0.0.0.0:7500", ""), "0.0.0.0:7500") << "it has no name";
  EXPECT_EQ(ListenerSeenFromElsewhere("192.0.2.1:7500", "a"), "192.0.2.1:7500");
}

TEST(OtherHostTest, TheTokenFileIsQuotedWhereAShellNeedsIt) {
  EXPECT_EQ(TokenFlag(""), "");
  EXPECT_EQ(TokenFlag("run/my/cluster.token"), " --cluster-token-file run/my/cluster.token");
  EXPECT_EQ(TokenFlag("it's mine"), " --cluster-token-file 'it'\\''s mine'");
}

}  // namespace
}  // namespace lamina::cli
