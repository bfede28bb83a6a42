// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DeviceMemoryTest : public DeviceTest {};

TEST_F(DeviceMemoryTest, BytesComeBackAsTheyWent) {
  std::vector<uint32_t> sent(100'003);
  std::iota(sent.begin(), sent.end(), 7u);

  EXPECT_EQ(Download(Upload(sent), sent.size()), sent);
}

TEST_F(DeviceMemoryTest, PiecesOfAnArenaAreAlignedAndApart) {
  auto arena = MemoryArena::Create(ArenaKind::kPinnedHost, 4096);
  ASSERT_TRUE(arena.ok());

  const auto first = arena->Take<uint8_t>(3);
  const auto second = arena->Take<double>(5);

  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*second) % 256, 0u);
  EXPECT_GE(reinterpret_cast<uint8_t*>(*second), *first + 3);
}

TEST_F(DeviceMemoryTest, AnArenaThatIsUsedUpSaysWhatIsLeft) {
  auto arena = MemoryArena::Create(ArenaKind::kPinnedHost, 1024);
  ASSERT_TRUE(arena.ok() && arena->Take<float>(64).ok());

  const auto refused = arena->Take<float>(193);

  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), AllOf(HasSubstr("193"), HasSubstr("768")));
  EXPECT_TRUE(arena->Take<float>(192).ok());
}

TEST_F(DeviceMemoryTest, MoreMemoryThanThereIsIsAnErrorWithItsCudaName) {
  const auto arena = MemoryArena::Create(ArenaKind::kDevice, uint64_t{1} << 45);

  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("cudaErrorMemoryAllocation"));
}

TEST_F(DeviceMemoryTest, ADeviceThatIsNotThereIsUnavailable) {
  const auto device = OpenDevice(4711);

  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("cuda:4711"));
}

}  // namespace
}  // namespace lamina::kernels::cuda
