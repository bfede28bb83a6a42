// SPDX-License-Identifier: Apache-2.0
//
// A KvDevice whose rows lie in the device's memory, compared with one that has the same rows from
// the host's: the same bits, wherever rows lie in the window and outputs go.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "kernels/cuda/kv_device.h"
#include "kernels/cuda/window_memory.h"
#include "tests/unit/kernels/cuda/async_streams.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint32_t kSlots = 2048;
constexpr size_t kWindow = 1 << 16;  // Elements.

AttentionDescriptor Layer() {
  return {.query_heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.17f};
}

// An item whose row is somewhere in the window, and whose output is somewhere in the replies or is
// a partial.
struct Asked {
  std::vector<Extent> extents;
  uint32_t first_position = 0;
  size_t q = 0;
  size_t out = 0;
  bool part = false;
};

class KvDeviceMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    const KvDeviceOptions options = {.layers = {Layer(), Layer()},
                                     .slots = kSlots,
                                     .context_tokens_max = 1024,
                                     .items_max = 16,
                                     .store_tokens_max = 400};
    for (std::unique_ptr<KvDevice>* device : {&host_, &device_}) {
      auto made = CudaKvDevices(0)(options);
      ASSERT_TRUE(made.ok()) << made.status();
      *device = *std::move(made);
      ASSERT_TRUE((*device)->Begin().ok());
    }
    window_ = DeviceAllocation::Make(*memory_, kWindow * sizeof(BFloat16)).value();
    replies_ = DeviceAllocation::Make(*memory_, kWindow * sizeof(BFloat16)).value();
    const std::array<absl::Span<const std::byte>, 2> ranges = {window_.bytes(), replies_.bytes()};
    ASSERT_TRUE(device_->device_rows()->UseMemory(ranges).ok());
    Refill();
  }

  // The window has other rows, here and there.
  void Refill() {
    std::normal_distribution<float> normal(0.0f, 1.2f);
    rows_.resize(kWindow);
    for (BFloat16& x : rows_) {
      x = ToBFloat16(normal(random_));
    }
    ASSERT_TRUE(memory_
                    ->CopyIn(window_.bytes().data(),
                             reinterpret_cast<const std::byte*>(rows_.data()),
                             kWindow * sizeof(BFloat16))
                    .ok());
  }

  const BFloat16* There(size_t element) const {
    return reinterpret_cast<const BFloat16*>(window_.bytes().data()) + element;
  }

  struct Stored {
    size_t k = 0;
    size_t v = 0;
    size_t stride = 0;
    std::vector<Extent> slots;
  };
  void Store(const std::vector<Stored>& all, HeadRange heads = AllHeads(Layer())) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<KvRows> here;
      std::vector<KvRows> there;
      for (const Stored& one : all) {
        here.push_back({.k = rows_.data() + one.k,
                        .v = rows_.data() + one.v,
                        .stride = one.stride,
                        .slots = one.slots});
        there.push_back(
            {.k = There(one.k), .v = There(one.v), .stride = one.stride, .slots = one.slots});
      }
      ASSERT_TRUE(host_->Store(layer, heads, here).ok());
      ASSERT_TRUE(device_->Store(layer, heads, there).ok());
    }
  }

  void Attend(const std::vector<Asked>& all, bool to_device) {
    const size_t part = Layer().query_heads * PartialWidth(Layer());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<BFloat16> out[2];
      std::vector<float> partials[2];
      for (int which = 0; which < 2; ++which) {
        out[which].assign(kWindow, BFloat16{0x1234});
        partials[which].assign(all.size() * part, -7.0f);
        const bool on_device = which == 1 && to_device;
        BFloat16* const to =
            on_device ? reinterpret_cast<BFloat16*>(replies_.bytes().data()) : out[which].data();
        if (on_device) {
          ASSERT_TRUE(memory_
                          ->CopyIn(replies_.bytes().data(),
                                   reinterpret_cast<const std::byte*>(out[which].data()),
                                   kWindow * sizeof(BFloat16))
                          .ok());
        }
        std::vector<AttentionItem> items;
        for (size_t i = 0; i < all.size(); ++i) {
          items.push_back({.extents = all[i].extents,
                           .first_position = all[i].first_position,
                           .q = which == 0 ? rows_.data() + all[i].q : There(all[i].q),
                           .q_stride = Layer().q_width(),
                           .out = all[i].part ? nullptr : to + all[i].out,
                           .out_stride = Layer().q_width(),
                           .partial = all[i].part ? partials[which].data() + i * part : nullptr});
        }
        const absl::Status attended =
            (which == 0 ? host_ : device_)->Attend(layer, AllHeads(Layer()), items);
        ASSERT_TRUE(attended.ok()) << attended;
        if (on_device) {
          ASSERT_TRUE(memory_
                          ->CopyOut(reinterpret_cast<std::byte*>(out[which].data()),
                                    replies_.bytes().data(), kWindow * sizeof(BFloat16))
                          .ok());
        }
      }
      EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), kWindow * sizeof(BFloat16)), 0);
      EXPECT_EQ(std::memcmp(partials[0].data(), partials[1].data(), partials[0].size() * 4), 0);
    }
  }

  const std::shared_ptr<void> async_ = MakeStreamsAsync();
  const std::unique_ptr<DeviceMemory> memory_ = OpenWindowMemory(0).value();
  std::mt19937 random_{5};
  std::vector<BFloat16> rows_;
  DeviceAllocation window_;
  DeviceAllocation replies_;
  std::unique_ptr<KvDevice> host_;
  std::unique_ptr<KvDevice> device_;
};

constexpr size_t kQ = 6 * 32;  // Widths.
constexpr size_t kKv = 2 * 32;
constexpr size_t kRow = kQ + 2 * kKv;

// Rows [q | k | v] of three sequences, then the K and V of two prompts, as in a query window.
TEST_F(KvDeviceMemoryTest, RowsAndPromptsOfAWindowHaveTheBitsOfTheHosts) {
  const std::vector<Extent> first = {{.first_slot = 0, .tokens = 300}};
  const std::vector<Extent> second = {{.first_slot = 400, .tokens = 20},
                                      {.first_slot = 500, .tokens = 31}};
  const size_t prompts = 32 + 3 * kRow;
  Store({{.k = 32 + kQ, .v = 32 + kQ + kKv, .stride = kRow, .slots = {{1000, 1}}},
         {.k = 32 + kRow + kQ, .v = 32 + kRow + kQ + kKv, .stride = kRow, .slots = {{1500, 1}}},
         {.k = 32 + 2 * kRow + kQ,
          .v = 32 + 2 * kRow + kQ + kKv,
          .stride = kRow,
          .slots = {{1200, 1}}},
         {.k = prompts, .v = prompts + kKv, .stride = 2 * kKv, .slots = first},
         {.k = prompts + 300 * 2 * kKv,
          .v = prompts + 300 * 2 * kKv + kKv,
          .stride = 2 * kKv,
          .slots = second}});
  for (const bool to_device : {false, true}) {
    Attend({{.extents = first, .first_position = 299, .q = 32, .out = 64},
            {.extents = second, .first_position = 50, .q = 32 + kRow, .out = 64 + kQ},
            {.extents = {{1000, 1}}, .first_position = 0, .q = 32 + 2 * kRow, .out = 64 + 2 * kQ}},
           to_device);
  }
}

// In no order at all, one row for several items, in the window's end; some heads alone.
TEST_F(KvDeviceMemoryTest, RowsAnywhereHaveTheBitsOfTheHosts) {
  const std::vector<Extent> slots = {{.first_slot = 7, .tokens = 200}};
  Store({{.k = kWindow - 200 * 2 * kKv,
          .v = kWindow - 200 * 2 * kKv + kKv,
          .stride = 2 * kKv,
          .slots = slots}});
  Store({{.k = 4096, .v = 512, .stride = kKv, .slots = {{7, 1}}},
         {.k = 1024, .v = 8192, .stride = kKv, .slots = {{9, 1}}},
         {.k = 1024, .v = 8192, .stride = kKv, .slots = {{11, 1}}}});
  Store({{.k = 2048, .v = 2048 + kKv / 2, .stride = kKv, .slots = {{8, 1}}},
         {.k = 2048 + kKv, .v = 2048 + 3 * kKv / 2, .stride = kKv, .slots = {{10, 1}}}},
        {.first = 1, .count = 1});
  for (const bool to_device : {false, true}) {
    Attend({{.extents = slots, .first_position = 199, .q = 4096, .out = 4096},
            {.extents = slots, .first_position = 10, .q = 64, .out = 0},
            {.extents = slots, .first_position = 9, .q = 64 + 2 * kQ, .out = 512},
            {.extents = slots, .first_position = 8, .q = 64 + 4 * kQ, .out = 1024},
            {.extents = slots, .first_position = 8, .q = 64 + 4 * kQ, .out = 2048}},
           to_device);
  }
  Refill();
  Attend({{.extents = slots, .first_position = 199, .q = 640, .part = true},
          {.extents = slots, .first_position = 99, .q = 640, .part = true},
          {.extents = slots, .first_position = 0, .q = 960, .out = 128}},
         false);
}

// What Store() has read, and the header, are there when Settle() has returned.
TEST_F(KvDeviceMemoryTest, SettlesWhatWasOrdered) {
  const std::vector<Extent> slots = {{.first_slot = 0, .tokens = 300}};
  Store({{.k = 0, .v = kKv, .stride = 2 * kKv, .slots = slots}});
  ASSERT_TRUE(device_->device_rows()->Peek(window_.bytes().data() + 64, 64).ok());

  ASSERT_TRUE(device_->device_rows()->Settle().ok());

  EXPECT_EQ(std::memcmp(device_->device_rows()->peeked(), rows_.data() + 32, 64), 0);
  Refill();
  Attend({{.extents = slots, .first_position = 299, .q = 640, .out = 0}}, true);
}

}  // namespace
}  // namespace lamina::kernels::cuda
