// SPDX-License-Identifier: Apache-2.0
#include "coordinator/first_byte.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace lamina::coordinator {
namespace {

constexpr unsigned char kTlsHandshake = 22;  // The first byte of a TLS connection.
constexpr int kLookMillis = 1000;            // At those who wait too long.
constexpr int kPauseMillis = 100;            // Where poll() fails.

}  // namespace

void FirstByte::Start(Handler handler) {
  handler_ = std::move(handler);
  wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { Run(); });
}

void FirstByte::Add(OwnedFd connection) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(connection));
  }
  eventfd_write(wake_.get(), 1);
}

void FirstByte::Stop() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  added_.clear();
}

void FirstByte::Run() {
  std::vector<Waiting> waiting;
  std::vector<pollfd> wanted;
  for (;;) {
    wanted.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    for (const Waiting& each : waiting) {
      wanted.push_back({.fd = each.connection.get(), .events = POLLIN, .revents = 0});
    }
    if (poll(wanted.data(), wanted.size(), waiting.empty() ? -1 : kLookMillis) < 0 &&
        errno != EINTR) {
      poll(nullptr, 0, kPauseMillis);  // There is no memory, or the limit on files was lowered.
    }
    const Nanos now = RealClock().Now();
    for (size_t i = waiting.size(); i > 0; --i) {
      const bool spoke = wanted[i].revents != 0;
      if (!spoke && now < waiting[i - 1].since + kWait) {
        continue;
      }
      Waiting done = std::move(waiting[i - 1]);
      std::swap(waiting[i - 1], waiting.back());
      waiting.pop_back();
      if (spoke) {
        Judge(std::move(done.connection));
      }
    }
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return;
    }
    for (OwnedFd& connection : added_) {
      waiting.push_back({.connection = std::move(connection), .since = now});
    }
    added_.clear();
  }
}

void FirstByte::Judge(OwnedFd connection) {
  unsigned char first = 0;
  if (recv(connection.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
    return;  // Gone without a word, as probes of the port do.
  }
  if ((first == kTlsHandshake) == tls_) {
    return handler_(std::move(connection));
  }
  Tell(connection.get());
}

void FirstByte::Tell(int connection) {
  const std::string peer = PeerAddress(connection);
  if (told_.size() < kToldMax && told_.insert(peer.substr(0, peer.rfind(':'))).second) {
    LogWarning("turned away ", peer,
               tls_
                   ? ": it speaks in the clear, and this port speaks TLS: give it tls.ca (clients: "
                     "--tls-ca)"
                   : ": it speaks TLS, and this port does not: give the coordinator tls too, or "
                     "neither");
  }
}

}  // namespace lamina::coordinator
