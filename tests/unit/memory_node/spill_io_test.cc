// SPDX-License-Identifier: Apache-2.0
//
// The threads that write and read blocks of a spill file: what they copy, in which order, and who
// is told of it.

#include "memory_node/spill_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "common/cores.h"
#include "memory_node/spill_ahead.h"
#include "memory_node/spill_pass.h"
#include "tests/support/memory_spill_disk.h"
#include "tests/unit/memory_node/small_spill_file.h"

namespace lamina::memory_node {
namespace {

using test_support::MemorySpillDisk;
using ::testing::HasSubstr;

// Copies from and to what is not the threads'.
class SpillIoTest : public ::testing::Test {
 protected:
  void Make(MemorySpillDisk::Faults faults = {}, uint64_t blocks = 4) {
    file_ = MakeFile(std::move(faults), blocks);
    io_ = std::make_unique<SpillIo>(*file_);
    ASSERT_TRUE(io_->Open().ok());
  }
  void Write(uint32_t block, int first) {
    io_->Order({.write = true, .blocks = {block}, .copy = [first](size_t, SpillPass& pass) {
                  absl::c_copy(Bytes(first), pass.Next(kBlockBytes).begin());
                  return absl::OkStatus();
                }});
  }
  void Read(uint32_t block, std::vector<std::byte>& to) {
    io_->Order({.blocks = {block}, .copy = [&to](size_t, SpillPass& pass) {
                  const absl::Span<std::byte> bytes = pass.Next(kBlockBytes);
                  to.assign(bytes.begin(), bytes.end());
                  return absl::OkStatus();
                }});
  }
  // Has all threads at it until LetGo().
  void HoldThreads() {
    std::vector<uint32_t> blocks(SpillIo::kThreads);
    std::iota(blocks.begin(), blocks.end(), 0);
    io_->Order({.write = true, .blocks = blocks, .copy = [this](size_t, SpillPass&) {
                  ++held_;
                  go_.wait(false);
                  return absl::OkStatus();
                }});
    while (held_ < SpillIo::kThreads) {
      std::this_thread::yield();
    }
  }
  void LetGo() {
    go_ = true;
    go_.notify_all();
  }
  // The one at `index` will hold Bytes(index).
  void OrderWrite(const std::vector<uint32_t>& blocks) {
    io_->Order({.write = true, .blocks = blocks, .copy = [](size_t index, SpillPass& pass) {
                  absl::c_copy(Bytes(static_cast<int>(index)), pass.Next(kBlockBytes).begin());
                  return absl::OkStatus();
                }});
  }
  void WriteAll(const std::vector<uint32_t>& blocks) {
    OrderWrite(blocks);
    EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  }
  // Reads them, and expects what WriteAll() wrote there. Calls `ordered` once they are ordered.
  SpillOrder ReadAll(
      const std::vector<uint32_t>& blocks, const std::function<void()>& ordered = [] {}) {
    std::vector<std::vector<std::byte>> read(blocks.size());
    io_->Order({.blocks = blocks, .copy = [&read](size_t index, SpillPass& pass) {
                  const absl::Span<std::byte> bytes = pass.Next(kBlockBytes);
                  read[index].assign(bytes.begin(), bytes.end());
                  return absl::OkStatus();
                }});
    ordered();
    SpillOrder done = std::move(Done().at(0));
    for (size_t index = 0; done.status.ok() && index < blocks.size(); ++index) {
      EXPECT_EQ(read[index], Bytes(static_cast<int>(index))) << index;
    }
    return done;
  }
  // A disk that counts its reads, and this one holds up until LetGo().
  MemorySpillDisk::Faults CountsReads(uint64_t held = UINT64_MAX) {
    return [this, held](bool write, uint64_t number) {
      if (!write) {
        ++reads_;
        reads_.notify_all();
        if (number == held) {
          go_.wait(false);
        }
      }
      return MemorySpillDisk::Fault{};
    };
  }
  void AwaitReads(uint64_t count) {
    for (uint64_t now = reads_; now < count; now = reads_) {
      reads_.wait(now);
    }
  }
  std::vector<SpillOrder> Done() {
    EXPECT_TRUE(io_->Wait(Seconds(60)));
    std::vector<SpillOrder> done;
    io_->Take(done);
    EXPECT_FALSE(io_->has_done());
    return done;
  }

  std::atomic<uint64_t> reads_ = 0;
  std::atomic<int> held_ = 0;
  std::atomic<bool> go_ = false;
  std::unique_ptr<SpillFile> file_;
  std::unique_ptr<SpillIo> io_;
};

// More of them than threads, which have a buffer each.
TEST_F(SpillIoTest, OrdersAreDoneByThreadsOfTheirOwn) {
  constexpr uint32_t kBlocks = 5 * SpillIo::kThreads;
  Make({}, kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    Write(block, static_cast<int>(block));
  }
  std::vector<SpillOrder> done = Done();
  ASSERT_EQ(done.size(), kBlocks);
  std::vector<std::vector<std::byte>> read(kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_TRUE(done[block].status.ok()) << done[block].status;
    Read(block, read[block]);
  }
  EXPECT_EQ(Done().size(), kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(read[block], Bytes(static_cast<int>(block))) << block;
  }
}

TEST_F(SpillIoTest, ACopyThatFailsIsTheOrders) {
  Make();
  Write(1, 3);
  EXPECT_EQ(Done().size(), 1u);
  for (const bool write : {false, true}) {
    io_->Order({.write = write, .blocks = {1}, .copy = [](size_t, SpillPass&) {
                  return absl::InternalError("no slots");
                }});
    EXPECT_EQ(Done().at(0).status.code(), absl::StatusCode::kInternal);
  }
  std::vector<std::byte> read;
  Read(1, read);
  EXPECT_EQ(Done().size(), 1u);
  EXPECT_EQ(read, Bytes(3)) << "what could not be filled was written";
}

TEST_F(SpillIoTest, NothingIsCopiedOfABlockThatCannotBeRead) {
  Make([](bool write, uint64_t) { return MemorySpillDisk::Fault{.error = write ? 0 : EIO}; });
  std::vector<std::byte> read;
  Read(0, read);
  EXPECT_FALSE(Done().at(0).status.ok());
  EXPECT_TRUE(read.empty());
}

// All of it is summed up, however much of it was copied.
TEST_F(SpillIoTest, OtherBytesAreFoundBehindTheCopyAndNobodyIsTold) {
  Make([](bool write, uint64_t number) {
    return MemorySpillDisk::Fault{.flips = !write && number < 3};
  });
  Write(1, 3);
  EXPECT_EQ(Done().size(), 1u);
  for (const size_t copied : {size_t{0}, size_t{10}, kBlockBytes}) {
    std::atomic<bool> told = false;
    io_->Order({.blocks = {1},
                .copy =
                    [copied](size_t, SpillPass& pass) {
                      pass.Next(copied);
                      return absl::OkStatus();
                    },
                .went_well = [&told] { told = true; }});
    EXPECT_EQ(Done().at(0).status.code(), absl::StatusCode::kDataLoss) << copied;
    EXPECT_FALSE(told.load()) << copied;
  }
  std::vector<std::byte> read;
  Read(1, read);
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  EXPECT_EQ(read, Bytes(3));
}

// All threads are held up while more is ordered.
TEST_F(SpillIoTest, WhatNoThreadHasBegunCanBeDropped) {
  Make();
  HoldThreads();
  std::vector<std::byte> read;
  Read(0, read);
  Read(1, read);
  io_->Cancel();
  LetGo();
  const std::vector<SpillOrder> done = Done();
  EXPECT_EQ(done.size(), 3u);
  for (const SpillOrder& order : done) {
    EXPECT_EQ(order.status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(read.empty());
}

TEST_F(SpillIoTest, AWaitMayHaveAnEnd) {
  Make();
  EXPECT_TRUE(io_->Wait(0));
  HoldThreads();
  EXPECT_FALSE(io_->Wait(Millis(1)));
  LetGo();
  EXPECT_TRUE(io_->Wait(Seconds(60)));
  EXPECT_TRUE(io_->has_done());
}

TEST_F(SpillIoTest, BlocksOfAnOrderAreDoneTogether) {
  constexpr uint32_t kBlocks = 5 * SpillIo::kThreads;
  Make({}, kBlocks);
  std::vector<uint32_t> blocks(kBlocks);
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  io_->Order({.write = true, .blocks = blocks, .copy = [](size_t index, SpillPass& pass) {
                absl::c_copy(Bytes(static_cast<int>(index)), pass.Next(kBlockBytes).begin());
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().size(), 1u);
  std::vector<std::vector<std::byte>> read(kBlocks);
  io_->Order({.blocks = blocks,
              .copy =
                  [&read](size_t index, SpillPass& pass) {
                    const absl::Span<std::byte> bytes = pass.Next(kBlockBytes);
                    read[index].assign(bytes.begin(), bytes.end());
                    return absl::OkStatus();
                  },
              .number = 7});
  const std::vector<SpillOrder> done = Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(done[0].status.ok()) << done[0].status;
  EXPECT_EQ(done[0].number, 7u);
  for (uint32_t index = 0; index < kBlocks; ++index) {
    EXPECT_EQ(read[index], Bytes(static_cast<int>(index))) << index;
  }
}

// Whoever orders it may be away.
TEST_F(SpillIoTest, TheLastThreadAtAnOrderTellsThatItWentWell) {
  Make();
  std::atomic<int> copied = 0;
  std::atomic<int> copied_when_told = -1;
  std::atomic<bool> done_when_told = false;
  io_->Order({.write = true,
              .blocks = {0, 1, 2, 3},
              .copy =
                  [&](size_t, SpillPass&) {
                    ++copied;
                    return absl::OkStatus();
                  },
              .went_well =
                  [&] {
                    done_when_told = io_->has_done();
                    copied_when_told = copied.load();
                    copied_when_told.notify_all();
                  }});
  copied_when_told.wait(-1);
  EXPECT_EQ(copied_when_told.load(), 4);
  EXPECT_TRUE(done_when_told.load()) << "Take() would not have brought it";
  EXPECT_EQ(Done().size(), 1u);
}

TEST_F(SpillIoTest, BehindAnErrorNothingIsBegunAndNobodyIsTold) {
  constexpr uint32_t kBlocks = 5 * SpillIo::kThreads;
  Make([](bool, uint64_t) { return MemorySpillDisk::Fault{.error = EIO}; }, kBlocks);
  std::vector<uint32_t> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::atomic<uint32_t> begun = 0;
  std::atomic<bool> told = false;
  io_->Order({.write = true,
              .blocks = blocks,
              .copy =
                  [&](size_t, SpillPass&) {
                    ++begun;
                    return absl::OkStatus();
                  },
              .went_well = [&] { told = true; }});
  const std::vector<SpillOrder> done = Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_THAT(done[0].status.message(), HasSubstr("cannot write: Input/output error"));
  EXPECT_LE(begun.load(), static_cast<uint32_t>(SpillIo::kThreads));
  EXPECT_FALSE(told.load());
}

TEST_F(SpillIoTest, ReadsGoBeforeWrites) {
  constexpr uint32_t kEach = 40;
  Make({}, 2 * kEach + SpillIo::kThreads);
  std::vector<uint32_t> stored(kEach);
  std::iota(stored.begin(), stored.end(), SpillIo::kThreads);
  std::vector<uint32_t> others(kEach);
  std::iota(others.begin(), others.end(), SpillIo::kThreads + kEach);
  std::mutex mutex;
  std::string copied;
  const auto note = [&](char what) {
    return [&mutex, &copied, what](size_t, SpillPass&) {
      const std::lock_guard lock(mutex);
      copied += what;
      return absl::OkStatus();
    };
  };
  io_->Order({.write = true, .blocks = stored, .copy = note('s')});
  EXPECT_EQ(Done().size(), 1u);
  copied.clear();
  HoldThreads();
  io_->Order({.write = true, .blocks = others, .copy = note('w')});
  io_->Order({.blocks = stored, .copy = note('r')});
  LetGo();
  EXPECT_EQ(Done().size(), 3u);
  ASSERT_EQ(copied.size(), 2 * kEach);
  // The last reads may be copied behind what other threads write first.
  constexpr uint32_t kSure = kEach - SpillIo::kThreads;
  EXPECT_EQ(copied.substr(0, kSure), std::string(kSure, 'r'));
}

// All of them at the disk would come back at once, and it would stand still while they copy.
TEST_F(SpillIoTest, SomeThreadsReadOnWhileOthersCopy) {
  constexpr uint32_t kBlocks = 4 * SpillIo::kThreads;
  std::atomic<int> reading = 0;
  std::atomic<int> most = 0;
  std::atomic<int> read = 0;
  Make(
      [&](bool write, uint64_t) {
        if (!write) {
          const int now = ++reading;
          int before = most;
          while (before < now && !most.compare_exchange_weak(before, now)) {
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          ++read;
          --reading;
        }
        return MemorySpillDisk::Fault{};
      },
      kBlocks);
  std::vector<uint32_t> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  io_->Order({.write = true, .blocks = blocks, .copy = [](size_t, SpillPass& pass) {
                absl::c_copy(Bytes(1), pass.Next(kBlockBytes).begin());
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());

  // Copies of the first blocks last until as many have been read as there are buffers.
  io_->Order({.blocks = blocks, .copy = [&read](size_t, SpillPass&) {
                while (read < SpillIo::kThreads) {
                  std::this_thread::yield();
                }
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  EXPECT_LE(most.load(), SpillIo::kReads);
  static_assert(SpillIo::kReads < SpillIo::kThreads);
}

// What was read ahead is read once.
TEST_F(SpillIoTest, AnOrderHasItsFirstBlocksWhereTheyWereReadAhead) {
  const std::vector<uint32_t> blocks = {9, 3, 8, 4, 7, 5, 6, 2, 1};
  Make(CountsReads(), 10);
  WriteAll(blocks);
  io_->ReadAhead(blocks);
  AwaitReads(SpillAhead::kBlocks);
  EXPECT_TRUE(io_->Wait(Seconds(60)));

  const SpillOrder done = ReadAll(blocks);
  EXPECT_EQ(done.status, absl::OkStatus());
  EXPECT_EQ(done.times.ahead, SpillAhead::kBlocks);
  EXPECT_EQ(reads_.load(), blocks.size());
  EXPECT_GE(done.times.fetched, done.times.begun);
  EXPECT_GE(done.ended, done.times.fetched);
  EXPECT_GT(done.times.copying, 0);

  EXPECT_EQ(ReadAll(blocks).times.ahead, 0u) << "the list was of one order";
}

TEST_F(SpillIoTest, AnOrderWaitsForWhatIsBeingReadAhead) {
  const std::vector<uint32_t> blocks = {3, 1, 2};
  Make(CountsReads(/*held=*/1));
  WriteAll(blocks);
  io_->ReadAhead(blocks);
  AwaitReads(2);
  const SpillOrder done = ReadAll(blocks, [this] { LetGo(); });
  EXPECT_EQ(done.status, absl::OkStatus());
  EXPECT_EQ(done.times.ahead, 1u);
  EXPECT_EQ(reads_.load(), blocks.size());
  EXPECT_GT(done.times.at_disk, 0);
}

// Those in which something was read ahead are theirs too.
TEST_F(SpillIoTest, OtherOrdersGetTheBuffersTheyNeed) {
  constexpr uint32_t kBlocks = 3 * SpillIo::kBuffers;
  Make(CountsReads(), kBlocks);
  std::vector<uint32_t> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  WriteAll(blocks);
  const std::vector<uint32_t> ahead(blocks.rbegin(), blocks.rend());
  io_->ReadAhead(ahead);
  AwaitReads(SpillAhead::kBlocks);
  EXPECT_EQ(ReadAll(blocks).status, absl::OkStatus());
  HoldThreads();
  LetGo();
  EXPECT_EQ(Done().size(), 1u);
  io_->ReadAhead({});
  WriteAll(ahead);
  EXPECT_EQ(ReadAll(ahead).status, absl::OkStatus());
}

TEST_F(SpillIoTest, WhatCouldNotBeReadAheadIsTheOrdersError) {
  std::atomic<int> read = 0;
  Make([&read](bool write, uint64_t number) {
    read += write ? 0 : 1;
    read.notify_all();
    return MemorySpillDisk::Fault{.error = !write && number == 0 ? EIO : 0};
  });
  WriteAll({2, 1});
  io_->ReadAhead({2, 1});
  read.wait(0);
  EXPECT_TRUE(io_->Wait(Seconds(60)));
  EXPECT_THAT(ReadAll({2, 1}).status.message(), HasSubstr("cannot read: Input/output error"));
  EXPECT_EQ(ReadAll({2, 1}).status, absl::OkStatus());
}

TEST_F(SpillIoTest, OtherBytesThatWereReadAheadAreFoundInTheOrder) {
  Make([this](bool write, uint64_t number) {
    reads_ += write ? 0 : 1;
    reads_.notify_all();
    return MemorySpillDisk::Fault{.flips = !write && number == 1};
  });
  WriteAll({2, 1});
  io_->ReadAhead({2, 1});
  AwaitReads(2);
  EXPECT_TRUE(io_->Wait(Seconds(60)));
  EXPECT_EQ(ReadAll({2, 1}).status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadAll({2, 1}).status, absl::OkStatus());
}

// Neither those that are read meanwhile have it, nor, once others are wanted, these blocks.
TEST_F(SpillIoTest, WhatCouldNotBeReadAheadIsNobodyElsesError) {
  Make([this](bool write, uint64_t number) {
    reads_ += write ? 0 : 1;
    reads_.notify_all();
    return MemorySpillDisk::Fault{.error = !write && number == 0 ? EIO : 0};
  });
  WriteAll({2, 1});
  WriteAll({3});
  io_->ReadAhead({2, 1});
  AwaitReads(1);
  EXPECT_EQ(ReadAll({3}).status, absl::OkStatus());
  io_->ReadAhead({});
  EXPECT_EQ(ReadAll({2, 1}).status, absl::OkStatus());
}

// A sequence is dropped while its blocks are read ahead, and others are written there.
TEST_F(SpillIoTest, WhatLiesThereByThenIsReadAnew) {
  Make(CountsReads(/*held=*/1));
  WriteAll({3, 1, 2});
  io_->ReadAhead({1, 2});
  AwaitReads(2);
  io_->ReadAhead({});
  OrderWrite({1, 2, 3});
  while (!io_->has_done()) {
    std::this_thread::yield();
  }
  std::vector<SpillOrder> written;
  io_->Take(written);
  io_->ReadAhead({1, 2, 3});
  const SpillOrder done = ReadAll({1, 2, 3}, [this] { LetGo(); });
  EXPECT_EQ(done.status, absl::OkStatus());
  EXPECT_EQ(done.times.ahead, 0u);
  EXPECT_EQ(reads_.load(), 5u);
}

TEST_F(SpillIoTest, NothingIsReadAheadBehindCancel) {
  Make(CountsReads(/*held=*/0));
  WriteAll({1, 2, 3});
  io_->ReadAhead({1, 2, 3});
  AwaitReads(1);
  io_->Cancel();
  EXPECT_FALSE(io_->Wait(Millis(1))) << "it is still being read";
  LetGo();
  EXPECT_TRUE(io_->Wait(Seconds(60)));
  EXPECT_EQ(reads_.load(), 1u);
}

TEST_F(SpillIoTest, ThreadsRunWhereTheyAreTold) {
  const std::vector<int> cores = {CoresOfThread().back()};
  file_ = MakeFile();
  io_ = std::make_unique<SpillIo>(*file_, cores);
  ASSERT_TRUE(io_->Open().ok());
  std::vector<int> found;
  io_->Order({.blocks = {0}, .copy = [&found](size_t, SpillPass&) {
                found = CoresOfThread();
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().size(), 1u);
  EXPECT_EQ(found, cores);
}

// Threads that may not read wait, and none of them is forgotten when nothing is to be read any
// more.
TEST_F(SpillIoTest, WritesGoOnBehindReads) {
  constexpr uint32_t kEach = 3 * SpillIo::kThreads;
  std::atomic<bool> reads_fail = false;
  Make([&](bool write,
           uint64_t) { return MemorySpillDisk::Fault{.error = !write && reads_fail ? EIO : 0}; },
       2 * kEach);
  std::vector<uint32_t> stored(kEach);
  std::iota(stored.begin(), stored.end(), 0);
  std::vector<uint32_t> others(kEach);
  std::iota(others.begin(), others.end(), kEach);
  const auto fill = [](size_t, SpillPass& pass) {
    absl::c_copy(Bytes(1), pass.Next(kBlockBytes).begin());
    return absl::OkStatus();
  };
  io_->Order({.write = true, .blocks = stored, .copy = fill});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  for (const bool fails : {false, true}) {
    reads_fail = fails;
    std::atomic<int> writing = 0;
    io_->Order({.blocks = stored, .copy = [](size_t, SpillPass&) { return absl::OkStatus(); }});
    // All threads are at it at once.
    io_->Order({.write = true, .blocks = others, .copy = [&](size_t, SpillPass& pass) {
                  ++writing;
                  while (writing < SpillIo::kThreads) {
                    std::this_thread::yield();
                  }
                  return fill(0, pass);
                }});
    const std::vector<SpillOrder> done = Done();
    ASSERT_EQ(done.size(), 2u);
    for (const SpillOrder& order : done) {
      EXPECT_EQ(order.status.ok(), order.write || !fails) << order.status;
    }
  }
}

}  // namespace
}  // namespace lamina::memory_node
