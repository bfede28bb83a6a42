// SPDX-License-Identifier: Apache-2.0
//
// What attention of a StreamKvDevice gives its stream.

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "kernels/cuda/stream_kv_device.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using cuda_emulation::AllGiven;
using cuda_emulation::Given;

class StreamKvDeviceTest : public DeviceTest {};

// Also of a device into which nothing is stored, as attention is measured.
TEST_F(StreamKvDeviceTest, ItemsOfACallAreOneLaunchHoweverFewTokensAreStored) {
  constexpr uint32_t kItems = 8;
  constexpr uint32_t kContext = 40;
  const AttentionDescriptor layer = {
      .query_heads = 4, .kv_heads = 2, .head_dim = 32, .scale = 0.2f};
  const absl::StatusOr<std::unique_ptr<KvDevice>> device =
      MakeStreamKvDevice({.layers = {layer},
                          .slots = kItems * kContext,
                          .context_tokens_max = kContext,
                          .items_max = kItems},
                         /*partial_bytes_max=*/uint64_t{1} << 20, device_, stream());
  ASSERT_TRUE(device.ok()) << device.status();
  const size_t width = layer.q_width();
  const BFloat16* const q = Upload(std::vector<BFloat16>(kItems * width));
  BFloat16* const out = Make<BFloat16>(kItems * width);
  std::array<Extent, kItems> extents;
  std::vector<AttentionItem> items;
  for (uint32_t i = 0; i < kItems; ++i) {
    extents[i] = {.first_slot = i * kContext, .tokens = kContext};
    items.push_back({.extents = {&extents[i], 1},
                     .first_position = kContext - 1,
                     .q = q + i * width,
                     .q_stride = width,
                     .out = out + i * width,
                     .out_stride = width});
  }
  const Given before = AllGiven();

  ASSERT_TRUE((*device)->Attend(0, AllHeads(layer), items).ok());

  EXPECT_EQ((AllGiven() - before).launches, 2u) << "of blocks, and of their merge";
  EXPECT_TRUE(stream().Synchronize().ok());
}

}  // namespace
}  // namespace lamina::kernels::cuda
