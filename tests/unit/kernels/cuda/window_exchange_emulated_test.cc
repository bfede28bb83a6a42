// SPDX-License-Identifier: Apache-2.0
//
// What an exchange with windows gives its stream.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/compute_device.h"
#include "kernels/window_exchange.h"
#include "tests/support/cuda_emulation/launches.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels::cuda {
namespace {

HostWindows WindowsOf(const transport::DirectMemory& memory) {
  return {.bytes = memory.bytes,
          .words = memory.words,
          .word_stride = memory.word_stride,
          .pages = memory.pages};
}

TEST(WindowExchangeLaunchesTest, RowsToAPeerAreTwoLaunchesAndRowsFromItAreTwo) {
  constexpr size_t kWindowBytes = 4096;
  constexpr uint32_t kPeers = 2;
  const auto transport = transport::MakeShmTransport();
  const auto own =
      transport->CreateRegion({.bytes = kPeers * kWindowBytes, .signal_words = kPeers}).value();
  auto device = MakeCudaComputeDevice(
                    {.dense = {.compute_type = DType::kBF16, .workspace_bytes = size_t{8} << 20}})
                    .value();
  ASSERT_TRUE(device->Begin().ok());
  auto exchange = device
                      ->MakeExchange({.own = WindowsOf(own->direct()),
                                      .peers = kPeers,
                                      .lanes = 1,
                                      .timeout = Seconds(60)})
                      .value();
  std::vector<std::unique_ptr<transport::Region>> regions;
  std::vector<HostWindows> peers;
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    regions.push_back(transport->CreateRegion({.bytes = kWindowBytes, .signal_words = 1}).value());
    peers.push_back(WindowsOf(regions.back()->direct()));
  }
  ASSERT_TRUE(exchange->SetPeers(peers).ok());
  const Buffer rows = device->Allocate(1024).value();
  const WindowStamp stamp = {.magic = 77};
  std::vector<RowsIn> in;
  for (uint32_t peer = 0; peer < kPeers; ++peer) {  // The answers are there.
    std::memcpy(own->bytes().data() + peer * kWindowBytes, &stamp, sizeof(stamp));
    *reinterpret_cast<uint64_t*>(own->direct().words + peer * own->direct().word_stride) = 1;
    in.push_back({.peer = peer,
                  .window = peer * kWindowBytes,
                  .stamp = stamp,
                  .rows = rows.data,
                  .bytes = 1024,
                  .word = peer,
                  .value = 1});
  }

  const cuda_emulation::Given before = cuda_emulation::AllGiven();
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    ASSERT_TRUE(
        exchange
            ->Send(0, 1,
                   {.peer = peer, .stamp = stamp, .rows = rows.data, .bytes = 1024, .value = 1})
            .ok());
  }
  EXPECT_EQ(cuda_emulation::AllGiven() - before, (cuda_emulation::Given{.launches = 2 * kPeers}));

  const cuda_emulation::Given sent = cuda_emulation::AllGiven();
  ASSERT_TRUE(exchange->Take(0, 1, in).ok());
  EXPECT_EQ(cuda_emulation::AllGiven() - sent, (cuda_emulation::Given{.launches = 2 * kPeers}));
  ASSERT_TRUE(device->Synchronize().ok());
}

}  // namespace
}  // namespace lamina::kernels::cuda
