// SPDX-License-Identifier: Apache-2.0
//
// What the control thread takes from peers that do not behave, over real sockets of the loopback
// interface and a device without hardware.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/support/listening_addresses.h"
#include "tests/unit/transport/verbs/fake_verbs.h"
#include "transport/verbs/control_thread_internal.h"

namespace lamina::transport {
namespace {

// Generous: it ends a test that hangs.
Nanos Deadline() { return RealClock().Now() + Seconds(60); }

class ControlThreadTest : public testing::Test {
 protected:
  void Start(const ControlLimits& limits) {
    control_ = *ControlThread::Start(FakeLocal(1024), ClusterSecret(), limits);
  }

  ControlSocket Connect() {
    return *ConnectToPeer(kOwnHost, control_->self().tcp_port, Deadline());
  }

  static ClusterSecret SecretOf(const std::string& token) {
    const std::string path = testing::TempDir() + "/control_thread_token";
    std::ofstream(path, std::ios::trunc) << token;
    chmod(path.c_str(), 0600);
    return ClusterSecret::Read(path).value();
  }

  ControlFrame HelloTo(const ControlFrame& challenge, const ClusterSecret& secret = {}) const {
    ControlFrame hello = {.kind = ControlKind::kHello, .owner = control_->self().owner};
    Prove(secret, challenge, hello);
    return hello;
  }

  // What the owner answers.
  ControlKind AnswerTo(const ControlSocket& socket, const ControlFrame& hello) {
    EXPECT_TRUE(socket.Send(hello));
    const absl::StatusOr<ControlFrame> answer = AwaitFrame(socket, Deadline());
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->kind : ControlKind::kRefused;
  }

  // A connection that has said kHello and was welcomed. On a busy machine the hello may come later
  // than a test's short wait; then the next one is tried.
  ControlSocket ConnectAsSender() {
    for (int i = 0; i < 100; ++i) {
      ControlSocket socket = Connect();
      const absl::StatusOr<ControlFrame> challenge = AwaitFrame(socket, Deadline());
      if (challenge.ok() && socket.Send(HelloTo(*challenge)) &&
          AwaitFrame(socket, Deadline()).ok()) {
        return socket;
      }
    }
    ADD_FAILURE() << "no sender is welcome";
    return ControlSocket();
  }

  absl::StatusOr<ControlFrame> Open(const ControlSocket& socket, uint64_t view, uint64_t region) {
    EXPECT_TRUE(socket.Send({.kind = ControlKind::kOpen,
                             .view = view,
                             .region = region,
                             .owner = control_->self().owner}));
    return AwaitFrame(socket, Deadline());
  }

  uint64_t Lend() { return control_->AddRegion(nullptr); }

  std::unique_ptr<ControlThread> control_;
};

TEST_F(ControlThreadTest, AConnectionThatSaysNoHelloIsEnded) {
  Start({.hello_wait = Millis(5)});

  const ControlSocket silent = Connect();
  ASSERT_EQ(AwaitFrame(silent, Deadline())->kind, ControlKind::kChallenge);

  const auto frame = AwaitFrame(silent, Deadline());
  EXPECT_EQ(frame.status().message(), "the peer ended the connection");
}

TEST_F(ControlThreadTest, TransportsConnectToEachOtherWithTheSameSecret) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");
  control_ = *ControlThread::Start(FakeLocal(1024), secret);
  const auto member = *ControlThread::Start(FakeLocal(1024), secret);
  const auto stranger = *ControlThread::Start(FakeLocal(1024), SecretOf("another one than that"));

  const auto link = member->Connect(control_->self());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(member->OpenView(**link, Lend()).ok());
  const absl::Status refused = stranger->Connect(control_->self()).status();

  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_NE(refused.message().find("it refused this end"), absl::string_view::npos) << refused;
}

TEST_F(ControlThreadTest, ASenderWithoutTheSecretIsRefused) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");
  control_ = *ControlThread::Start(FakeLocal(1024), secret);
  const uint64_t region = Lend();

  const ControlSocket with = Connect();
  const ControlFrame challenge = *AwaitFrame(with, Deadline());
  EXPECT_EQ(AnswerTo(with, HelloTo(challenge, secret)), ControlKind::kWelcome);
  EXPECT_EQ(Open(with, 1, region)->kind, ControlKind::kOpened);

  const ControlSocket without = Connect();
  EXPECT_EQ(AnswerTo(without, HelloTo(*AwaitFrame(without, Deadline()))), ControlKind::kRefused);

  const ControlSocket replaying = Connect();
  ASSERT_TRUE(AwaitFrame(replaying, Deadline()).ok());
  EXPECT_EQ(AnswerTo(replaying, HelloTo(challenge, secret)), ControlKind::kRefused);

  const ControlSocket swapping = Connect();
  ControlFrame other_queue = HelloTo(*AwaitFrame(swapping, Deadline()), secret);
  other_queue.address.number ^= 1;
  EXPECT_EQ(AnswerTo(swapping, other_queue), ControlKind::kRefused);

  const ControlSocket impatient = Connect();
  ASSERT_TRUE(AwaitFrame(impatient, Deadline()).ok());
  EXPECT_EQ(Open(impatient, 1, region)->kind, ControlKind::kGone) << "opened without a proof";
}

TEST_F(ControlThreadTest, ASenderIsWelcomeForAsLongAsItLikes) {
  Start({.hello_wait = Millis(5)});
  const ControlSocket sender = ConnectAsSender();
  const uint64_t region = Lend();
  // Both of these end after the sender's own wait would have.
  for (int i = 0; i < 2; ++i) {
    const ControlSocket silent = Connect();
    EXPECT_TRUE(AwaitFrame(silent, Deadline()).ok());
    EXPECT_FALSE(AwaitFrame(silent, Deadline()).ok());
  }

  const auto opened = Open(sender, 1, region);

  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->kind, ControlKind::kOpened);
}

TEST_F(ControlThreadTest, ASenderOfTooManyViewsIsEndedAndOthersAreNot) {
  Start({.views_max = 3});
  const uint64_t region = Lend();
  const ControlSocket greedy = ConnectAsSender();
  const ControlSocket other = ConnectAsSender();
  for (uint64_t view = 1; view <= 3; ++view) {
    ASSERT_EQ(Open(greedy, view, region)->kind, ControlKind::kOpened);
  }

  EXPECT_FALSE(Open(greedy, 4, region).ok());

  EXPECT_EQ(Open(other, 1, region)->kind, ControlKind::kOpened);
}

TEST_F(ControlThreadTest, AViewThatWasDroppedMakesRoom) {
  Start({.views_max = 1});
  const uint64_t region = Lend();
  const ControlSocket sender = ConnectAsSender();
  for (uint64_t view = 1; view <= 5; ++view) {
    ASSERT_EQ(Open(sender, view, region)->kind, ControlKind::kOpened);
    ASSERT_TRUE(sender.Send({.kind = ControlKind::kDrop, .view = view}));
  }
}

TEST_F(ControlThreadTest, WithLocalPeersItListensOnLoopbackAlone) {
  VerbsLocal& local = FakeLocal(1024);
  local.options.local_peers = true;
  control_ = *ControlThread::Start(local, {});

  EXPECT_THAT(test_support::ListeningAddresses(), testing::ElementsAre("127.0.0.1"));
  EXPECT_TRUE(control_->self().addresses.empty());
  EXPECT_GE(ConnectAsSender().fd(), 0);
}

// Hosts with Docker have an address in common, and with `ports` the same port: who connects there
// meets itself, or a stranger.
TEST_F(ControlThreadTest, AnOwnerIsFoundBehindAnAddressAtWhichAnotherProcessListens) {
  VerbsLocal& local = FakeLocal(1024);
  local.options.local_peers = true;
  control_ = *ControlThread::Start(local, {});
  const uint16_t port = control_->self().tcp_port;
  ControlAddress elsewhere = kOwnHost;
  elsewhere[15] = 2;
  const auto stranger = ListenForPeers(elsewhere, {.first = port, .last = port});
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  std::thread refusing([&stranger] {
    const Nanos end = Deadline();
    ControlSocket socket;
    while (socket.fd() < 0 && RealClock().Now() < end) {
      socket = AcceptPeer(stranger->socket);
      std::this_thread::yield();
    }
    socket.Send(MakeChallenge());
    EXPECT_TRUE(AwaitFrame(socket, end).ok());
    socket.Send({.kind = ControlKind::kRefused});
  });
  const auto member = *ControlThread::Start(FakeLocal(1024));
  VerbsDescriptor descriptor = control_->self();
  ++descriptor.host;  // Another one, so that its addresses alone are tried.
  descriptor.addresses = {elsewhere, kOwnHost};

  const auto link = member->Connect(descriptor);

  refusing.join();
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(member->OpenView(**link, Lend()).ok());
}

// Connections are made, and nobody says anything there.
TEST_F(ControlThreadTest, AddressesThatAreSilentHaveOneTimeTogether) {
  ControlAddress elsewhere = kOwnHost;
  elsewhere[15] = 2;
  const auto silent = ListenForPeers(elsewhere);
  ASSERT_TRUE(silent.ok()) << silent.status();
  const auto member =
      *ControlThread::Start(FakeLocal(1024), ClusterSecret(), {.reach_wait = Millis(50)});
  VerbsDescriptor descriptor = member->self();
  ++descriptor.host;
  descriptor.tcp_port = silent->port;
  descriptor.addresses = {elsewhere, elsewhere, elsewhere};

  const absl::Status reached = member->Connect(descriptor).status();

  EXPECT_TRUE(absl::IsUnavailable(reached)) << reached;
  EXPECT_THAT(std::string(reached.message()),
              testing::HasSubstr("; no time was left for its other addresses"));
}

// A port that is taken in IPv6 alone stands for a host that has none.
TEST(ControlSocketTest, ListensAndConnectsByIpv4WhereThereIsNoIpv6) {
  const ControlSocket taken(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int alone = 1;
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  socklen_t size = sizeof at;
  if (taken.fd() >= 0) {
    ASSERT_EQ(setsockopt(taken.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof alone), 0);
    ASSERT_EQ(bind(taken.fd(), reinterpret_cast<const sockaddr*>(&at), size), 0);
    ASSERT_EQ(getsockname(taken.fd(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  }
  const uint16_t port = ntohs(at.sin6_port);

  const auto listener = ListenForPeers({}, {.first = port, .last = port});

  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_THAT(test_support::ListeningAddresses(), testing::ElementsAre("0.0.0.0"));
  const auto socket = ConnectToPeer(kOwnHost, listener->port, Deadline());
  ASSERT_TRUE(socket.ok()) << socket.status();
  sockaddr_storage own = {};
  socklen_t own_size = sizeof own;
  ASSERT_EQ(getsockname(socket->fd(), reinterpret_cast<sockaddr*>(&own), &own_size), 0);
  EXPECT_EQ(own.ss_family, AF_INET);
}

}  // namespace
}  // namespace lamina::transport
