// SPDX-License-Identifier: Apache-2.0
//
// Sleeping until another thread of this process changes a word, for a time at most:
// std::atomic::wait() knows no limit.

#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace lamina {

// Returns when `word` is not `seen`, after WakeSleepers(), or after `most`; also for no reason.
void SleepOnWord(const std::atomic<uint32_t>& word, uint32_t seen, Nanos most);

// Behind the change of the word. Cost: a system call.
void WakeSleepers(const std::atomic<uint32_t>& word);

}  // namespace lamina
