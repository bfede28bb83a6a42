// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/check.h"
#include "transport/ucx/peer_watch_server_internal.h"

namespace lamina::transport {
namespace {

static_assert(sizeof(WatchChallenge) == 40);
static_assert(sizeof(WatchHello) == 72);

constexpr absl::string_view kOpenerLabel = "lamina ucx watch 2: opener";

// Somebody who connects and says nothing is not one of ours.
constexpr Nanos kHelloMax = Seconds(10);
constexpr int kPollMillis = 1000;
constexpr std::chrono::seconds kWithdrawMax{1};
// While the process has no descriptor for one more, who asks stays in the queue.
constexpr int kAcceptPauseMillis = 20;

bool SendByte(const Socket& socket, char byte) {
  return send(socket.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// What the proof of a hello is over: the nonce, the owner and the region.
std::array<absl::string_view, 3> TranscriptOf(const WatchChallenge& challenge,
                                              const WatchHello& hello) {
  return {absl::string_view(challenge.nonce.data(), challenge.nonce.size()),
          absl::string_view(reinterpret_cast<const char*>(&hello.owner), sizeof hello.owner),
          absl::string_view(reinterpret_cast<const char*>(&hello.region), sizeof hello.region)};
}

}  // namespace

std::string OpenerProof(const ClusterSecret& secret, const WatchChallenge& challenge,
                        const WatchHello& hello) {
  return secret.Prove(kOpenerLabel, TranscriptOf(challenge, hello));
}

absl::StatusOr<std::unique_ptr<PeerWatchServer>> PeerWatchServer::Start(Listener listener,
                                                                        const WatchId& id,
                                                                        ClusterSecret secret) {
  Socket wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake.get() < 0) {  // Nothing would wake the thread, not even to end.
    return absl::ResourceExhaustedError("ucx: no file descriptor is left for an event");
  }
  return std::unique_ptr<PeerWatchServer>(
      new PeerWatchServer(std::move(listener), std::move(wake), id, std::move(secret)));
}

PeerWatchServer::PeerWatchServer(Listener listener, Socket wake, const WatchId& id,
                                 ClusterSecret secret)
    : id_(id),
      secret_(std::move(secret)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      thread_([this] { Loop(); }) {}

PeerWatchServer::~PeerWatchServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    Wake();
  }
  thread_.join();
}

void PeerWatchServer::Wake() {
  const uint64_t one = 1;
  // Fails only when a wake is pending already.
  static_cast<void>(!write(wake_.get(), &one, sizeof one));
}

void PeerWatchServer::Announce(const WatchId& region) {
  const std::lock_guard lock(mutex_);
  regions_.insert(region);
}

void PeerWatchServer::Withdraw(const WatchId& region) {
  std::unique_lock lock(mutex_);
  regions_.erase(region);
  const auto serves = [&](const Connection& connection) {
    return connection.greeted && connection.watched == nullptr && connection.region == region;
  };
  for (Connection& connection : connections_) {
    if (serves(connection) && !SendByte(connection.socket, kWatchDestroyed)) {
      connection.over = true;
    }
  }
  Wake();
  const bool all_know = closed_.wait_for(lock, kWithdrawMax, [&] {
    return std::none_of(connections_.begin(), connections_.end(), serves);
  });
  if (!all_know) {
    for (Connection& connection : connections_) {
      connection.over = connection.over || serves(connection);
    }
    Wake();
  }
}

std::shared_ptr<const WatchedRegion> PeerWatchServer::Watch(Socket socket) {
  WatchForSilence(socket);
  auto watched = std::make_shared<WatchedRegion>();
  const std::lock_guard lock(mutex_);
  connections_.push_back({.socket = std::move(socket), .watched = watched, .greeted = true});
  Wake();
  return watched;
}

void PeerWatchServer::Forget(const std::shared_ptr<const WatchedRegion>& watched) {
  const std::lock_guard lock(mutex_);
  for (Connection& connection : connections_) {
    connection.over = connection.over || connection.watched == watched;
  }
  Wake();
}

bool PeerWatchServer::Accept() {
  for (;;) {
    Socket socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      return errno != EMFILE && errno != ENFILE;
    }
    if (connections_.size() < PeerWatch::kOpenersMax) {
      WatchForSilence(socket);
      connections_.push_back({.socket = std::move(socket), .since = RealClock().Now()});
      Challenge(connections_.back());
    }
  }
}

// A socket that is new takes so little at once.
void PeerWatchServer::Challenge(Connection& connection) {
  const std::string nonce = DrawNonce();
  connection.challenge.magic = kWatchMagic;
  std::copy(nonce.begin(), nonce.end(), connection.challenge.nonce.begin());
  const ssize_t sent = send(connection.socket.get(), &connection.challenge,
                            sizeof connection.challenge, MSG_NOSIGNAL | MSG_DONTWAIT);
  connection.over = sent != sizeof connection.challenge;
}

void PeerWatchServer::Read(Connection& connection) {
  std::array<char, sizeof(WatchHello)> buffer;
  const ssize_t count = recv(connection.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (connection.watched != nullptr) {
    // Release: the opener that reads it finds all that this thread knew.
    const bool destroyed = count > 0 && buffer[0] == kWatchDestroyed;
    connection.watched->state.store(destroyed ? OwnerState::kRegionDestroyed : OwnerState::kGone,
                                    std::memory_order_release);
    connection.over = true;
    return;
  }
  if (count <= 0 || connection.greeted) {
    connection.over = true;
    return;
  }
  connection.received.append(buffer.data(), static_cast<size_t>(count));
  if (connection.received.size() >= sizeof(WatchHello)) {
    Greet(connection);
  }
}

void PeerWatchServer::Greet(Connection& connection) {
  WatchHello hello;
  std::memcpy(&hello, connection.received.data(), sizeof hello);
  const bool proved = secret_.Verify(absl::string_view(hello.proof.data(), hello.proof.size()),
                                     kOpenerLabel, TranscriptOf(connection.challenge, hello));
  const bool ours = hello.magic == kWatchMagic && hello.owner == id_;
  const bool there = proved && ours && regions_.contains(hello.region);
  connection.greeted = true;
  connection.region = hello.region;
  const char answer = there     ? kWatchThere
                      : !proved ? kWatchStranger
                      : ours    ? kWatchUnknown
                                : kWatchMistaken;
  connection.over = !SendByte(connection.socket, answer) || !there;
}

void PeerWatchServer::DropLateGreeters() {
  const Nanos now = RealClock().Now();
  for (Connection& connection : connections_) {
    connection.over =
        connection.over || (!connection.greeted && now - connection.since > kHelloMax);
  }
}

void PeerWatchServer::Loop() {
  std::vector<pollfd> polled;
  std::vector<Connection*> order;
  bool accepts = true;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    DropLateGreeters();
    connections_.remove_if([](const Connection& connection) { return connection.over; });
    closed_.notify_all();
    // A negative number is passed over.
    polled = {{.fd = wake_.get(), .events = POLLIN},
              {.fd = accepts ? listener_.socket.get() : -1, .events = POLLIN}};
    order.clear();
    bool greeting = false;
    for (Connection& connection : connections_) {
      polled.push_back({.fd = connection.socket.get(), .events = POLLIN});
      order.push_back(&connection);
      greeting = greeting || !connection.greeted;
    }
    lock.unlock();
    poll(polled.data(), polled.size(), !accepts ? kAcceptPauseMillis : greeting ? kPollMillis : -1);
    lock.lock();
    uint64_t wakes = 0;
    static_cast<void>(!read(wake_.get(), &wakes, sizeof wakes));
    for (size_t i = 0; i < order.size(); ++i) {
      if (polled[i + 2].revents != 0 && !order[i]->over) {
        Read(*order[i]);
      }
    }
    accepts = polled[1].revents == 0 || Accept();
  }
  connections_.clear();
}

}  // namespace lamina::transport
