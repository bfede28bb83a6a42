// SPDX-License-Identifier: Apache-2.0
//
// What attention of a StreamKvDevice gives its stream.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
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

// As in a model's last layer, which reads few rows of prompts.
TEST_F(StreamKvDeviceTest, RowsBetweenItemsAreLeftOutOfOneLaunch) {
  struct Rows {
    uint32_t first;
    uint32_t tokens;
  };
  constexpr Rows kItems[] = {{0, 1}, {2, 1}, {3, 2}, {7, 2}};
  constexpr uint32_t kRows = 9;
  constexpr uint32_t kContext = 40;
  const AttentionDescriptor layer = {
      .query_heads = 4, .kv_heads = 2, .head_dim = 32, .scale = 0.2f};
  const absl::StatusOr<std::unique_ptr<KvDevice>> device =
      MakeStreamKvDevice({.layers = {layer},
                          .slots = 4 * kContext,
                          .context_tokens_max = kContext,
                          .items_max = kRows,
                          .query_tokens_max = kRows,
                          .store_tokens_max = kContext},
                         /*partial_bytes_max=*/uint64_t{1} << 20, device_, stream());
  ASSERT_TRUE(device.ok()) << device.status();
  const size_t width = layer.q_width();
  const BFloat16* const q = Upload(std::vector<BFloat16>(kRows * width));
  const BFloat16* const k = Upload(std::vector<BFloat16>(kContext * layer.kv_width()));
  BFloat16* const out = Make<BFloat16>(kRows * width);
  BFloat16* const packed = Make<BFloat16>(kRows * width);
  std::array<Extent, 4> extents;
  std::vector<AttentionItem> items;
  std::vector<AttentionItem> packed_items;
  std::vector<uint16_t> expected(kRows, 0xffff);
  std::vector<uint16_t> expected_packed;
  for (uint32_t i = 0; i < 4; ++i) {
    // Whatever its weights, a row gets the one value that all tokens of its sequence have.
    const BFloat16 value = ToBFloat16(static_cast<float>(i + 1));
    extents[i] = {.first_slot = i * kContext, .tokens = kContext};
    const KvRows stored = {.k = k,
                           .v = Upload(std::vector<BFloat16>(kContext * layer.kv_width(), value)),
                           .stride = layer.kv_width(),
                           .slots = {&extents[i], 1}};
    ASSERT_TRUE((*device)->Store(0, AllHeads(layer), {&stored, 1}).ok());
    items.push_back({.extents = {&extents[i], 1},
                     .first_position = kContext - kItems[i].tokens,
                     .query_tokens = kItems[i].tokens,
                     .q = q + kItems[i].first * width,
                     .q_stride = width,
                     .out = out + kItems[i].first * width,
                     .out_stride = width});
    packed_items.push_back(items.back());
    packed_items.back().out = packed + expected_packed.size() * width;
    for (uint32_t token = 0; token < kItems[i].tokens; ++token) {
      expected[kItems[i].first + token] = value.bits;
      expected_packed.push_back(value.bits);
    }
  }
  expected_packed.resize(kRows, 0xffff);
  const auto rows_of = [&](const BFloat16* from) {
    std::vector<uint16_t> rows;
    const std::vector<BFloat16> all = Download(from, kRows * width);
    for (size_t row = 0; row < kRows; ++row) {
      rows.push_back(all[row * width].bits);
      EXPECT_EQ(all[(row + 1) * width - 1].bits, rows.back());
    }
    return rows;
  };
  const Given before = AllGiven();

  ASSERT_TRUE((*device)->Attend(0, AllHeads(layer), items).ok());

  EXPECT_EQ((AllGiven() - before).launches, 2u) << "of blocks, and of their merge";
  EXPECT_EQ(rows_of(out), expected);

  // Rows of q and of out with other rows between them go in several.
  ASSERT_TRUE((*device)->Attend(0, AllHeads(layer), packed_items).ok());

  EXPECT_EQ(rows_of(packed), expected_packed);
}

}  // namespace
}  // namespace lamina::kernels::cuda
