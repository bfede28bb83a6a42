// SPDX-License-Identifier: Apache-2.0
//
// The few things that PeerWatch needs of TCP sockets.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/port_range.h"
#include "transport/ucx/peer_watch.h"

namespace lamina::transport {

// Ends the connection, also for processes that inherited it, and closes.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// IPv6, or IPv4 in IPv6's form.
using IpAddress = std::array<uint8_t, 16>;

std::string ToString(const IpAddress& address);
inline constexpr IpAddress kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

struct Listener {
  Socket socket;
  uint16_t port = 0;
};
// On all addresses, or on loopback alone, at a port of `ports`. Does not block.
// Errors: kResourceExhausted  none of them is free.
absl::StatusOr<Listener> Listen(PeerReach reach, const PortRange& ports = {});

// Begins to connect; does not block. Its socket becomes writable or shows an error.
absl::StatusOr<Socket> BeginConnect(const IpAddress& address, uint16_t port);
// The error of a connect that ended; 0 for none.
int ConnectError(const Socket& socket);

// Finds a peer whose host is gone within about ten seconds.
void WatchForSilence(const Socket& socket);

}  // namespace lamina::transport
