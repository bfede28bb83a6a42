// SPDX-License-Identifier: Apache-2.0
//
// Windows of shm:// that a device reads and writes, as its owner and as its sender.

#include "kernels/cuda/registered_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/wait.h"
#include "tests/unit/kernels/cuda/device_fixture.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels::cuda {
namespace {

constexpr size_t kBytes = 10'000;

class RegisteredMemoryTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    region_ =
        transport_->CreateRegion({.name = "windows", .bytes = kBytes, .signal_words = 3}).value();
    remote_ = transport_->OpenRegion(region_->Descriptor(), 0).value();
  }

  const std::unique_ptr<transport::Transport> transport_ = transport::MakeShmTransport();
  std::unique_ptr<transport::Region> region_;
  std::unique_ptr<transport::RemoteRegion> remote_;
};

TEST_F(RegisteredMemoryTest, ADeviceReadsAndWritesAWindowOfAnotherMapping) {
  const transport::DirectMemory there = remote_->direct();
  ASSERT_FALSE(there.empty());
  auto own = RegisteredMemory::Create(region_->direct().pages);
  auto peers = RegisteredMemory::Create(there.pages);
  ASSERT_TRUE(own.ok()) << own.status();
  ASSERT_TRUE(peers.ok()) << peers.status();
  const std::vector<uint32_t> values = {7, 8, 9, 10};
  const uint32_t* const source = Upload(values);

  const absl::Status put = PutBytes({.to = peers->OnDevice(there.bytes.data()),
                                     .from = source,
                                     .bytes = values.size() * sizeof(uint32_t),
                                     .stamped = true,
                                     .stamp = {.magic = 3, .step = 5}},
                                    stream());
  auto* const word = reinterpret_cast<uint64_t*>(there.words + 2 * there.word_stride);
  const absl::Status raised = RaiseSignal({.signal = peers->OnDevice(word), .value = 6}, stream());

  EXPECT_TRUE(put.ok()) << put;
  EXPECT_TRUE(raised.ok()) << raised;
  EXPECT_TRUE(stream().Synchronize().ok());
  EXPECT_EQ(region_->LoadSignal(2), 6u);
  WindowStamp stamp;
  std::memcpy(&stamp, region_->bytes().data(), sizeof(stamp));
  EXPECT_EQ(stamp.magic, 3u);
  EXPECT_EQ(stamp.step, 5u);
  const auto* const window = reinterpret_cast<const uint32_t*>(
      own->OnDevice(region_->bytes().data() + kWindowHeaderBytes));
  EXPECT_EQ(Download(window, values.size()), values);
}

TEST_F(RegisteredMemoryTest, PagesThatAreRegisteredAlreadyAreRefusedByName) {
  const absl::Span<std::byte> pages = region_->direct().pages;
  {
    auto first = RegisteredMemory::Create(pages);
    ASSERT_TRUE(first.ok()) << first.status();

    const auto second = RegisteredMemory::Create(pages);

    EXPECT_EQ(second.status().code(), absl::StatusCode::kInternal);
    EXPECT_NE(second.status().message().find("cudaErrorHostMemoryAlreadyRegistered"),
              std::string::npos)
        << second.status();
    // It goes with its owner, moved or not.
    const RegisteredMemory moved = *std::move(first);
    EXPECT_NE(moved.OnDevice(pages.data()), nullptr);
  }
  EXPECT_TRUE(RegisteredMemory::Create(pages).ok());
}

TEST_F(RegisteredMemoryTest, RefusesWhatIsNoWholePage) {
  const absl::Span<std::byte> pages = region_->direct().pages;

  EXPECT_EQ(RegisteredMemory::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RegisteredMemory::Create(pages.subspan(64)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RegisteredMemory::Create(pages.first(100)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels::cuda
