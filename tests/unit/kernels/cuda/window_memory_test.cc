// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/window_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace lamina::kernels::cuda {
namespace {

using testing::HasSubstr;

TEST(CudaWindowMemoryTest, AllocationsAreZeroedWholePagesAndBytesComeBack) {
  const auto memory = OpenWindowMemory(0).value();
  const auto window = DeviceAllocation::Make(*memory, 5000).value();
  std::vector<std::byte> read(window.bytes().size(), std::byte{1});
  EXPECT_EQ(memory->name(), "cuda:0");
  EXPECT_EQ(window.bytes().size() % 4096, 0u);

  ASSERT_TRUE(memory->CopyOut(read.data(), window.bytes().data(), read.size()).ok());
  EXPECT_EQ(static_cast<size_t>(std::count(read.begin(), read.end(), std::byte{0})), read.size());

  const std::vector<std::byte> sent(100, std::byte{7});
  ASSERT_TRUE(memory->CopyIn(window.bytes().data() + 50, sent.data(), sent.size()).ok());
  ASSERT_TRUE(memory->CopyOut(read.data(), window.bytes().data(), read.size()).ok());
  EXPECT_EQ(std::count(read.begin(), read.end(), std::byte{7}), 100);
  EXPECT_EQ(read[50], std::byte{7});
}

TEST(CudaWindowMemoryTest, BytesCrossFromOneAllocationToAnother) {
  const auto memory = OpenWindowMemory(0).value();
  const auto from = DeviceAllocation::Make(*memory, 100).value();
  const auto to = DeviceAllocation::Make(*memory, 100).value();
  const std::vector<std::byte> sent(50, std::byte{9});
  ASSERT_TRUE(memory->CopyIn(from.bytes().data() + 10, sent.data(), sent.size()).ok());

  ASSERT_TRUE(
      memory->CopyAcross(to.bytes().data() + 30, from.bytes().data() + 10, sent.size()).ok());

  std::vector<std::byte> read(100);
  ASSERT_TRUE(memory->CopyOut(read.data(), to.bytes().data(), read.size()).ok());
  EXPECT_EQ(std::count(read.begin() + 30, read.begin() + 80, std::byte{9}), 50);
  EXPECT_EQ(std::count(read.begin(), read.end(), std::byte{0}), 50);
}

// Opening it takes another process: the conformance suite between processes.
TEST(CudaWindowMemoryTest, HandleNamesTheAllocationAndTheOffsetInIt) {
  const auto memory = OpenWindowMemory(0).value();
  const auto window = DeviceAllocation::Make(*memory, 5000).value();
  const auto other = DeviceAllocation::Make(*memory, 5000).value();

  const auto whole = memory->ExportToPeers(window.bytes());
  if (absl::IsUnimplemented(whole.status())) {
    GTEST_SKIP() << whole.status();
  }
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto part = memory->ExportToPeers(window.bytes().subspan(1000, 10)).value();

  EXPECT_EQ(whole->offset, 0u);
  EXPECT_EQ(part.offset, 1000u);
  EXPECT_EQ(part.bytes, whole->bytes);
  EXPECT_NE(memory->ExportToPeers(other.bytes())->bytes, whole->bytes);
}

TEST(CudaWindowMemoryTest, OwnHandleIsTheAddressAndAForeignOneIsRefused) {
  const auto memory = OpenWindowMemory(0).value();
  const auto window = DeviceAllocation::Make(*memory, 5000).value();
  const auto handle = memory->ExportToPeers(window.bytes().subspan(100, 1));
  if (handle.ok()) {
    const auto own = PeerMemory::Open(*memory, *handle);
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ(own->data(), window.bytes().data() + 100);
  }

  const auto foreign = PeerMemory::Open(*memory, {.bytes = "no handle"});

  EXPECT_TRUE(absl::IsUnavailable(foreign.status()));
  EXPECT_THAT(std::string(foreign.status().message()), HasSubstr("not a handle of CUDA's IPC"));
}

TEST(CudaWindowMemoryTest, DmabufIsExportedOrItSaysWhyNot) {
  const auto memory = OpenWindowMemory(0).value();
  const auto window = DeviceAllocation::Make(*memory, 1).value();

  const auto file = memory->ExportDmabuf(window.bytes());
  if (file.ok()) {
    EXPECT_EQ(close(*file), 0);
  } else {
    EXPECT_TRUE(absl::IsUnimplemented(file.status()));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("cuMemGetHandleForAddressRange"));
  }
  const auto part = memory->ExportDmabuf(window.bytes().subspan(1, 100));
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("whole pages"));
}

TEST(CudaWindowMemoryTest, PeermemIsThereWhenItsModuleIs) {
  const std::filesystem::path modules = testing::TempDir() + "/window_memory_modules";
  std::filesystem::remove_all(modules);
  std::filesystem::create_directories(modules);
  const auto memory = OpenWindowMemory(0, modules).value();
  EXPECT_THAT(std::string(memory->CheckPeerAccess().message()),
              HasSubstr("modprobe nvidia_peermem"));

  std::filesystem::create_directories(modules / "nvidia_peermem");

  EXPECT_TRUE(memory->CheckPeerAccess().ok());
}

TEST(CudaWindowMemoryTest, WritesOfOtherDevicesCanBeFlushed) {
  const auto memory = OpenWindowMemory(0).value();
  const absl::Status flushed = memory->FlushPeerWrites();
  EXPECT_TRUE(flushed.ok() || absl::IsUnimplemented(flushed)) << flushed;
}

TEST(CudaWindowMemoryTest, DeviceThatIsNotThereIsUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(OpenWindowMemory(4711).status()));
}

}  // namespace
}  // namespace lamina::kernels::cuda
