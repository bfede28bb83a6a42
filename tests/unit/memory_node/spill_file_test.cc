// SPDX-License-Identifier: Apache-2.0
//
// The spill file on disks that do what they are asked for, less, or something else.

#include "memory_node/spill_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
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
#include "kernels/arena_memory.h"
#include "memory_node/spill_io.h"
#include "memory_node/spill_tier.h"
#include "plan/spill_blocks.h"
#include "tests/support/memory_spill_disk.h"

namespace lamina::memory_node {
namespace {

using test_support::MemorySpillDisk;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kBlockBytes = 1000;

std::unique_ptr<SpillFile> MakeFile(MemorySpillDisk::Faults faults = {}, uint64_t blocks = 4) {
  auto file = SpillFile::Create(std::make_unique<MemorySpillDisk>(std::move(faults)),
                                blocks * kBlockBytes + 1, "tier");
  EXPECT_TRUE(file.ok()) << file.status();
  (*file)->Format(kBlockBytes);
  return *std::move(file);
}

std::vector<std::byte> Bytes(int first) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(first + 7 * i);
  }
  return bytes;
}

absl::Status ReadBlock(const SpillFile& file, uint32_t block, absl::Span<std::byte> bytes) {
  const absl::Status fetched = file.Fetch(block, bytes);
  return fetched.ok() ? file.Check(block, bytes) : fetched;
}

TEST(SpillFileTest, BlocksComeBackAsTheyWereWritten) {
  const auto file = MakeFile();
  const std::vector<uint32_t> blocks = *file->Take(3);
  for (const uint32_t block : blocks) {
    ASSERT_TRUE(file->Write(block, Bytes(static_cast<int>(block))).ok());
  }
  for (const uint32_t block : blocks) {
    std::vector<std::byte> read(kBlockBytes);
    ASSERT_TRUE(ReadBlock(*file, block, absl::MakeSpan(read)).ok());
    EXPECT_EQ(read, Bytes(static_cast<int>(block)));
  }
}

TEST(SpillFileTest, NoBlockIsGivenTwice) {
  const auto file = MakeFile();
  EXPECT_EQ(file->blocks(), 4u);
  std::vector<uint32_t> taken = *file->Take(2);
  const std::vector<uint32_t> others = *file->Take(2);
  taken.insert(taken.end(), others.begin(), others.end());
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(taken, (std::vector<uint32_t>{0, 1, 2, 3}));

  const absl::Status full = file->Take(1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("1 blocks are wanted, 0 of 4 are free"));

  file->GiveBack({others[1]});
  EXPECT_EQ(file->Take(2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*file->Take(1), std::vector<uint32_t>{others[1]});
  file->Format(kBlockBytes);
  EXPECT_EQ(file->blocks_free(), 4u);
}

TEST(SpillFileTest, ShortAndInterruptedCallsAreGoneOnWith) {
  const auto file = MakeFile([](bool, uint64_t number) {
    return MemorySpillDisk::Fault{.error = number % 2 == 1 ? EINTR : 0, .most = 300};
  });
  ASSERT_TRUE(file->Write(0, Bytes(5)).ok());
  std::vector<std::byte> read(kBlockBytes);
  ASSERT_TRUE(ReadBlock(*file, 0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, Bytes(5));
}

TEST(SpillFileTest, AFullDiskIsAnError) {
  const auto file = MakeFile(
      [](bool write, uint64_t) { return MemorySpillDisk::Fault{.error = write ? ENOSPC : 0}; });
  const absl::Status status = file->Write(0, Bytes(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("spill tier: cannot write"));
}

TEST(SpillFileTest, ADiskThatWritesNothingIsFull) {
  const auto file = MakeFile([](bool, uint64_t) { return MemorySpillDisk::Fault{.most = 0}; });
  EXPECT_EQ(file->Write(0, Bytes(5)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(SpillFileTest, ADiskThatFailsIsAnError) {
  const auto file = MakeFile([](bool, uint64_t) { return MemorySpillDisk::Fault{.error = EIO}; });
  EXPECT_THAT(file->Write(0, Bytes(5)).message(), HasSubstr("cannot write: Input/output error"));
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_THAT(ReadBlock(*file, 0, absl::MakeSpan(read)).message(),
              HasSubstr("cannot read: Input/output error"));
}

TEST(SpillFileTest, AFileThatEndsIsDataLoss) {
  const auto file = MakeFile(
      [](bool write, uint64_t) { return MemorySpillDisk::Fault{.most = write ? SIZE_MAX : 0}; });
  ASSERT_TRUE(file->Write(1, Bytes(5)).ok());
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_EQ(ReadBlock(*file, 1, absl::MakeSpan(read)).code(), absl::StatusCode::kDataLoss);
}

TEST(SpillFileTest, AFlippedBitIsDataLoss) {
  const auto file =
      MakeFile([](bool write, uint64_t) { return MemorySpillDisk::Fault{.flips = !write}; });
  ASSERT_TRUE(file->Write(1, Bytes(5)).ok());
  std::vector<std::byte> read(kBlockBytes);
  const absl::Status status = ReadBlock(*file, 1, absl::MakeSpan(read));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("block 1 is not what was written there"));
}

// A block of somebody else in its place.
TEST(SpillFileTest, AnotherBlocksBytesAreDataLoss) {
  auto disk = std::make_unique<MemorySpillDisk>();
  MemorySpillDisk& bytes = *disk;
  const auto file = *SpillFile::Create(std::move(disk), 4 * kBlockBytes, "tier");
  file->Format(kBlockBytes);
  ASSERT_TRUE(file->Write(0, Bytes(1)).ok());
  ASSERT_TRUE(file->Write(1, Bytes(2)).ok());
  bytes.Write(Bytes(1).data(), kBlockBytes, kBlockBytes);
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_TRUE(ReadBlock(*file, 0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(ReadBlock(*file, 1, absl::MakeSpan(read)).code(), absl::StatusCode::kDataLoss);
}

TEST(SpillFileTest, WithoutRoomForAllOfItThereIsNoFile) {
  auto disk = std::make_unique<MemorySpillDisk>();
  disk->allocate_error = ENOSPC;
  const absl::Status status =
      SpillFile::Create(std::move(disk), uint64_t{1} << 20, "tier").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("spill tier: no room for 1"));
}

TEST(SpillFileTest, AnInterruptedAllocationIsRepeated) {
  auto disk = std::make_unique<MemorySpillDisk>();
  disk->interruptions = 3;
  const auto file = SpillFile::Create(std::move(disk), uint64_t{1} << 20, "tier");
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST(SpillFileTest, SpeedIsMeasuredBothWays) {
  const auto file = MakeFile();
  const auto speed = file->Measure();
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->write, 0);
  EXPECT_GT(speed->read, 0);
}

// Copies from and to what is not the threads'.
class SpillIoTest : public ::testing::Test {
 protected:
  void Make(MemorySpillDisk::Faults faults = {}, uint64_t blocks = 4) {
    file_ = MakeFile(std::move(faults), blocks);
    io_ = std::make_unique<SpillIo>(*file_);
    ASSERT_TRUE(io_->Open().ok());
  }
  void Write(uint32_t block, int first) {
    io_->Order(
        {.write = true, .blocks = {block}, .copy = [first](size_t, absl::Span<std::byte> bytes) {
           absl::c_copy(Bytes(first), bytes.begin());
           return absl::OkStatus();
         }});
  }
  void Read(uint32_t block, std::vector<std::byte>& to) {
    io_->Order({.blocks = {block}, .copy = [&to](size_t, absl::Span<std::byte> bytes) {
                  to.assign(bytes.begin(), bytes.end());
                  return absl::OkStatus();
                }});
  }
  // Has all threads at it until LetGo().
  void HoldThreads() {
    std::vector<uint32_t> blocks(SpillIo::kThreads);
    std::iota(blocks.begin(), blocks.end(), 0);
    io_->Order({.write = true, .blocks = blocks, .copy = [this](size_t, absl::Span<std::byte>) {
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
  std::vector<SpillOrder> Done() {
    EXPECT_TRUE(io_->Wait(Seconds(60)));
    std::vector<SpillOrder> done;
    io_->Take(done);
    EXPECT_FALSE(io_->has_done());
    return done;
  }

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
    io_->Order({.write = write, .blocks = {1}, .copy = [](size_t, absl::Span<std::byte>) {
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
  io_->Order(
      {.write = true, .blocks = blocks, .copy = [](size_t index, absl::Span<std::byte> bytes) {
         absl::c_copy(Bytes(static_cast<int>(index)), bytes.begin());
         return absl::OkStatus();
       }});
  EXPECT_EQ(Done().size(), 1u);
  std::vector<std::vector<std::byte>> read(kBlocks);
  io_->Order({.blocks = blocks,
              .copy =
                  [&read](size_t index, absl::Span<std::byte> bytes) {
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
                  [&](size_t, absl::Span<std::byte>) {
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
                  [&](size_t, absl::Span<std::byte>) {
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
    return [&mutex, &copied, what](size_t, absl::Span<std::byte>) {
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
  io_->Order({.write = true, .blocks = blocks, .copy = [](size_t, absl::Span<std::byte> bytes) {
                absl::c_copy(Bytes(1), bytes.begin());
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());

  // Copies of the first blocks last until as many have been read as there are buffers.
  io_->Order({.blocks = blocks, .copy = [&read](size_t, absl::Span<std::byte>) {
                while (read < SpillIo::kThreads) {
                  std::this_thread::yield();
                }
                return absl::OkStatus();
              }});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  EXPECT_LE(most.load(), SpillIo::kReads);
  static_assert(SpillIo::kReads < SpillIo::kThreads);
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
  const auto fill = [](size_t, absl::Span<std::byte> bytes) {
    absl::c_copy(Bytes(1), bytes.begin());
    return absl::OkStatus();
  };
  io_->Order({.write = true, .blocks = stored, .copy = fill});
  EXPECT_EQ(Done().at(0).status, absl::OkStatus());
  for (const bool fails : {false, true}) {
    reads_fail = fails;
    std::atomic<int> writing = 0;
    io_->Order(
        {.blocks = stored, .copy = [](size_t, absl::Span<std::byte>) { return absl::OkStatus(); }});
    // All threads are at it at once.
    io_->Order({.write = true, .blocks = others, .copy = [&](size_t, absl::Span<std::byte> bytes) {
                  ++writing;
                  while (writing < SpillIo::kThreads) {
                    std::this_thread::yield();
                  }
                  return fill(0, bytes);
                }});
    const std::vector<SpillOrder> done = Done();
    ASSERT_EQ(done.size(), 2u);
    for (const SpillOrder& order : done) {
      EXPECT_EQ(order.status.ok(), order.write || !fails) << order.status;
    }
  }
}

class SpillDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/spill-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = std::filesystem::canonical(path);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(SpillDiskTest, TheFileHasNoNameAndRoomForAllOfIt) {
  auto disk = OpenSpillDisk(folder_);
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "nothing is left, however the process ends";
  EXPECT_EQ((*disk)->Allocate(100'000), 0);
  const auto file = SpillFile::Create(*std::move(disk), 100'000, folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Measure().ok());
  (*file)->Format(kBlockBytes);
  ASSERT_TRUE((*file)->Write(99, Bytes(3)).ok());
  std::vector<std::byte> read(kBlockBytes);
  ASSERT_TRUE(ReadBlock(**file, 99, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, Bytes(3));
}

// Aligned calls and others see one file, whichever of them wrote, and at any address.
TEST_F(SpillDiskTest, AlignedCallsAndOthersSeeTheSameBytes) {
  constexpr size_t kAligned = plan::kSpillAlignment;
  auto disk = OpenSpillDisk(folder_);
  ASSERT_TRUE(disk.ok()) << disk.status();
  ASSERT_EQ((*disk)->Allocate(8 * kAligned), 0);
  const auto memory = kernels::ArenaMemory::Create(8 * kAligned);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::byte* const bytes = memory->data();
  for (const size_t offset : {size_t{0}, kAligned, size_t{100}, 2 * kAligned + 1}) {
    for (const size_t count : {size_t{1}, kAligned, 2 * kAligned, 2 * kAligned + 5}) {
      for (const size_t address : {size_t{0}, size_t{8}}) {
        const auto value = static_cast<std::byte>(offset + count + address);
        std::fill_n(bytes + address, count, value);
        ASSERT_EQ((*disk)->Write(bytes + address, count, offset), static_cast<int64_t>(count));
        std::vector<std::byte> plain(count);
        ASSERT_EQ((*disk)->Read(plain.data(), count, offset), static_cast<int64_t>(count));
        EXPECT_THAT(plain, Each(value));
        std::fill_n(bytes, count, std::byte{0});
        ASSERT_EQ((*disk)->Read(bytes, count, offset), static_cast<int64_t>(count));
        EXPECT_THAT(absl::MakeConstSpan(bytes, count), Each(value));
      }
    }
  }
}

// What was tried at the opening is gone.
TEST_F(SpillDiskTest, TheFileIsEmptyWhenItIsOpened) {
  auto disk = OpenSpillDisk(folder_);
  ASSERT_TRUE(disk.ok()) << disk.status();
  std::byte byte = {};
  EXPECT_EQ((*disk)->Read(&byte, 1, 0), 0);
}

// Found among the descriptors of this process.
TEST_F(SpillDiskTest, TheFileIsItsUsersAlone) {
  const auto disk = OpenSpillDisk(folder_);
  ASSERT_TRUE(disk.ok()) << disk.status();
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    struct stat status = {};
    if (target.find(folder_.string() + "/lamina-spill-") == 0 &&
        ::stat(entry.path().c_str(), &status) == 0) {
      ++found;
      EXPECT_EQ(status.st_mode & 0777, 0600u);
      EXPECT_EQ(status.st_nlink, 0u);
    }
  }
  EXPECT_EQ(found, (*disk)->direct() ? 2 : 1);
}

TEST_F(SpillDiskTest, AFolderThatIsNotThereIsNamed) {
  const absl::Status status = OpenSpillDisk(folder_ / "nowhere").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("nowhere"));
}

std::string LoggedOf(SpillTier& tier) {
  ::testing::internal::CaptureStderr();
  tier.Failed(absl::DataLossError("block 3 is not what was written there"));
  return ::testing::internal::GetCapturedStderr();
}

TEST(SpillTierTest, WarnsOfTheFirstFailureSinceSomethingWentWell) {
  SpillTier tier(MakeFile(), SpillSpeed{});
  constexpr char kWarning[] = "block 3 is not what was written there: sequences are recomputed";

  EXPECT_THAT(LoggedOf(tier), HasSubstr(kWarning));
  EXPECT_EQ(LoggedOf(tier), "");
  EXPECT_EQ(tier.Count().failures, 2u);
  tier.WentWell();
  EXPECT_THAT(LoggedOf(tier), HasSubstr(kWarning));
  EXPECT_EQ(LoggedOf(tier), "");
  EXPECT_EQ(tier.Count().failures, 4u);
}

}  // namespace
}  // namespace lamina::memory_node
