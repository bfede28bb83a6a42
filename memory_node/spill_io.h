// SPDX-License-Identifier: Apache-2.0
//
// SpillIo: threads that write and read blocks of a SpillFile, and copy between these and where
// their data lies otherwise, so that the data thread neither waits for a disk nor copies. Buffers
// of one block are theirs: so all blocks of all moves can be ordered at once. There are more of
// them than threads, since a thread that copies may be stopped for others while the disk goes on.
//
// Reads go before writes: whoever is read back cannot go on before it is there. Else orders go in
// turn. Who has read a block reads the next one at once, as long as there is a buffer, and others
// copy and check what has been read: so the disk is never waited for by all of them, nor waits
// (docs/adr/0239-threads-of-the-tier-read-on.md).
//
// A block is checked in the walk in which it is copied: whoever gets a copy must leave it alone
// until the order has gone well (docs/adr/0251-blocks-are-checked-as-they-are-copied.md).
//
// While nothing is under way, blocks are read that are likely to be ordered next
// (docs/adr/0261-blocks-are-read-ahead.md). Their buffers are anybody's who needs one.
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
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "kernels/arena_memory.h"
#include "memory_node/spill_ahead.h"
#include "memory_node/spill_file.h"
#include "memory_node/spill_pass.h"

namespace lamina::memory_node {

// Where the time of an order went. Writes have the first alone.
struct SpillTimes {
  Nanos begun = 0;     // When its first block was begun, or claimed if it had been read ahead.
  Nanos fetched = 0;   // When the last block had been read.
  Nanos at_disk = 0;   // For how long blocks of it were being read, one or several.
  Nanos copying = 0;   // Time of all threads that checked and copied.
  uint32_t ahead = 0;  // Blocks that had been read before they were ordered.
};

// Blocks that are written or read together.
struct SpillOrder {
  bool write = false;
  std::vector<uint32_t> blocks;
  // Walks over the block with this index: fills it before it is written, or takes it away once it
  // has been read. What it takes away may be anything before the order has gone well. Called by any
  // of the threads, for several blocks at once.
  std::function<absl::Status(size_t index, SpillPass& block)> copy;
  // Called by the thread that was the last at it, if all went well; Take() would bring it by then.
  // Null: nobody is told.
  std::function<void()> went_well;
  uint64_t number = 0;  // By which the caller knows it.
  // Once it is done.
  absl::Status status;  // What went wrong first. Behind it no other block is begun.
  Nanos ended = 0;
  SpillTimes times = {};
};

class SpillIo {
 public:
  static constexpr int kThreads = 4;
  // So many of them wait for what they read at once, at most. More than one: the disk has something
  // to do until a thread wakes whose block has come.
  static constexpr int kReads = 2;
  static constexpr int kBuffers = 10;
  static_assert(kBuffers >= kThreads && kBuffers >= int{SpillAhead::kBlocks} + kReads);
  // What the kernel calls the threads.
  static constexpr char kName[] = "lamina-spill";

  // `file` must outlive this. `cores`: where the threads run; none: anywhere.
  explicit SpillIo(SpillFile& file, std::vector<int> cores = {});
  ~SpillIo();
  SpillIo(const SpillIo&) = delete;
  SpillIo& operator=(const SpillIo&) = delete;

  // Buffers for blocks of the file as it is formatted now. Before the first order, and between
  // Wait() and the next one. Errors: kResourceExhausted  the host has no memory for them.
  absl::Status Open();
  // Gives the buffers up. Requires: as Open(), and that there is nothing to read ahead.
  void Close();

  void Order(SpillOrder order);
  // These blocks are likely to be what the next reads begin with. As many as SpillAhead has room
  // for are read while nothing is under way. Of the call before nothing is left, unless it named
  // the same. Nobody writes them before another call.
  void ReadAhead(std::vector<uint32_t> blocks);
  // No further block of what is under way is begun, and none is read ahead. All of it ends with
  // kCancelled.
  void Cancel();
  // Whether Take() would bring any. Never waits.
  bool has_done() const { return done_count_.load(std::memory_order_acquire) > 0; }
  // Those that are done and have not been taken, in any order.
  void Take(std::vector<SpillOrder>& done);
  // Waits until nothing is under way any more, and whoever is told has been, for `most` at most.
  // Returns whether that is so. What is done is taken as ever.
  bool Wait(Nanos most);

 private:
  struct UnderWay {
    SpillOrder order;
    size_t begun = 0;       // Blocks of it that were begun, or are not to be.
    size_t working = 0;     // Blocks that were begun and are not done.
    size_t reads = 0;       // Those of them that are being read,
    Nanos reads_since = 0;  // since when there are any.
  };
  using Entry = std::list<UnderWay>::iterator;
  // One that was begun, and its buffer.
  struct Block {
    Entry entry;
    size_t index = 0;
    int buffer = 0;
  };
  enum class Job : uint8_t { kNone, kFetch, kTakeAway, kWrite, kFetchAhead };

  void Work();
  absl::Span<std::byte> BytesOf(int buffer) const {
    return {buffers_[static_cast<size_t>(buffer)].data(), file_.block_bytes()};
  }
  // All of these with the lock. What there is for a thread to do.
  Job Next();
  bool IsIdle() const { return under_way_.empty() && telling_ == 0 && !ahead_.is_reading(); }
  bool HasBuffer() const { return !free_.empty() || ahead_.holds_any(); }
  // Requires: HasBuffer().
  int TakeBuffer();
  // What was read ahead of the order's first blocks is the order's, which may end it.
  void Claim(Entry entry, std::unique_lock<std::mutex>& lock);
  // The first order that has a block that was not begun; or none.
  Entry FirstToBegin(bool write);
  // Requires: HasBuffer().
  Block Begin(Entry entry);
  static void BeginRead(UnderWay& entry);
  void EndRead(const Block& block, const absl::Status& status, std::unique_lock<std::mutex>& lock);
  // These do a job, and give the lock up meanwhile.
  void Fetch(std::unique_lock<std::mutex>& lock);
  void TakeAway(std::unique_lock<std::mutex>& lock);
  void Write(std::unique_lock<std::mutex>& lock);
  void FetchAhead(std::unique_lock<std::mutex>& lock);
  // Gives the lock up. If there is more to do, another thread is woken for it.
  void LetGo(std::unique_lock<std::mutex>& lock);
  void EndBlock(const Block& block, const absl::Status& status, std::unique_lock<std::mutex>& lock);
  static void GiveUp(UnderWay& entry, const absl::Status& why);
  // Gives the lock up while somebody is told.
  void End(Entry entry, std::unique_lock<std::mutex>& lock);

  SpillFile& file_;
  const std::vector<int> cores_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // Guarded by mutex_.
  std::list<UnderWay> under_way_;
  std::vector<SpillOrder> done_;
  std::deque<Block> fetched_;  // To be copied and checked.
  std::vector<int> free_;      // Buffers.
  SpillAhead ahead_;
  std::optional<Block> awaited_;  // One that was being read ahead when it was ordered.
  int reading_ = 0;               // Threads that wait for what they read.
  int telling_ = 0;
  bool ends_ = false;

  std::atomic<size_t> done_count_{0};
  std::array<kernels::ArenaMemory, kBuffers> buffers_;
  std::vector<std::thread> threads_;
};

}  // namespace lamina::memory_node
