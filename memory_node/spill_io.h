// SPDX-License-Identifier: Apache-2.0
//
// SpillIo: threads that write and read blocks of a SpillFile, and copy between these and where
// their data lies otherwise, so that the data thread neither waits for a disk nor copies. Each has
// a buffer of one block: so all blocks of a move can be ordered at once.
//
// Threading: all calls from one thread at a time.

#pragma once

#include <array>
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
#include "kernels/arena_memory.h"
#include "memory_node/spill_file.h"

namespace lamina::memory_node {

struct SpillOrder {
  bool write = false;
  uint32_t block = 0;
  // Fills the block before it is written, or takes it away once it has been read, while it is in a
  // cache. Called by any of the threads.
  std::function<absl::Status(absl::Span<std::byte>)> copy;
  absl::Status status;  // Once it is done.
};

class SpillIo {
 public:
  // So many keep two reads or writes under way while others copy and compute checksums.
  static constexpr int kThreads = 4;
  // What the kernel calls the threads.
  static constexpr char kName[] = "lamina-spill";

  // `file` must outlive this.
  explicit SpillIo(SpillFile& file);
  ~SpillIo();
  SpillIo(const SpillIo&) = delete;
  SpillIo& operator=(const SpillIo&) = delete;

  // Buffers for blocks of the file as it is formatted now. Before the first order, and between
  // Wait() and the next one. Errors: kResourceExhausted  the host has no memory for them.
  absl::Status Open();
  // Gives the buffers up. Requires: as Open().
  void Close();

  void Order(SpillOrder order);
  // Drops what no thread has begun; it is not among those done. Returns how many orders.
  size_t Cancel();
  // Whether Take() would bring any. Never waits.
  bool has_done() const { return done_count_.load(std::memory_order_acquire) > 0; }
  // Those that are done and have not been taken, in any order.
  void Take(std::vector<SpillOrder>& done);
  // Waits until nothing is ordered any more. What is done is taken as ever.
  void Wait();

 private:
  void Work(int thread);
  absl::Status Run(const SpillOrder& order, absl::Span<std::byte> bytes);

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
  std::array<kernels::ArenaMemory, kThreads> buffers_;
  std::vector<std::thread> threads_;
};

}  // namespace lamina::memory_node
