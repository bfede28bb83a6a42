// SPDX-License-Identifier: Apache-2.0
//
// Each way in which a port does not answer, made for real on loopback.
#include "client/doctor/tcp_reach.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::doctor {
namespace {

using testing::HasSubstr;

constexpr Nanos kWait = Seconds(3);

// A port of 127.0.0.1 that listens and never accepts.
class Listener {
 public:
  explicit Listener(int backlog) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in here = {};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here), 0);
    EXPECT_EQ(listen(fd_, backlog), 0);
    socklen_t bytes = sizeof here;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&here), &bytes), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(here.sin_port));
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

Finding Explained(const TcpReach& reach) {
  Finding finding = Unreached(reach, State::kFail, "peer", "192.0.2.1:7500", "lamina serve");
  EXPECT_EQ(finding.state, State::kFail);
  EXPECT_THAT(finding.found, HasSubstr("192.0.2.1:7500"));
  EXPECT_FALSE(finding.why.empty());
  return finding;
}

TEST(TcpReachTest, PortThatListensIsReachedAndBothEndsAreNamed) {
  const Listener listener(4);

  const TcpReach reach = ReachTcp(listener.address(), kWait);

  EXPECT_EQ(reach.reach, Reach::kReached) << reach.message;
  EXPECT_EQ(reach.own_address, "127.0.0.1");
  EXPECT_EQ(reach.peer_address, "127.0.0.1");
}

TEST(TcpReachTest, PortThatNobodyListensAtRefuses) {
  std::string address;
  {
    const Listener listener(4);
    address = listener.address();
  }

  const TcpReach reach = ReachTcp(address, kWait);

  EXPECT_EQ(reach.reach, Reach::kRefused) << reach.message;
  EXPECT_EQ(Explained(reach).fix, "lamina serve   # there");
}

// The kernel drops what wants to connect to a full queue, as a firewall does.
TEST(TcpReachTest, PortWhosePacketsAreDroppedIsSilent) {
  const Listener listener(0);
  TcpReach reach = {.reach = Reach::kReached};

  for (int tries = 0; tries < 16 && reach.reach == Reach::kReached; ++tries) {
    reach = ReachTcp(listener.address(), Millis(300));
  }

  EXPECT_EQ(reach.reach, Reach::kSilent) << reach.message;
  const Finding finding = Explained(reach);
  EXPECT_THAT(finding.found, HasSubstr("a firewall drops"));
  EXPECT_THAT(finding.fix, HasSubstr("--dport 7500 -j ACCEPT"));
}

TEST(TcpReachTest, AddressWithoutARouteIsSaidSo) {
  // TCP goes to no group of hosts.
  const TcpReach reach = ReachTcp("224.0.0.1:7500", kWait);

  EXPECT_EQ(reach.reach, Reach::kNoRoute) << reach.message;
  EXPECT_EQ(Explained(reach).fix.rfind("ip route get 192.0.2.1", 0), 0u);
}

TEST(TcpReachTest, NameWithoutAnAddressIsSaidSo) {
  // Longer than a label of a name may be: nobody needs to be asked.
  std::string name(70, 'a');
  name.append(".invalid:7500");
  const TcpReach reach = ReachTcp(name, kWait);

  EXPECT_EQ(reach.reach, Reach::kNoSuchHost) << reach.message;
  EXPECT_EQ(Explained(reach).fix.rfind("getent hosts", 0), 0u);
}

TEST(TcpReachTest, WhatIsNoAddressIsSaidSo) {
  for (const std::string text : {"", "7500", "host:", ":7500", "127.0.0.1:port"}) {
    const TcpReach reach = ReachTcp(text, kWait);
    EXPECT_EQ(reach.reach, Reach::kMalformed) << text;
    EXPECT_FALSE(Explained(reach).fix.empty());
  }
}

}  // namespace
}  // namespace lamina::doctor
