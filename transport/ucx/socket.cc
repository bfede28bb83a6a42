// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/ucx/socket_internal.h"

namespace lamina::transport {
namespace {

constexpr int kBacklog = 256;

bool IsMapped(const IpAddress& address) {
  return std::equal(kLoopback.begin(), kLoopback.begin() + 12, address.begin());
}

IpAddress Mapped(const in_addr& v4) {
  IpAddress address = kLoopback;
  std::memcpy(address.data() + 12, &v4, 4);
  return address;
}

struct Target {
  sockaddr_storage address = {};
  socklen_t size = 0;
};

Target TargetOf(const IpAddress& ip, uint16_t port) {
  Target target;
  if (IsMapped(ip)) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(target.address);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data() + 12, 4);
    target.size = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(target.address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, ip.data(), ip.size());
    target.size = sizeof v6;
  }
  return target;
}

constexpr int kKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// A socket that listens there. Errors: kUnavailable  what the system says.
absl::StatusOr<Socket> ListenAt(const Target& at) {
  Socket made(socket(at.address.ss_family, kKind, 0));
  if (made.get() >= 0) {
    // Without it a port is taken for a minute after a process that had connections there. With it
    // two processes may bind one port, and listen() refuses the second.
    const int on = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at.address.ss_family == AF_INET6) {
      const int both = 0;
      setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    }
    if (bind(made.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0 &&
        listen(made.get(), kBacklog) == 0) {
      return made;
    }
  }
  return absl::UnavailableError(std::strerror(errno));
}

absl::StatusOr<Socket> ListenWithin(const IpAddress& ip, const PortRange& ports) {
  absl::StatusOr<Socket> made = absl::UnavailableError("no port was tried");
  BindWithin(ports, [&](uint16_t port) {
    made = ListenAt(TargetOf(ip, port));
    return made.ok();
  });
  return made;
}

// IPv6 for both families where the host has it, else IPv4.
absl::StatusOr<Socket> ListenEverywhere(const PortRange& ports) {
  absl::StatusOr<Socket> both = ListenWithin(IpAddress{}, ports);
  return both.ok() ? std::move(both) : ListenWithin(Mapped({.s_addr = htonl(INADDR_ANY)}), ports);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) {
    shutdown(fd_, SHUT_RDWR);
    close(fd_);
  }
}

std::string ToString(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (IsMapped(address)) {
    inet_ntop(AF_INET, address.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, address.data(), text, sizeof text);
  }
  return text;
}

absl::StatusOr<Listener> Listen(PeerReach reach, const PortRange& ports) {
  absl::StatusOr<Socket> socket =
      reach == PeerReach::kAnyHost ? ListenEverywhere(ports) : ListenWithin(kLoopback, ports);
  if (!socket.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ucx: cannot listen for peers on TCP",
                     ports.is_set() ? absl::StrCat(" at any port of ", ToString(ports)) : "", ": ",
                     socket.status().message()));
  }
  Listener listener{.socket = *std::move(socket)};
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  listener.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listener;
}

absl::StatusOr<Socket> BeginConnect(const IpAddress& address, uint16_t port) {
  const Target target = TargetOf(address, port);
  Socket made(socket(target.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.get() >= 0 &&
      (connect(made.get(), reinterpret_cast<const sockaddr*>(&target.address), target.size) == 0 ||
       errno == EINPROGRESS)) {
    return made;
  }
  return absl::UnavailableError(std::strerror(errno));
}

int ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void WatchForSilence(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
}

}  // namespace lamina::transport
