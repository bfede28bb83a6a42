// SPDX-License-Identifier: Apache-2.0
//
// SpillIo: threads that write and read blocks of a SpillFile, and copy between these and where
// their data lies otherwise, so that the data thread neither waits for a disk nor copies.
//
// Threading: all calls from one thread at a time. Limits: as many orders as its caller has buffers.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "memory_node/spill_file.h"

namespace lamina::memory_node {

struct SpillOrder {
  bool write = false;
  uint32_t block = 0;
  absl::Span<std::byte> bytes;  // Not to be touched before the order is done.
  // Fills `bytes` before they are written, or takes them away once they have been read, while they
  // are in a cache. Called by any of the threads; may be empty.
  std::function<absl::Status()> copy = {};
  size_t buffer = 0;    // Chosen by the caller.
  absl::Status status;  // Once it is done.
};

class SpillIo {
 public:
  // So many threads keep a disk busy while one of them computes a checksum.
  static constexpr int kThreads = 2;
  // What the kernel calls the threads.
  static constexpr char kName[] = "lamina-spill";

  // `file` must outlive this.
  explicit SpillIo(SpillFile& file);
  ~SpillIo();
  SpillIo(const SpillIo&) = delete;
  SpillIo& operator=(const SpillIo&) = delete;

  void Order(SpillOrder order);
  // Whether Take() would bring any. Never waits.
  bool has_done() const { return done_count_.load(std::memory_order_acquire) > 0; }
  // Those that are done and have not been taken, in any order.
  void Take(std::vector<SpillOrder>& done);
  // Waits until nothing is ordered any more. What is done is taken as ever.
  void Wait();

 private:
  void Work();
  absl::Status Run(const SpillOrder& order);

  SpillFile& file_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // Guarded by mutex_.
  std::deque<SpillOrder> orders_;
  std::vector<SpillOrder> done_;
  int working_ = 0;
  bool ends_ = false;

  std::atomic<size_t> done_count_{0};
  std::vector<std::thread> threads_;
};

}  // namespace lamina::memory_node
