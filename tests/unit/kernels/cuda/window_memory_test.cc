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
