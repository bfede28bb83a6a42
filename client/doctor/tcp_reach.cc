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
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lamina::doctor {
namespace {

struct HostAndPort {
  std::string host;
  std::string port;
};

HostAndPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return {};
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host, address.substr(colon + 1)};
}

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
  const HostAndPort to = Split(address);
  if (to.host.empty() || to.port.empty()) {
    return {.reach = Reach::kMalformed, .message = "write HOST:PORT"};
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (const int error = getaddrinfo(to.host.c_str(), to.port.c_str(), &hints, &raw); error != 0) {
    return {.reach = error == EAI_SERVICE ? Reach::kMalformed : Reach::kNoSuchHost,
            .message = gai_strerror(error)};
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
  const auto [host, port] = Split(address);
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
      finding.fix = absl::StrCat("iptables -I INPUT -p tcp --dport ", port,
                                 " -j ACCEPT   # there, and on the way; the nodes' own ports too");
      break;
    case Reach::kNoRoute:
      absl::StrAppend(&finding.found, ": no way leads there");
      finding.fix =
          absl::StrCat("ip route get ", host, "   # says which interface should lead there");
      break;
    case Reach::kNoSuchHost:
      finding.fix = absl::StrCat("getent hosts ", host, "   # or write its IP address");
      break;
    case Reach::kMalformed:
      finding.fix = "lamina doctor --peer 192.0.2.1:7500";
      break;
  }
  return finding;
}

}  // namespace lamina::doctor
