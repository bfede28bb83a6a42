// SPDX-License-Identifier: Apache-2.0
#include "common/word_sleep.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace lamina {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void SleepOnWord(const std::atomic<uint32_t>& word, uint32_t seen, Nanos most) {
  const timespec timeout = {.tv_sec = most / Seconds(1), .tv_nsec = most % Seconds(1)};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

void WakeSleepers(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lamina
