// SPDX-License-Identifier: Apache-2.0
#include "coordinator/heap_trimmer.h"

#include <malloc.h>

#include <chrono>
#include <fstream>
#include <string>

namespace lamina::coordinator {
namespace {

constexpr auto kInterval = std::chrono::seconds(2);

// Bytes of this process in memory without a file behind them.
size_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    size_t kib = 0;
    if (word == "RssAnon:" && status >> kib) {
      return kib << 10;
    }
  }
  return 0;
}

}  // namespace

size_t HeapBytesUnused() {
  const size_t resident = AnonymousBytes();
  const struct mallinfo2 heap = mallinfo2();
  const size_t used = heap.uordblks + heap.hblkhd;
  return used > 0 && resident > used ? resident - used : 0;  // Other allocators tell nothing.
}

bool TrimHeap(size_t kept) {
  if (HeapBytesUnused() <= kept) {
    return false;
  }
  malloc_trim(0);
  return true;
}

HeapTrimmer::HeapTrimmer() : thread_([this] { Run(); }) {}

HeapTrimmer::~HeapTrimmer() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void HeapTrimmer::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kInterval, [this] { return stopped_; })) {
    TrimHeap();
  }
}

}  // namespace lamina::coordinator
