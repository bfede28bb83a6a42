// SPDX-License-Identifier: Apache-2.0
//
// SpillIo: threads that write and read blocks of a SpillFile, and copy between these and where
// their data lies otherwise, so that the data thread neither waits for a disk nor copies. Each has
// a buffer of one block: so all blocks of all moves can be ordered at once.
//
// Reads go before writes: whoever is read back cannot go on before it is there. Else orders go in
// turn.
//
// Threading: all calls from one thread at a time.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "kernels/arena_memory.h"
#include "memory_node/spill_file.h"

namespace lamina::memory_node {

// Blocks that are written or read together.
struct SpillOrder {
  bool write = false;
  std::vector<uint32_t> blocks;
  // Fills the block with this index before it is written, or takes it away once it has been read,
  // while it is in a cache. Called by any of the threads, for several blocks at once.
  std::function<absl::Status(size_t index, absl::Span<std::byte> bytes)> copy;
  // Called by the thread that was the last at it, if all went well; Take() would bring it by then.
  // Null: nobody is told.
  std::function<void()> went_well;
  uint64_t number = 0;  // By which the caller knows it.
  // Once it is done.
  absl::Status status;  // What went wrong first. Behind it no other block is begun.
  Nanos ended = 0;
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
  // No further block of what is under way is begun. All of it ends with kCancelled.
  void Cancel();
  // Whether Take() would bring any. Never waits.
  bool has_done() const { return done_count_.load(std::memory_order_acquire) > 0; }
  // Those that are done and have not been taken, in any order.
  void Take(std::vector<SpillOrder>& done);
  // Waits until nothing is under way any more, and whoever is told has been. What is done is taken
  // as ever.
  void Wait();

 private:
  struct UnderWay {
    SpillOrder order;
    size_t begun = 0;    // Blocks of it that were begun, or are not to be.
    size_t working = 0;  // Threads that are at it.
  };
  using Entry = std::list<UnderWay>::iterator;

  void Work(int thread);
  absl::Status Run(const SpillOrder& order, size_t index, absl::Span<std::byte> bytes);
  // All of these with the lock. The order that has a block for a thread; or none.
  Entry Next();
  static void GiveUp(UnderWay& entry, const absl::Status& why);
  // Gives the lock up while somebody is told.
  void End(Entry entry, std::unique_lock<std::mutex>& lock);

  SpillFile& file_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // Guarded by mutex_.
  std::list<UnderWay> under_way_;
  std::vector<SpillOrder> done_;
  int telling_ = 0;
  bool ends_ = false;

  std::atomic<size_t> done_count_{0};
  std::array<kernels::ArenaMemory, kThreads> buffers_;
  std::vector<std::thread> threads_;
};

}  // namespace lamina::memory_node
