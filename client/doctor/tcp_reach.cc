// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/tcp_reach.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"

namespace lamina::doctor {
namespace {

class Socket {
 public:
  explicit Socket(int family)
      : fd_(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

using NameOfEnd = int (*)(int, sockaddr*, socklen_t*);

std::string EndOf(int fd, NameOfEnd name_of_end) {
  sockaddr_storage end = {};
  socklen_t bytes = sizeof end;
  std::array<char, NI_MAXHOST> text = {};
  const auto* address = reinterpret_cast<const sockaddr*>(&end);
  return name_of_end(fd, reinterpret_cast<sockaddr*>(&end), &bytes) == 0 &&
                 getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0,
                             NI_NUMERICHOST) == 0
             ? text.data()
             : "";
}

TcpReach FromError(int error) {
  const std::string message = std::generic_category().message(error);
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return {.reach = Reach::kRefused, .message = message};
    case ETIMEDOUT:
      return {.reach = Reach::kSilent, .message = message};
    default:
      return {.reach = Reach::kNoRoute, .message = message};
  }
}

TcpReach ReachOne(const addrinfo& to, Nanos wait) {
  const Socket socket(to.ai_family);
  if (socket.fd() < 0) {
    return FromError(errno);
  }
  if (connect(socket.fd(), to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      return FromError(errno);
    }
    pollfd writable = {.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, static_cast<int>(wait / Millis(1))) <= 0) {
      return FromError(ETIMEDOUT);
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      return FromError(error);
    }
  }
  return {.reach = Reach::kReached,
          .message = "",
          .own_address = EndOf(socket.fd(), &getsockname),
          .peer_address = EndOf(socket.fd(), &getpeername)};
}

}  // namespace

TcpReach ReachTcp(const std::string& address, Nanos wait) {
  const std::optional<HostPort> to = ParseHostPort(address);
  if (!to.has_value()) {
    return {.reach = Reach::kMalformed, .message = "write HOST:PORT"};
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const std::string port = absl::StrCat(to->port);
  if (const int error = getaddrinfo(to->host.c_str(), port.c_str(), &hints, &raw); error != 0) {
    return {.reach = Reach::kNoSuchHost, .message = gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(raw, &freeaddrinfo);
  TcpReach last;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    last = ReachOne(*one, wait);
    if (last.reach == Reach::kReached) {
      break;
    }
  }
  return last;
}

Finding Unreached(const TcpReach& reach, State state, const std::string& check,
                  const std::string& address, const std::string& server) {
  const HostPort at = ParseHostPort(address).value_or(HostPort{});
  Finding finding = {
      .check = check,
      .state = state,
      .found = absl::StrCat(address, " cannot be reached: ", reach.message),
      .why = "nodes of two hosts reach each other by TCP, whatever carries their data"};
  switch (reach.reach) {
    case Reach::kReached:
      break;
    case Reach::kRefused:
      absl::StrAppend(&finding.found, ": its host answers, and nobody listens at the port");
      finding.fix = absl::StrCat(server, "   # there");
      break;
    case Reach::kSilent:
      absl::StrAppend(&finding.found,
                      ": nothing answers, so a firewall drops the packets, or the host is down");
      finding.fix = absl::StrCat("iptables -I INPUT -p tcp --dport ", at.port,
                                 " -j ACCEPT   # there, and on the way; the nodes' own ports too");
      break;
    case Reach::kNoRoute:
      absl::StrAppend(&finding.found, ": no way leads there");
      finding.fix =
          absl::StrCat("ip route get ", at.host, "   # says which interface should lead there");
      break;
    case Reach::kNoSuchHost:
      finding.fix = absl::StrCat("getent hosts ", at.host, "   # or write its IP address");
      break;
    case Reach::kMalformed:
      finding.fix = "lamina doctor --peer 192.0.2.1:7500";
      break;
  }
  return finding;
}

}  // namespace lamina::doctor
