// SPDX-License-Identifier: Apache-2.0
//
// A verbs device without hardware, for tests of what stands above it: the calls of libibverbs that
// verbs_queue.cc and the control thread make are defined in this program, and so are taken before
// the library's. Nothing is ever transferred.
//
// Threading: one test at a time; the counters may be read from any thread.

#pragma once

#include <atomic>

#include "transport/verbs/verbs_queue_internal.h"

namespace lamina::transport {

struct FakeVerbs {
  std::atomic<int> pairs{0};  // Queue pairs that exist.
  // The device takes so many work requests of the next chains, and refuses the one behind them.
  std::atomic<int> posts_left{1 << 20};
  std::atomic<int> posted{0};
};
FakeVerbs& fake_verbs();

// A port of the fake device, whose messages have at most `message_bytes_max` bytes. Ends with the
// program, as the context that it holds is not the library's.
VerbsLocal& FakeLocal(uint64_t message_bytes_max);

}  // namespace lamina::transport
