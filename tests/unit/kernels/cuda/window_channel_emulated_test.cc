// SPDX-License-Identifier: Apache-2.0
//
// What channels give their streams, and failures of theirs that only the emulation can be asked
// for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/window_channel_suite.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels::cuda {
namespace {

using cuda_emulation::AllGiven;
using cuda_emulation::Given;
using testing::HasSubstr;

class ChannelLaunchesTest : public testing::TestWithParam<ChannelDeviceCase> {
 protected:
  static constexpr uint32_t kPeers = 2;
  static constexpr size_t kWindowBytes = 4096;
  static constexpr size_t kRowsBytes = 1024;
  static constexpr WindowStamp kStamp = {.magic = 77};

  void SetUp() override {
    for (uint32_t peer = 0; peer < kPeers; ++peer) {
      regions_.push_back(
          transport_->CreateRegion({.bytes = kWindowBytes, .signal_words = 1}).value());
      peers_.push_back(HostWindowsOf(regions_.back()->direct()));
      in_.push_back({.peer = peer,
                     .window = peer * kWindowBytes,
                     .stamp = kStamp,
                     .rows = rows_.data,
                     .bytes = kRowsBytes,
                     .word = peer,
                     .value = 1});
      out_.push_back(
          {.peer = peer, .stamp = kStamp, .rows = rows_.data, .bytes = kRowsBytes, .value = 1});
    }
  }

  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel() {
    return device_->MakeChannel({.own = HostWindowsOf(own_->direct()),
                                 .peers = kPeers,
                                 .lanes = ChannelDevice::kLanes,
                                 .timeout = Seconds(60)});
  }

  const std::unique_ptr<transport::Transport> transport_ = transport::MakeShmTransport();
  const std::unique_ptr<transport::Region> own_ =
      transport_->CreateRegion({.bytes = kPeers * kWindowBytes, .signal_words = kPeers}).value();
  std::vector<std::unique_ptr<transport::Region>> regions_;
  std::vector<HostWindows> peers_;
  const std::unique_ptr<ChannelDevice> device_ = GetParam().make();
  const Buffer rows_ = device_->memory().Allocate(kRowsBytes).value();
  std::vector<RowsIn> in_;
  std::vector<RowsOut> out_;
};

TEST_P(ChannelLaunchesTest, RowsToAPeerAreTwoLaunchesAndRowsFromOneAreTwo) {
  const auto channel = MakeChannel().value();
  ASSERT_TRUE(channel->SetPeers(peers_).ok());
  const Given before = AllGiven();

  for (const RowsOut& out : out_) {
    ASSERT_TRUE(channel->Send(1, 1, out).ok());
  }
  EXPECT_EQ(AllGiven() - before, (Given{.launches = 2 * kPeers}));
  ASSERT_TRUE(channel->Take(1, 1, in_).ok());
  EXPECT_EQ(AllGiven() - before, (Given{.launches = 4 * kPeers}));
  EXPECT_TRUE(channel->HasTaken(0).value());
  EXPECT_FALSE(channel->FailureOf(1).has_value());
  EXPECT_TRUE(channel->Check(0).ok());
  EXPECT_EQ(AllGiven() - before, (Given{.launches = 4 * kPeers}));
}

TEST_P(ChannelLaunchesTest, WindowsThatTheDriverRefusesAreNotRegistered) {
  const size_t before = cuda_emulation::RegisteredPieces();
  cuda_emulation::FailRegistrations(true);
  const absl::Status refused = MakeChannel().status();
  cuda_emulation::FailRegistrations(false);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cudaErrorMemoryAllocation"));
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before);

  const auto channel = MakeChannel().value();
  cuda_emulation::FailRegistrations(true);
  const absl::Status unreached = channel->SetPeers(peers_);
  cuda_emulation::FailRegistrations(false);
  EXPECT_TRUE(absl::IsResourceExhausted(unreached)) << unreached;
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before + 1);

  ASSERT_TRUE(channel->SetPeers(peers_).ok());
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before + 1 + kPeers);
  channel->Close();
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before);
}

TEST_P(ChannelLaunchesTest, AFailedDeviceIsFoundWithoutWaitingForIt) {
  const auto channel = MakeChannel().value();
  ASSERT_TRUE(channel->SetPeers(peers_).ok());
  cuda_emulation::FailNextSynchronize();

  const absl::Status checked = channel->Check(1);

  EXPECT_THAT(std::string(checked.message()), HasSubstr("cudaErrorLaunchFailure"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ChannelLaunchesTest, testing::ValuesIn(ChannelDeviceCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lamina::kernels::cuda
