// SPDX-License-Identifier: Apache-2.0
#include "coordinator/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

// Between two attempts to accept without a descriptor to be had.
constexpr int kPauseMillis = 100;
// Connections that are turned away before the next pause.
constexpr int kTurnedAwayMax = 64;
// Pauses in a row of which one is logged: 10 s.
constexpr uint64_t kPausesPerWarning = 100;
constexpr int kBacklog = 1024;

absl::Status Unavailable(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

void SetPort(sockaddr* address, uint16_t port) {
  auto& place = address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(address)->sin_port;
  place = htons(port);
}

uint16_t PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// Listens on `address` at `port`, whose own port does not count.
absl::StatusOr<OwnedFd> ListenAt(const addrinfo& address, uint16_t port, bool both_families) {
  OwnedFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    return Unavailable("socket");
  }
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Connections inherit it: frames of a stream are small, and wait for no others.
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    const int only = both_families ? 0 : 1;
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  sockaddr_storage at{};
  std::memcpy(&at, address.ai_addr, address.ai_addrlen);
  SetPort(reinterpret_cast<sockaddr*>(&at), port);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), address.ai_addrlen) != 0) {
    return Unavailable("bind");
  }
  if (listen(socket.get(), kBacklog) != 0) {
    return Unavailable("listen");
  }
  return socket;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), /*service=*/nullptr, &hints, &found); code != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(code)));
  }
  return Addresses(found, freeaddrinfo);
}

}  // namespace

std::string PeerAddress(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return "";
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]:", ntohs(v6.sin6_port));
}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void OwnedFd::Close() {
  if (fd_ >= 0) {
    close(Release());
  }
}

size_t ConnectionsMax() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kConnectionsMax;
  }
  const size_t files = limit.rlim_cur;
  // Half is left for connections where there are very few.
  return std::min(kConnectionsMax, std::max(files - std::min(files, kDescriptorsKept), files / 2));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& listen,
                                                         size_t connections_max) {
  const std::optional<HostPort> at = ParseHostPort(listen);
  if (!at.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("'", listen, "' is not host:port"));
  }
  std::unique_ptr<Listener> listener(new Listener(connections_max));
  const bool everywhere = at->host == "0.0.0.0" || at->host == "::";
  // A host without IPv6 has 0.0.0.0 only.
  if (!everywhere || !listener->Bind("::", at->port).ok()) {
    LAMINA_RETURN_IF_ERROR(listener->Bind(everywhere ? "0.0.0.0" : at->host, at->port));
  }
  listener->stop_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (listener->stop_.get() < 0) {
    return Unavailable("eventfd");
  }
  listener->OpenReserve();
  return listener;
}

absl::Status Listener::Bind(const std::string& host, uint16_t port) {
  LAMINA_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host));
  absl::Status first_error;
  for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
    absl::StatusOr<OwnedFd> socket = ListenAt(*next, port, /*both_families=*/host == "::");
    if (!socket.ok()) {
      first_error.Update(socket.status());
      continue;
    }
    port = PortOf(socket->get());  // All addresses listen on one port.
    sockets_.push_back(*std::move(socket));
  }
  if (sockets_.empty()) {
    return first_error;
  }
  port_ = port;
  return absl::OkStatus();
}

Listener::~Listener() { Stop(); }

void Listener::Start(Handler handler) {
  handler_ = std::move(handler);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  sockets_.clear();
}

void Listener::OpenReserve() {
  if (reserve_.get() < 0) {
    reserve_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
}

void Listener::Run() {
  std::vector<pollfd> wanted = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const OwnedFd& socket : sockets_) {
    wanted.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  }
  while (true) {
    if (poll(wanted.data(), wanted.size(), /*timeout=*/-1) < 0) {
      if (errno != EINTR) {
        NoteFull(std::strerror(errno));
        poll(wanted.data(), 1, kPauseMillis);
      }
      continue;
    }
    if (wanted[0].revents != 0) {
      return;
    }
    for (size_t i = 1; i < wanted.size(); ++i) {
      const Outcome outcome = wanted[i].revents == 0 ? Outcome::kDone : Accept(wanted[i].fd);
      if (outcome == Outcome::kNoRoom) {
        TurnAway(wanted[i].fd);
      }
      if (outcome != Outcome::kDone) {
        poll(wanted.data(), 1, kPauseMillis);  // Ends early for stop_.
      }
    }
  }
}

Listener::Outcome Listener::Accept(int socket) {
  OwnedFd connection(accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection.get() < 0) {
    const int error = errno;
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) {
      return Outcome::kDone;
    }
    NoteFull(std::strerror(error));
    return error == EMFILE || error == ENFILE ? Outcome::kNoRoom : Outcome::kFailed;
  }
  struct stat status {};
  if (fstat(connection.get(), &status) != 0) {
    return Outcome::kFailed;
  }
  {
    const std::lock_guard lock(mutex_);
    // Who had the same number before was closed, or it would not be had again.
    open_.erase(connection.get());
    if (!HasRoom()) {
      NoteFull(absl::StrCat(open_.size(), " are open, which is the limit"));
      return Outcome::kNoRoom;
    }
    open_[connection.get()] = status.st_ino;
  }
  full_ = 0;
  handler_(std::move(connection));
  return Outcome::kDone;
}

bool Listener::HasRoom() {
  if (open_.size() < connections_max_) {
    return true;
  }
  std::erase_if(open_, [](const auto& connection) { return !IsOpen(connection); });
  return open_.size() < connections_max_;
}

bool Listener::IsOpen(const std::pair<const int, ino_t>& connection) {
  struct stat status {};
  return fstat(connection.first, &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_ino == connection.second;
}

std::optional<Nanos> Listener::SinceLastByte(absl::string_view peer) const {
  std::string wanted = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  // gRPC names the zone of a link-local address, PeerAddress() does not.
  const size_t zone = wanted.find('%');
  const size_t end = wanted.find(']');
  if (end != std::string::npos && zone < end) {
    wanted.erase(zone, end - zone);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& connection : open_) {
    if (!IsOpen(connection) || PeerAddress(connection.first) != wanted) {
      continue;
    }
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (getsockopt(connection.first, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
        info.tcpi_bytes_received > 0) {
      return Millis(info.tcpi_last_data_recv);
    }
  }
  return std::nullopt;
}

void Listener::TurnAway(int socket) {
  for (int i = 0; i < kTurnedAwayMax; ++i) {
    reserve_.Close();
    const OwnedFd connection(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) {
      break;
    }
  }
  OpenReserve();  // If another thread was quicker, the next pass tries again.
}

void Listener::NoteFull(absl::string_view why) {
  if (full_++ % kPausesPerWarning == 0) {
    LogWarning("connections are turned away: ", why);
  }
}

}  // namespace lamina::coordinator
