// SPDX-License-Identifier: Apache-2.0
//
// The few things that the control thread needs of TCP sockets.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/port_range.h"
#include "transport/verbs/control_frame_internal.h"

namespace lamina::transport {

// Ends the connection, also for processes that inherited it, and closes.
class ControlSocket {
 public:
  ControlSocket() = default;
  explicit ControlSocket(int fd) : fd_(fd) {}
  ControlSocket(ControlSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ControlSocket& operator=(ControlSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;
  ~ControlSocket();

  int fd() const { return fd_; }

  // False when the connection ended, or took nothing: a peer that does not read is gone.
  bool Send(const ControlFrame& frame) const;

 private:
  int fd_ = -1;
};

// Collects frames from a socket that does not block.
class FrameReader {
 public:
  // A peer that sends without end has so many frames taken before others have their turn.
  static constexpr int kFramesMax = 64;

  // Calls `take` for each whole frame, of kFramesMax at most; poll() tells of those that are left.
  // False when the connection ended or does not speak ours, or when `take` wants no more of it and
  // says so by false.
  template <typename Take>
  bool Read(const ControlSocket& socket, Take take) {
    for (int taken = 0; taken < kFramesMax;) {
      const int got = Fill(socket);
      if (got <= 0) {
        return got == 0;
      }
      if (have_ == sizeof frame_) {
        have_ = 0;
        ++taken;
        if (frame_.magic != ControlFrame{}.magic || !take(frame_)) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  // Bytes read; 0 when there are none now, -1 when the connection ended.
  int Fill(const ControlSocket& socket);

  ControlFrame frame_;
  size_t have_ = 0;
};

// IPv6, or IPv4 mapped into it.
using ControlAddress = std::array<uint8_t, 16>;
inline constexpr ControlAddress kOwnHost = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

std::string ToText(const ControlAddress& address);

struct ControlListener {
  ControlSocket socket;
  uint16_t port = 0;
};
// On this address, by default on all (of IPv4 alone where there is no IPv6), at a port of `ports`.
absl::StatusOr<ControlListener> ListenForPeers(const ControlAddress& at = {},
                                               const PortRange& ports = {});
struct AcceptedPeer {
  ControlSocket socket;       // fd -1: none waits, or there is no descriptor for it.
  bool out_of_files = false;  // The latter: who asks stays in the queue.
};
AcceptedPeer AcceptPeer(const ControlSocket& listener);

// Errors: kUnavailable  refused, or silent until the deadline.
absl::StatusOr<ControlSocket> ConnectToPeer(const ControlAddress& address, uint16_t port,
                                            Nanos deadline);

// The next frame. Errors: kUnavailable  the connection ended, or nothing came by the deadline.
absl::StatusOr<ControlFrame> AwaitFrame(const ControlSocket& socket, Nanos deadline);

}  // namespace lamina::transport
