// SPDX-License-Identifier: Apache-2.0
//
// Relay: carries one connection to a server, until it is told to say nothing more: a host that
// vanished.

#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace lamina::control {

class Relay {
 public:
  Relay(const std::string& from, const std::string& to) : listening_(Socket()), onward_(Socket()) {
    sockaddr_un address = Address(from);
    EXPECT_EQ(bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listening_, 1), 0);
    address = Address(to);
    EXPECT_EQ(connect(onward_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    thread_ = std::thread([this] { Carry(); });
  }
  ~Relay() {
    ends_ = true;
    thread_.join();
    close(listening_);
    close(onward_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Vanish() { vanished_ = true; }

 private:
  static int Socket() { return socket(AF_UNIX, SOCK_STREAM, 0); }
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
  }

  void Carry() {
    int accepted = -1;
    while (!ends_) {
      std::array<pollfd, 2> sockets = {
          pollfd{.fd = accepted < 0 ? listening_ : accepted, .events = POLLIN, .revents = 0},
          pollfd{.fd = onward_, .events = POLLIN, .revents = 0}};
      if (vanished_ || poll(sockets.data(), sockets.size(), /*timeout=*/10) <= 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      if (accepted < 0) {
        accepted = accept(listening_, nullptr, nullptr);
        continue;
      }
      for (const pollfd& from : sockets) {
        std::array<char, 4096> bytes;
        const ssize_t count =
            from.revents == 0 ? 0 : recv(from.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count > 0) {
          send(from.fd == onward_ ? accepted : onward_, bytes.data(), static_cast<size_t>(count),
               MSG_NOSIGNAL);
        }
      }
    }
    close(accepted);
  }

  const int listening_;
  const int onward_;
  std::atomic<bool> vanished_ = false;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace lamina::control
