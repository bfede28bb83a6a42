// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/verbs/control_socket_internal.h"

namespace lamina::transport {
namespace {

constexpr int kBacklog = 64;
constexpr int kSocketKind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr ControlAddress kAnyIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};

// A host that vanished is found within about ten seconds.
void SetUp(int fd) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

bool IsMapped(const ControlAddress& address) {
  return std::equal(kOwnHost.begin(), kOwnHost.begin() + 12, address.begin());
}

// An address as the system has it: a mapped one is IPv4's own, as a host may have no IPv6.
struct SystemAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SystemAddress SystemAddressOf(const ControlAddress& address, uint16_t port) {
  SystemAddress result;
  if (IsMapped(address)) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.data() + 12, sizeof v4.sin_addr);
    std::memcpy(&result.storage, &v4, sizeof v4);
    result.size = sizeof v4;
  } else {
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, address.data(), address.size());
    std::memcpy(&result.storage, &v6, sizeof v6);
    result.size = sizeof v6;
  }
  return result;
}

// The port that a socket is bound to.
uint16_t PortOf(const ControlSocket& socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size);
  if (bound.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &bound, sizeof v4);
    return ntohs(v4.sin_port);
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, &bound, sizeof v6);
  return ntohs(v6.sin6_port);
}

// A socket that listens at this address and port. Errors: kUnavailable  what the system says.
absl::StatusOr<ControlSocket> ListenAtPort(const ControlAddress& at, uint16_t port) {
  const SystemAddress address = SystemAddressOf(at, port);
  ControlSocket socket(::socket(address.family(), kSocketKind, 0));
  if (socket.fd() >= 0) {
    // Without it a port is taken for a minute after a process that had connections there. With it
    // two processes may bind one port, and listen() refuses the second.
    const int on = 1;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.family() == AF_INET6) {
      const int both = 0;
      setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    }
    if (bind(socket.fd(), address.get(), address.size) == 0 && listen(socket.fd(), kBacklog) == 0) {
      return socket;
    }
  }
  return absl::UnavailableError(std::strerror(errno));
}

// Listens at this address alone, or at all of IPv6 and IPv4 for the one that is all zeros.
absl::StatusOr<ControlListener> ListenAt(const ControlAddress& at, const PortRange& ports) {
  absl::StatusOr<ControlSocket> socket = absl::UnavailableError("no port was tried");
  const bool listens = BindWithin(ports, [&](uint16_t port) {
    socket = ListenAtPort(at, port);
    return socket.ok();
  });
  if (!listens) {
    return absl::UnavailableError(
        absl::StrCat("verbs: cannot listen for peers",
                     ports.is_set() ? absl::StrCat(" at any port of ", ToString(ports)) : "", ": ",
                     socket.status().message()));
  }
  const uint16_t port = PortOf(*socket);
  return ControlListener{*std::move(socket), port};
}

// Waits until `events` or the deadline; false at the deadline.
bool AwaitEvents(int fd, short events, Nanos deadline) {
  for (;;) {
    const Nanos left = deadline - RealClock().Now();
    if (left <= 0) {
      return false;
    }
    pollfd one = {.fd = fd, .events = events, .revents = 0};
    if (poll(&one, 1, static_cast<int>(left / Millis(1)) + 1) > 0) {
      return true;
    }
  }
}

}  // namespace

ControlSocket::~ControlSocket() {
  if (fd_ >= 0) {
    shutdown(fd_, SHUT_RDWR);
    close(fd_);
  }
}

bool ControlSocket::Send(const ControlFrame& frame) const {
  return send(fd_, &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof frame;
}

int FrameReader::Fill(const ControlSocket& socket) {
  for (;;) {
    const ssize_t got = recv(socket.fd(), reinterpret_cast<char*>(&frame_) + have_,
                             sizeof frame_ - have_, MSG_DONTWAIT);
    if (got > 0) {
      have_ += static_cast<size_t>(got);
      return static_cast<int>(got);
    }
    if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return -1;
    }
    if (errno == EAGAIN) {
      return 0;
    }
  }
}

std::string ToText(const ControlAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET6, address.data(), text.data(), text.size());
  absl::string_view result = text.data();
  absl::ConsumePrefix(&result, "::ffff:");
  return std::string(result);
}

absl::StatusOr<ControlListener> ListenForPeers(const ControlAddress& at, const PortRange& ports) {
  absl::StatusOr<ControlListener> listener = ListenAt(at, ports);
  if (!listener.ok() && at == ControlAddress{}) {  // A host may have no IPv6.
    return ListenAt(kAnyIpv4, ports);
  }
  return listener;
}

AcceptedPeer AcceptPeer(const ControlSocket& listener) {
  const int fd = accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    return {.socket = ControlSocket(), .out_of_files = errno == EMFILE || errno == ENFILE};
  }
  SetUp(fd);
  return {.socket = ControlSocket(fd)};
}

absl::StatusOr<ControlSocket> ConnectToPeer(const ControlAddress& address, uint16_t port,
                                            Nanos deadline) {
  const SystemAddress to = SystemAddressOf(address, port);
  ControlSocket socket(::socket(to.family(), kSocketKind, 0));
  int error = 0;
  if (socket.fd() < 0 || (connect(socket.fd(), to.get(), to.size) != 0 && errno != EINPROGRESS)) {
    error = errno;
  } else if (!AwaitEvents(socket.fd(), POLLOUT, deadline)) {
    error = ETIMEDOUT;
  } else {
    socklen_t size = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) {
    return absl::UnavailableError(std::strerror(error));
  }
  SetUp(socket.fd());
  return socket;
}

absl::StatusOr<ControlFrame> AwaitFrame(const ControlSocket& socket, Nanos deadline) {
  ControlFrame frame;
  for (size_t have = 0; have < sizeof frame;) {
    if (!AwaitEvents(socket.fd(), POLLIN, deadline)) {
      return absl::UnavailableError("the peer does not answer");
    }
    const ssize_t got =
        recv(socket.fd(), reinterpret_cast<char*>(&frame) + have, sizeof frame - have, 0);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
      return absl::UnavailableError("the peer ended the connection");
    }
    have += got > 0 ? static_cast<size_t>(got) : 0;
  }
  if (frame.magic != ControlFrame{}.magic) {
    return absl::UnavailableError("what listens there is no verbs:// of this version");
  }
  return frame;
}

}  // namespace lamina::transport
