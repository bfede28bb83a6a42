// SPDX-License-Identifier: Apache-2.0
//
// Who may open a region: openers prove that they know the cluster's secret.
#include "transport/ucx/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "transport/ucx/peer_watch_server_internal.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

// Generous: it ends a test that hangs.
constexpr Nanos kWait = Seconds(60);

ClusterSecret SecretOf(const std::string& token) {
  const std::string path = testing::TempDir() + "/peer_watch_token";
  std::ofstream(path, std::ios::trunc) << token;
  chmod(path.c_str(), 0600);
  return ClusterSecret::Read(path).value();
}

bool IsReadable(const Socket& socket) {
  pollfd one = {.fd = socket.get(), .events = POLLIN, .revents = 0};
  return poll(&one, 1, static_cast<int>(kWait / Millis(1))) == 1;
}

// The next `size` bytes; fewer when the connection ends before.
std::string Receive(const Socket& socket, size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size && IsReadable(socket)) {
    const ssize_t got = recv(socket.get(), bytes.data() + have, size - have, 0);
    if (got <= 0) {
      break;
    }
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

class PeerWatchTest : public testing::Test {
 protected:
  PeerWatchTest() : secret_(SecretOf("0123456789abcdef")), region_(DrawWatchId()) {
    Listener listener = Listen(PeerReach::kAnyHost).value();
    port_ = listener.port;
    owner_ = DrawWatchId();
    server_ = PeerWatchServer::Start(std::move(listener), owner_, secret_).value();
    server_->Announce(region_);
  }

  Socket Connect(WatchChallenge& challenge) const {
    Socket socket = BeginConnect(kLoopback, port_).value();
    const std::string bytes = Receive(socket, sizeof challenge);
    EXPECT_EQ(bytes.size(), sizeof challenge);
    std::memcpy(&challenge, bytes.data(), std::min(bytes.size(), sizeof challenge));
    return socket;
  }

  WatchHello Hello() const {
    return {.magic = kWatchMagic, .owner = owner_, .region = region_, .proof = {}};
  }

  static WatchHello Proved(WatchHello hello, const WatchChallenge& challenge,
                           const ClusterSecret& secret) {
    const std::string proof = OpenerProof(secret, challenge, hello);
    std::copy(proof.begin(), proof.end(), hello.proof.begin());
    return hello;
  }

  static std::string Answer(const Socket& socket, const WatchHello& hello) {
    EXPECT_EQ(send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof hello));
    return Receive(socket, 1);
  }

  const ClusterSecret secret_;
  const WatchId region_;
  WatchId owner_ = {};
  uint16_t port_ = 0;
  std::unique_ptr<PeerWatchServer> server_;
};

TEST_F(PeerWatchTest, AProofIsOfOneConnectionOneRegionAndTheSecret) {
  WatchChallenge first;
  const Socket right = Connect(first);
  EXPECT_EQ(Answer(right, Proved(Hello(), first, secret_)), "Y");

  WatchChallenge challenge;
  const Socket without = Connect(challenge);
  EXPECT_EQ(Answer(without, Proved(Hello(), challenge, ClusterSecret())), "S");

  const Socket replaying = Connect(challenge);
  EXPECT_EQ(Answer(replaying, Proved(Hello(), first, secret_)), "S");

  const Socket swapping = Connect(challenge);
  WatchHello other = Proved(Hello(), challenge, secret_);
  other.region = DrawWatchId();
  EXPECT_EQ(Answer(swapping, other), "S") << "whether a region exists is told to members alone";
}

TEST_F(PeerWatchTest, AWrongProofEndsTheConnection) {
  WatchChallenge challenge;
  const Socket socket = Connect(challenge);

  EXPECT_EQ(Answer(socket, Hello()), "S");
  EXPECT_EQ(Receive(socket, 1), "");
}

// Who would make descriptors free, by Forget() or Withdraw(), needs the server's lock.
TEST_F(PeerWatchTest, APeerForWhomThereIsNoDescriptorKeepsNobodyWaiting) {
  const Socket peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(peer.get());
  ASSERT_GE(next, 0);
  close(next);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(next);  // All below are taken.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  sockaddr_in owner = {};
  owner.sin_family = AF_INET;
  owner.sin_port = htons(port_);
  owner.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = connect(peer.get(), reinterpret_cast<sockaddr*>(&owner), sizeof owner);

  Nanos waited = 0;
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Nanos start = RealClock().Now();
    server_->Announce(region_);
    waited += RealClock().Now() - start;
  }

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_LT(waited, Millis(500));
  EXPECT_EQ(Receive(peer, sizeof(WatchChallenge)).size(), sizeof(WatchChallenge));
}

TEST(PeerWatchServerTest, StartsNotWithoutADescriptorForItsEvent) {
  Listener listener = Listen(PeerReach::kThisHost).value();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);

  const absl::Status started =
      PeerWatchServer::Start(std::move(listener), DrawWatchId(), ClusterSecret()).status();

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(started)) << started;
  EXPECT_THAT(std::string(started.message()), HasSubstr("file descriptor"));
}

// The end that closes first keeps the port in TIME_WAIT.
TEST(PeerWatchSocketTest, APortWhoseConnectionsWereClosedHereIsTakenAgainAtOnce) {
  for (const PeerReach reach : {PeerReach::kAnyHost, PeerReach::kThisHost}) {
    uint16_t port = 0;
    {
      const Listener listener = Listen(reach).value();
      port = listener.port;
      const Socket peer = BeginConnect(kLoopback, port).value();
      ASSERT_TRUE(IsReadable(listener.socket));
      { const Socket accepted(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
      EXPECT_EQ(Receive(peer, 1), "");
    }
    const PortRange range = {.first = port, .last = port};

    const absl::StatusOr<Listener> again = Listen(reach, range);

    ASSERT_TRUE(again.ok()) << again.status();
    const absl::Status taken = Listen(reach, range).status();
    EXPECT_TRUE(absl::IsResourceExhausted(taken)) << taken;
    EXPECT_THAT(std::string(taken.message()), HasSubstr("in use"));
  }
}

TEST(PeerWatchSecretTest, PeersOpenEachOthersRegionsOnlyWithTheSameSecret) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");
  const auto owner = PeerWatch::Start(PeerReach::kAnyHost, secret).value();
  const auto member = PeerWatch::Start(PeerReach::kAnyHost, secret).value();
  const auto stranger =
      PeerWatch::Start(PeerReach::kAnyHost, SecretOf("another secret of a stranger")).value();
  const WatchId region = DrawWatchId();
  owner->Announce(region);
  const Nanos deadline = RealClock().Now() + kWait;

  EXPECT_TRUE(member->Open(owner->address(), region, deadline).ok());
  const absl::Status refused = stranger->Open(owner->address(), region, deadline).status();

  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the same token file"));
}

}  // namespace
}  // namespace lamina::transport
