// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace lamina::daemon {
namespace {

constexpr Nanos kStatusInterval = Seconds(5);

}  // namespace

ServiceManager::ServiceManager(std::string socket, Nanos watchdog)
    : socket_(std::move(socket)), watchdog_(watchdog) {}

ServiceManager::~ServiceManager() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool ServiceManager::Send(const std::string& text) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) {
    return true;
  }
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (address.sun_path[0] == '@') {
    address.sun_path[0] = '\0';
  }
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size() +
                                             (address.sun_path[0] == '\0' ? 0 : 1));
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool sent = fd >= 0 && sendto(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                      reinterpret_cast<const sockaddr*>(&address), length) >= 0;
  const bool is_full = !sent && (errno == EAGAIN || errno == ENOBUFS);
  if (!sent && !is_full) {
    LogWarning("cannot tell the service manager ", text, ": ", std::strerror(errno));
  }
  if (fd >= 0) {
    close(fd);
  }
  return !is_full;
}

void ServiceManager::Tell(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (std::find(untold_.begin(), untold_.end(), text) == untold_.end()) {
      untold_.push_back(text);
    }
  }
  SendUntold();
}

bool ServiceManager::SendUntold() {
  const std::lock_guard lock(mutex_);
  while (!untold_.empty() && Send(untold_.front())) {
    untold_.erase(untold_.begin());
  }
  return untold_.empty();
}

void ServiceManager::Watch(std::function<std::string()> status, std::function<bool()> alive) {
  if (socket_.empty()) {
    return;
  }
  thread_ = std::thread(
      [this, status = std::move(status), alive = std::move(alive)] { Run(status, alive); });
}

void ServiceManager::Run(const std::function<std::string()>& status,
                         const std::function<bool()>& alive) {
  const Nanos pause = watchdog_ > 0 ? std::min(kStatusInterval, watchdog_ / 3) : kStatusInterval;
  std::string told;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    const bool all_told = SendUntold();
    if (const std::string now = status();
        all_told && now != told && Send(absl::StrCat("STATUS=", now))) {
      told = now;
    }
    if (watchdog_ > 0 && alive()) {
      Send("WATCHDOG=1");  // Where it finds no room the manager has some to read.
    }
    lock.lock();
    wake_.wait_for(lock, std::chrono::nanoseconds(pause), [this] { return ending_; });
  }
}

bool ProgressWatch::Alive(const telemetry::NodeCounters& now) {
  const bool moved = now.beats != std::exchange(beats_, now.beats);
  return moved ||
         (now.activity != ThreadActivity::kWorking && now.activity != ThreadActivity::kIdle);
}

}  // namespace lamina::daemon
