// SPDX-License-Identifier: Apache-2.0
#include "coordinator/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

// More than are turned away before the listener looks for room again.
constexpr int kAttemptsMax = 1000;

// Connects over IPv4's loopback, with what a thread that waits for it should take at most.
OwnedFd Connect(uint16_t port) {
  OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  return socket;
}

// Whether the other end has closed; waits until it has, or has sent something.
bool IsTurnedAway(const OwnedFd& connection) {
  char byte = 0;
  return recv(connection.get(), &byte, 1, 0) <= 0;
}

// What a server does with connections: keeps them, having said a byte.
class Kept {
 public:
  Listener::Handler Handler() {
    return [this](OwnedFd connection) {
      EXPECT_EQ(send(connection.get(), "x", 1, MSG_NOSIGNAL), 1);
      const std::lock_guard lock(mutex_);
      connections_.push_back(std::move(connection));
    };
  }
  void CloseAll() {
    const std::lock_guard lock(mutex_);
    connections_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<OwnedFd> connections_;
};

TEST(ListenerTest, AcceptsAtNamesAndAtAllAddresses) {
  for (const char* listen : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0"}) {
    Kept kept;
    const auto listener = Listener::Open(listen);
    ASSERT_TRUE(listener.ok()) << listen << " " << listener.status();
    EXPECT_NE((*listener)->port(), 0);
    const OwnedFd before = Connect((*listener)->port());  // Waits for the start.
    (*listener)->Start(kept.Handler());
    EXPECT_FALSE(IsTurnedAway(before)) << listen;
    EXPECT_FALSE(IsTurnedAway(Connect((*listener)->port()))) << listen;
  }
}

TEST(ListenerTest, SaysThatAPortIsTakenAndThatANameIsUnknown) {
  const auto first = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = Listener::Open("127.0.0.1:" + std::to_string((*first)->port()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  EXPECT_EQ(Listener::Open("no.such.host.invalid:0").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Listener::Open("7400").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ListenerTest, ClosesConnectionsBeyondTheLimitUntilOthersAreClosed) {
  Kept kept;
  const auto listener = Listener::Open("127.0.0.1:0", /*connections_max=*/2);
  ASSERT_TRUE(listener.ok());
  (*listener)->Start(kept.Handler());
  const OwnedFd first = Connect((*listener)->port());
  const OwnedFd second = Connect((*listener)->port());
  EXPECT_FALSE(IsTurnedAway(first));
  EXPECT_FALSE(IsTurnedAway(second));

  EXPECT_TRUE(IsTurnedAway(Connect((*listener)->port())));
  kept.CloseAll();  // By whom they were given to: nobody tells the listener.

  // Those that come before it looks again are turned away, too.
  bool let_in = false;
  for (int i = 0; i < kAttemptsMax && !let_in; ++i) {
    let_in = !IsTurnedAway(Connect((*listener)->port()));
  }
  EXPECT_TRUE(let_in);
}

TEST(ListenerTest, GoesOnWhenThereAreFileDescriptorsAgain) {
  Kept kept;
  const auto listener = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  (*listener)->Start(kept.Handler());
  std::vector<OwnedFd> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons((*listener)->port());
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);

  for (const OwnedFd& client : clients) {
    const timeval timeout{.tv_sec = 1, .tv_usec = 0};
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  }
  EXPECT_TRUE(IsTurnedAway(clients[0]));  // Or has not been answered yet.
  setrlimit(RLIMIT_NOFILE, &before);

  bool let_in = false;
  for (int i = 0; i < kAttemptsMax && !let_in; ++i) {
    let_in = !IsTurnedAway(Connect((*listener)->port()));
  }
  EXPECT_TRUE(let_in);
}

TEST(ListenerTest, RefusesConnectionsWhenItHasStopped) {
  Kept kept;
  const auto listener = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  (*listener)->Start(kept.Handler());
  const OwnedFd there = Connect((*listener)->port());
  EXPECT_FALSE(IsTurnedAway(there));
  const uint16_t port = (*listener)->port();

  (*listener)->Stop();

  const OwnedFd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_NE(connect(late.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  (*listener)->Stop();
}

TEST(ListenerTest, TellsForHowLongAPeerHasSentNothing) {
  const auto listener = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  Kept kept;
  (*listener)->Start(kept.Handler());
  const OwnedFd connection = Connect((*listener)->port());
  ASSERT_FALSE(IsTurnedAway(connection));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  ASSERT_EQ(getsockname(connection.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
  const std::string peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(own.sin_port));
  EXPECT_FALSE((*listener)->SinceLastByte(peer).has_value()) << "nothing came yet";

  const Nanos before = RealClock().Now();
  ASSERT_EQ(send(connection.get(), "x", 1, MSG_NOSIGNAL), 1);
  std::optional<Nanos> since;
  while (!since.has_value()) {  // The kernel hands it on at once, though nobody reads it.
    since = (*listener)->SinceLastByte(peer);
  }
  EXPECT_LE(*since, RealClock().Now() - before + Millis(20)) << "jiffies are coarse";
  EXPECT_FALSE((*listener)->SinceLastByte("ipv4:192.0.2.1:9").has_value());
  (*listener)->Stop();
}

// gRPC names link-local addresses with their zone, escaped.
TEST(ListenerTest, TellsItOfAPeerWithAZone) {
  const auto listener = Listener::Open("[::1]:0");
  if (!listener.ok()) {
    GTEST_SKIP() << "no IPv6: " << listener.status();
  }
  Kept kept;
  (*listener)->Start(kept.Handler());
  const OwnedFd connection(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_port = htons((*listener)->port());
  at.sin6_addr = in6addr_loopback;
  ASSERT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_FALSE(IsTurnedAway(connection));
  sockaddr_in6 own{};
  socklen_t length = sizeof(own);
  ASSERT_EQ(getsockname(connection.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
  const uint16_t port = ntohs(own.sin6_port);

  ASSERT_EQ(send(connection.get(), "x", 1, MSG_NOSIGNAL), 1);
  while (!(*listener)->SinceLastByte(absl::StrCat("ipv6:[::1]:", port)).has_value()) {
  }
  EXPECT_TRUE((*listener)->SinceLastByte(absl::StrCat("ipv6:%5B::1%251%5D:", port)).has_value());
  EXPECT_TRUE((*listener)->SinceLastByte(absl::StrCat("ipv6:[::1%lo]:", port)).has_value());
  EXPECT_FALSE((*listener)->SinceLastByte(absl::StrCat("ipv6:[::2%lo]:", port)).has_value());
  (*listener)->Stop();
}

}  // namespace
}  // namespace lamina::coordinator
