// SPDX-License-Identifier: Apache-2.0
//
// HeapTrimmer: gives memory back that malloc keeps after a peak, such as ten thousands of calls
// that were begun and reset. malloc keeps what lies below a block that is still in use, which after
// such a peak is nearly all.
//
// Threading: a thread of its own, which mostly sleeps.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>

namespace lamina::coordinator {

// Kept for what comes next; more is given back.
inline constexpr size_t kHeapKeptBytes = size_t{64} << 20;

class HeapTrimmer {
 public:
  HeapTrimmer();
  ~HeapTrimmer();
  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::thread thread_;
};

// Bytes of memory that malloc holds and nobody uses; 0 where the system does not tell.
size_t HeapBytesUnused();

// Gives them back if they are more than `kept`. Returns whether they were.
bool TrimHeap(size_t kept = kHeapKeptBytes);

}  // namespace lamina::coordinator
