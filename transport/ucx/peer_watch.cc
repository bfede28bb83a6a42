// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/peer_watch.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "transport/shm/shm_descriptor.h"
#include "transport/ucx/peer_watch_server_internal.h"

namespace lamina::transport {
namespace {

constexpr size_t kAddressesMax = 8;

// An address: this head, then `addresses` IpAddresses.
struct AddressHead {
  WatchId owner;
  uint64_t host;
  uint16_t port;
  uint16_t addresses;
  uint32_t zero;
};
static_assert(sizeof(AddressHead) == 32);

struct WatchAddress {
  AddressHead head;
  std::vector<IpAddress> addresses;
};

std::string Encode(const WatchAddress& address) {
  std::string bytes(reinterpret_cast<const char*>(&address.head), sizeof address.head);
  for (const IpAddress& ip : address.addresses) {
    bytes.append(reinterpret_cast<const char*>(ip.data()), ip.size());
  }
  return bytes;
}

absl::StatusOr<WatchAddress> Decode(absl::string_view bytes) {
  WatchAddress address;
  if (bytes.size() >= sizeof address.head) {
    std::memcpy(&address.head, bytes.data(), sizeof address.head);
    bytes.remove_prefix(sizeof address.head);
    if (address.head.addresses <= kAddressesMax + 1 &&
        bytes.size() == address.head.addresses * sizeof(IpAddress)) {
      address.addresses.resize(address.head.addresses);
      if (!bytes.empty()) {
        std::memcpy(address.addresses.data(), bytes.data(), bytes.size());
      }
      return address;
    }
  }
  return absl::InvalidArgumentError("ucx: the address of the peer's watch is malformed");
}

// Tries all addresses of an owner at once and keeps the one that answers.
class Caller {
 public:
  Caller(const WatchAddress& owner, const WatchId& region, const ClusterSecret& secret)
      : owner_(owner), secret_(secret), region_(region) {
    for (const IpAddress& ip : owner.addresses) {
      absl::StatusOr<Socket> socket = BeginConnect(ip, owner.head.port);
      Attempt attempt{.ip = ip, .outcome = "no answer"};
      if (socket.ok()) {
        attempt.socket = *std::move(socket);
      } else {
        attempt.outcome = std::string(socket.status().message());
      }
      attempts_.push_back(std::move(attempt));
    }
  }

  absl::StatusOr<Socket> Call(Nanos deadline) {
    for (;;) {
      std::vector<pollfd> polled;
      std::vector<Attempt*> order;
      for (Attempt& attempt : attempts_) {
        if (attempt.socket.get() >= 0) {
          const short events = attempt.stage == Stage::kConnects ? POLLOUT : POLLIN;
          polled.push_back({.fd = attempt.socket.get(), .events = events});
          order.push_back(&attempt);
        }
      }
      const Nanos left = deadline - RealClock().Now();
      if (polled.empty() || left <= 0) {
        return Unreached();
      }
      poll(polled.data(), polled.size(), static_cast<int>(left / Millis(1)) + 1);
      for (size_t i = 0; i < order.size(); ++i) {
        if (polled[i].revents == 0) {
          continue;
        }
        const char answer = Advance(*order[i]);
        if (answer == kWatchThere) {
          return std::move(order[i]->socket);
        }
        if (answer == kWatchUnknown) {
          return absl::UnavailableError(
              "ucx: the peer has destroyed the region, or made it anew; ask it for a new "
              "descriptor");
        }
      }
    }
  }

 private:
  enum class Stage : uint8_t { kConnects, kIsChallenged, kAsked };
  struct Attempt {
    IpAddress ip;
    Socket socket;
    Stage stage = Stage::kConnects;
    std::string received;  // Bytes of the challenge so far.
    std::string outcome;
  };

  // The attempt loses its socket.
  static char Fail(Attempt& attempt, std::string why) {
    attempt.outcome = std::move(why);
    attempt.socket = Socket();
    return 0;
  }

  // The answer, or 0 for none yet.
  char Advance(Attempt& attempt) {
    if (attempt.stage == Stage::kConnects) {
      const int error = ConnectError(attempt.socket);
      attempt.stage = Stage::kIsChallenged;
      return error == 0 ? char{0} : Fail(attempt, std::strerror(error));
    }
    std::array<char, sizeof(WatchChallenge)> buffer;
    const size_t wanted =
        attempt.stage == Stage::kAsked ? 1 : sizeof(WatchChallenge) - attempt.received.size();
    const ssize_t count = recv(attempt.socket.get(), buffer.data(), wanted, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return 0;
    }
    if (count <= 0) {
      return Fail(attempt, "closed the connection");
    }
    if (attempt.stage == Stage::kAsked) {
      return Answered(attempt, buffer[0]);
    }
    attempt.received.append(buffer.data(), static_cast<size_t>(count));
    return attempt.received.size() < sizeof(WatchChallenge) ? char{0} : Ask(attempt);
  }

  char Ask(Attempt& attempt) const {
    WatchChallenge challenge;
    std::memcpy(&challenge, attempt.received.data(), sizeof challenge);
    if (challenge.magic != kWatchMagic) {
      return Fail(attempt, "another process answers there");
    }
    WatchHello hello = {
        .magic = kWatchMagic, .owner = owner_.head.owner, .region = region_, .proof = {}};
    const std::string proof = OpenerProof(secret_, challenge, hello);
    std::copy(proof.begin(), proof.end(), hello.proof.begin());
    if (send(attempt.socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
      return Fail(attempt, std::strerror(errno));
    }
    attempt.stage = Stage::kAsked;
    return 0;
  }

  static char Answered(Attempt& attempt, char answer) {
    if (answer == kWatchThere || answer == kWatchUnknown) {
      return answer;
    }
    return Fail(attempt, answer == kWatchStranger
                             ? "it does not know this process: the two have not the same token file"
                             : "another process answers there");
  }

  absl::Status Unreached() const {
    const std::string tried =
        absl::StrJoin(attempts_, ", ", [&](std::string* out, const Attempt& attempt) {
          absl::StrAppend(out, ToString(attempt.ip), " port ", owner_.head.port, ": ",
                          attempt.outcome);
        });
    return absl::UnavailableError(absl::StrCat(
        "ucx: the peer is gone or not reachable (", tried.empty() ? "it has no address" : tried,
        "); between hosts, let their TCP ports through the firewall"));
  }

  const WatchAddress& owner_;
  const ClusterSecret& secret_;
  const WatchId region_;
  std::vector<Attempt> attempts_;
};

}  // namespace

WatchId DrawWatchId() {
  WatchId id;
  LAMINA_CHECK(getentropy(&id, sizeof id) == 0);
  return id;
}

absl::StatusOr<std::unique_ptr<PeerWatch>> PeerWatch::Start(
    PeerReach reach, const ClusterSecret& secret, const PortRange& ports,
    absl::Span<const std::string> networks) {
  LAMINA_ASSIGN_OR_RETURN(Listener listener, Listen(reach, ports));
  WatchAddress address = {
      .head = {.owner = DrawWatchId(), .host = HostFingerprint(), .port = listener.port},
      .addresses = reach == PeerReach::kAnyHost
                       ? AddressesForPeers(InterfaceAddresses(), networks, kAddressesMax)
                       : std::vector<IpAddress>()};
  address.addresses.insert(address.addresses.begin(), kLoopback);
  address.head.addresses = static_cast<uint16_t>(address.addresses.size());
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<PeerWatchServer> server,
                          PeerWatchServer::Start(std::move(listener), address.head.owner, secret));
  return std::unique_ptr<PeerWatch>(new PeerWatch(std::move(server), Encode(address), secret));
}

PeerWatch::PeerWatch(std::unique_ptr<PeerWatchServer> server, std::string address,
                     ClusterSecret secret)
    : server_(std::move(server)), address_(std::move(address)), secret_(std::move(secret)) {}

PeerWatch::~PeerWatch() = default;

void PeerWatch::Announce(const WatchId& region) { server_->Announce(region); }
void PeerWatch::Withdraw(const WatchId& region) { server_->Withdraw(region); }

absl::StatusOr<std::shared_ptr<const WatchedRegion>> PeerWatch::Open(absl::string_view address,
                                                                     const WatchId& region,
                                                                     Nanos deadline) {
  LAMINA_ASSIGN_OR_RETURN(WatchAddress owner, Decode(address));
  if (owner.head.host != HostFingerprint()) {
    // The loopback of another host is not ours.
    std::erase(owner.addresses, kLoopback);
  }
  LAMINA_ASSIGN_OR_RETURN(Socket socket, Caller(owner, region, secret_).Call(deadline));
  return server_->Watch(std::move(socket));
}

void PeerWatch::Forget(const std::shared_ptr<const WatchedRegion>& watched) {
  server_->Forget(watched);
}

absl::StatusOr<WatchId> PeerWatch::OwnerOf(absl::string_view address) {
  LAMINA_ASSIGN_OR_RETURN(const WatchAddress decoded, Decode(address));
  return decoded.head.owner;
}

}  // namespace lamina::transport
