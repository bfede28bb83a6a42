// SPDX-License-Identifier: Apache-2.0
//
// What the control thread takes from peers that do not behave, over real sockets of the loopback
// interface and a device without hardware.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/listening_addresses.h"
#include "tests/unit/transport/verbs/fake_verbs.h"
#include "transport/verbs/control_thread_internal.h"

namespace lamina::transport {
namespace {

// Generous: it ends a test that hangs.
Nanos Deadline() { return RealClock().Now() + Seconds(60); }

// Sends frames of one kind on a connection, as fast as they are taken, until it is told to stop or
// the other end cuts it.
class Flood {
 public:
  Flood(ControlSocket socket, ControlKind kind) : socket_(std::move(socket)) {
    frames_.fill({.kind = kind, .view = 1});
    thread_ = std::thread([this] { Run(); });
  }
  ~Flood() { Stop(); }

  // Returns once thousands of frames were taken from it, or it was cut.
  void AwaitFlow() const {
    const Nanos end = Deadline();
    while (!cut_.load() && sent_bytes_.load() < kFlowBytes && RealClock().Now() < end) {
      std::this_thread::yield();
    }
  }
  // Whether the other end cuts it.
  bool IsCut() {
    const Nanos end = Deadline();
    while (!cut_.load() && RealClock().Now() < end) {
      std::this_thread::yield();
    }
    return cut_.load();
  }
  // Whether the other end had cut it before.
  bool Stop() {
    stop_.store(true);
    if (thread_.joinable()) {
      thread_.join();
    }
    return cut_.load();
  }

 private:
  static constexpr size_t kFlowBytes = 1u << 20;

  void Run() {
    const auto* const bytes = reinterpret_cast<const char*>(frames_.data());
    const Nanos end = Deadline();
    size_t at = 0;
    while (!stop_.load() && RealClock().Now() < end) {
      const ssize_t sent =
          send(socket_.fd(), bytes + at, sizeof frames_ - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        at = (at + static_cast<size_t>(sent)) % sizeof frames_;
        sent_bytes_.fetch_add(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        pollfd one = {.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
        poll(&one, 1, /*timeout=*/10);
      } else if (errno != EINTR) {
        cut_.store(true);
        return;
      }
    }
  }

  const ControlSocket socket_;
  std::array<ControlFrame, 1024> frames_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cut_{false};
  std::atomic<size_t> sent_bytes_{0};
  std::thread thread_;
};

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

TEST_F(ControlThreadTest, AStrangerThatSendsWithoutEndIsCutAndKeepsNobodyWaiting) {
  Start({});
  for (const ControlKind kind : {ControlKind::kDrop, ControlKind::kClosed, ControlKind::kDrained,
                                 ControlKind::kOpen, ControlKind::kHello}) {
    ControlSocket stranger = Connect();
    ASSERT_TRUE(AwaitFrame(stranger, Deadline()).ok());
    Flood flood(std::move(stranger), kind);

    EXPECT_TRUE(flood.IsCut()) << "kind " << static_cast<uint32_t>(kind);
    const uint64_t region = Lend();
    EXPECT_EQ(Open(ConnectAsSender(), 1, region)->kind, ControlKind::kOpened);
    control_->CloseRegion(region);
  }
}

TEST_F(ControlThreadTest, ASenderThatSendsWithoutEndKeepsNobodyWaiting) {
  Start({});
  const ControlSocket other = ConnectAsSender();
  Flood flood(ConnectAsSender(), ControlKind::kDrop);
  flood.AwaitFlow();

  const uint64_t region = Lend();
  EXPECT_EQ(Open(other, 1, region)->kind, ControlKind::kOpened);
  EXPECT_TRUE(other.Send({.kind = ControlKind::kDrop, .view = 1}));
  control_->CloseRegion(region);

  EXPECT_FALSE(flood.Stop());
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
      socket = AcceptPeer(stranger->socket).socket;
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

class FrameReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    near_ = ControlSocket(ends[0]);
    far_ = ControlSocket(ends[1]);
  }

  // Sends frames of the views 0 to `count` - 1.
  void Send(int count) const {
    for (int view = 0; view < count; ++view) {
      ASSERT_TRUE(far_.Send({.kind = ControlKind::kDrop, .view = static_cast<uint64_t>(view)}));
    }
  }

  ControlSocket near_;
  ControlSocket far_;
};

TEST_F(FrameReaderTest, OneCallTakesSoManyFramesAndTheNextOneGoesOn) {
  Send(FrameReader::kFramesMax + 1);
  FrameReader reader;
  std::vector<uint64_t> views;
  const auto take = [&views](const ControlFrame& frame) {
    views.push_back(frame.view);
    return true;
  };

  EXPECT_TRUE(reader.Read(near_, take));
  EXPECT_EQ(views.size(), static_cast<size_t>(FrameReader::kFramesMax));

  EXPECT_TRUE(reader.Read(near_, take));
  EXPECT_EQ(views.size(), static_cast<size_t>(FrameReader::kFramesMax) + 1);
  EXPECT_TRUE(std::is_sorted(views.begin(), views.end()));
}

TEST_F(FrameReaderTest, NothingIsTakenBehindAFrameThatEndsIt) {
  Send(3);
  FrameReader reader;
  int taken = 0;

  EXPECT_FALSE(reader.Read(near_, [&taken](const ControlFrame& frame) {
    ++taken;
    return frame.view == 0;
  }));

  EXPECT_EQ(taken, 2);
}

// The end that closes first keeps the port in TIME_WAIT.
TEST(ControlSocketTest, APortWhoseConnectionsWereClosedHereIsTakenAgainAtOnce) {
  for (const ControlAddress& at : {ControlAddress{}, kOwnHost}) {
    uint16_t port = 0;
    {
      const auto listener = ListenForPeers(at);
      ASSERT_TRUE(listener.ok()) << listener.status();
      port = listener->port;
      const auto peer = ConnectToPeer(kOwnHost, port, Deadline());
      ASSERT_TRUE(peer.ok()) << peer.status();
      {
        ControlSocket accepted;
        const Nanos end = Deadline();
        while (accepted.fd() < 0 && RealClock().Now() < end) {
          accepted = AcceptPeer(listener->socket).socket;
        }
      }
      EXPECT_FALSE(AwaitFrame(*peer, Deadline()).ok());
    }

    const auto again = ListenForPeers(at, {.first = port, .last = port});

    EXPECT_TRUE(again.ok()) << again.status();
  }
}

TEST(ControlSocketTest, ListenersOfOneRangeHaveAPortEach) {
  const uint16_t port = ListenForPeers(kOwnHost)->port;
  const PortRange range = {.first = port, .last = port};

  const auto first = ListenForPeers(kOwnHost, range);
  const auto second = ListenForPeers(kOwnHost, range);

  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(ToString(range)));
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("in use"));
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
