// SPDX-License-Identifier: Apache-2.0
#include "client/cli/interrupts.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>

#include "common/check.h"

namespace lamina::cli {
namespace {
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells have it.
}

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  LAMINA_CHECK(signals_ >= 0 && stop_ >= 0);
  thread_ = std::thread([this] { Watch(); });
}

Interrupts::~Interrupts() {
  const uint64_t one = 1;
  LAMINA_CHECK(write(stop_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signals_);
  close(stop_);
}

void Interrupts::SetHandler(std::function<void()> handler) {
  const absl::MutexLock lock(&mu_);
  handler_ = std::move(handler);
}

void Interrupts::Watch() {
  for (;;) {
    pollfd fds[2] = {{.fd = signals_, .events = POLLIN}, {.fd = stop_, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0) {
      continue;  // EINTR.
    }
    if (fds[1].revents != 0) {
      return;
    }
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) != sizeof(info)) {
      continue;
    }
    const absl::MutexLock lock(&mu_);
    if (!handler_) {
      std::fputs("\n", stderr);
      _exit(kInterrupted);
    }
    handler_();
  }
}

}  // namespace lamina::cli
