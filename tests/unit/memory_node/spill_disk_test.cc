// SPDX-License-Identifier: Apache-2.0
//
// The file of a spill tier in a folder of this host.

#include "memory_node/spill_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/arena_memory.h"
#include "plan/spill_blocks.h"
#include "tests/unit/memory_node/small_spill_file.h"

namespace lamina::memory_node {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

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
  ASSERT_TRUE((*file)->Measure(2).ok());
  (*file)->Format(kBlockBytes);
  ASSERT_TRUE(WriteBlock(**file, 99, Bytes(3)).ok());
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

}  // namespace
}  // namespace lamina::memory_node
