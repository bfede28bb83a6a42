// SPDX-License-Identifier: Apache-2.0
//
// The spill file on disks that do what they are asked for, less, or something else.

#include "memory_node/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "tests/support/memory_spill_disk.h"
#include "tests/unit/memory_node/small_spill_file.h"

namespace lamina::memory_node {
namespace {

using test_support::MemorySpillDisk;
using ::testing::HasSubstr;

TEST(SpillFileTest, BlocksComeBackAsTheyWereWritten) {
  const auto file = MakeFile();
  const std::vector<uint32_t> blocks = *file->Take(3);
  for (const uint32_t block : blocks) {
    ASSERT_TRUE(WriteBlock(*file, block, Bytes(static_cast<int>(block))).ok());
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
  ASSERT_TRUE(WriteBlock(*file, 0, Bytes(5)).ok());
  std::vector<std::byte> read(kBlockBytes);
  ASSERT_TRUE(ReadBlock(*file, 0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, Bytes(5));
}

TEST(SpillFileTest, AFullDiskIsAnError) {
  const auto file = MakeFile(
      [](bool write, uint64_t) { return MemorySpillDisk::Fault{.error = write ? ENOSPC : 0}; });
  const absl::Status status = WriteBlock(*file, 0, Bytes(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("spill tier: cannot write"));
}

TEST(SpillFileTest, ADiskThatWritesNothingIsFull) {
  const auto file = MakeFile([](bool, uint64_t) { return MemorySpillDisk::Fault{.most = 0}; });
  EXPECT_EQ(WriteBlock(*file, 0, Bytes(5)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(SpillFileTest, ADiskThatFailsIsAnError) {
  const auto file = MakeFile([](bool, uint64_t) { return MemorySpillDisk::Fault{.error = EIO}; });
  EXPECT_THAT(WriteBlock(*file, 0, Bytes(5)).message(),
              HasSubstr("cannot write: Input/output error"));
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_THAT(ReadBlock(*file, 0, absl::MakeSpan(read)).message(),
              HasSubstr("cannot read: Input/output error"));
}

TEST(SpillFileTest, AFileThatEndsIsDataLoss) {
  const auto file = MakeFile(
      [](bool write, uint64_t) { return MemorySpillDisk::Fault{.most = write ? SIZE_MAX : 0}; });
  ASSERT_TRUE(WriteBlock(*file, 1, Bytes(5)).ok());
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_EQ(ReadBlock(*file, 1, absl::MakeSpan(read)).code(), absl::StatusCode::kDataLoss);
}

TEST(SpillFileTest, AFlippedBitIsDataLoss) {
  const auto file =
      MakeFile([](bool write, uint64_t) { return MemorySpillDisk::Fault{.flips = !write}; });
  ASSERT_TRUE(WriteBlock(*file, 1, Bytes(5)).ok());
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
  ASSERT_TRUE(WriteBlock(*file, 0, Bytes(1)).ok());
  ASSERT_TRUE(WriteBlock(*file, 1, Bytes(2)).ok());
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
  const auto speed = file->Measure(1);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->write, 0);
  EXPECT_GT(speed->read, 0);
}

// Each holds its first read up until all others have begun theirs, or a while is over.
TEST(SpillFileTest, SpeedIsThatOfSeveralThreadsThatReadAtOnce) {
  static constexpr int kReaders = 3;
  std::atomic<int> begun = 0;
  const auto file = MakeFile(
      [&begun](bool write, uint64_t number) {
        if (!write && number < kReaders) {
          ++begun;
          const Nanos end = RealClock().Now() + Seconds(10);
          while (begun < kReaders && RealClock().Now() < end) {
            std::this_thread::yield();
          }
          EXPECT_EQ(begun.load(), kReaders);
        }
        return MemorySpillDisk::Fault{};
      },
      /*blocks=*/5'000);
  ASSERT_TRUE(file->Measure(kReaders).ok());
  EXPECT_EQ(begun.load(), kReaders);
}

TEST(SpillFileTest, ADiskThatFailsIsNotMeasured) {
  for (const bool fails_to_write : {false, true}) {
    const auto file = MakeFile(
        [fails_to_write](bool write, uint64_t number) {
          return MemorySpillDisk::Fault{.error = write == fails_to_write && number == 2 ? EIO : 0};
        },
        /*blocks=*/5'000);
    const absl::Status status = file->Measure(2).status();
    EXPECT_THAT(status.message(), HasSubstr("Input/output error")) << fails_to_write;
  }
}

}  // namespace
}  // namespace lamina::memory_node
