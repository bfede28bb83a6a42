// SPDX-License-Identifier: Apache-2.0
//
// Slices that store k and v of their rows as they make them, captured and op by op: what lies in
// the slots, that nothing else does, and how many launches that takes.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "compute_node/slice_stores.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kRowsMax = 12;
constexpr uint32_t kSlots = 40;

class SliceStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(device().Begin().ok());
    std::vector<AttentionDescriptor> layers;
    for (uint32_t slice = 0; slice + 1 < executor().slice_count(); ++slice) {
      layers.push_back(executor().attention(slice).descriptor);
    }
    auto kv = device().MakeKvDevice({.layers = layers,
                                     .slots = kSlots,
                                     .context_tokens_max = kSlots,
                                     .items_max = kRowsMax,
                                     .query_tokens_max = 1,
                                     .store_tokens_max = kRowsMax});
    ASSERT_TRUE(kv.ok()) << kv.status();
    kv_ = *std::move(kv);
    ASSERT_TRUE(kv_->Begin().ok());
  }

  ValueBuffers Buffers() {
    ValueBuffers buffers = *executor().MakeBuffers(kRowsMax);
    std::vector<SliceStore> stores;
    for (uint32_t slice = 0; slice + 1 < executor().slice_count(); ++slice) {
      EXPECT_TRUE(CanStore(executor(), slice));
      stores.push_back({.slice = slice, .planes = kv_->Planes(slice).value()});
    }
    StoreInto(executor(), stores, buffers);
    return buffers;
  }

  // Copies of a layer's planes: [kv_heads, slots, head_dim] each.
  std::vector<BFloat16> PlanesOf(uint32_t slice) {
    const KvPlanesOf of(kv_->Planes(slice).value(), executor().attention(slice).descriptor);
    std::vector<BFloat16> both(2 * of.elements);
    device().Copy(both.data(), of.planes.k, of.elements * sizeof(BFloat16));
    device().Copy(both.data() + of.elements, of.planes.v, of.elements * sizeof(BFloat16));
    EXPECT_TRUE(device().Synchronize().ok());
    return both;
  }

  // What the planes should hold: heads of the rows that have slots, else zeros.
  std::vector<BFloat16> Expected(uint32_t slice, const std::vector<uint32_t>& slots,
                                 ValueBuffers& buffers) {
    const AttentionDescriptor& d = executor().attention(slice).descriptor;
    EXPECT_TRUE(executor().QkvToHost(slice, slots.size(), slots.size(), buffers).ok());
    const auto rows = executor().QkvRows(slice, slots.size(), buffers);
    const size_t plane = size_t{kSlots} * d.kv_width();
    std::vector<BFloat16> both(2 * plane);
    for (size_t row = 0; row < slots.size(); ++row) {
      for (size_t i = 0; slots[row] != kernels::kNoSlot && i < 2 * d.kv_width(); ++i) {
        const size_t of_plane = i % d.kv_width();
        const size_t head = of_plane / d.head_dim;
        both[i / d.kv_width() * plane + (head * kSlots + slots[row]) * d.head_dim +
             of_plane % d.head_dim] = rows.row(row)[d.q_width() + i];
      }
    }
    return both;
  }

  void ExpectStored(ValueBuffers& buffers, bool replayed) {
    const std::vector<uint32_t> ids = {1, 2, 3, 4, 5};
    const std::vector<uint32_t> positions = {7, 8, 9, 30, 0};  // A chunk and two more sequences.
    const std::vector<uint32_t> slots = {5, 6, 20, kernels::kNoSlot, 0};
    ASSERT_TRUE(executor().SetRows({ids, positions, slots}, buffers).ok());

    EXPECT_EQ(executor().RunBeforeSend(0, buffers), replayed);

    const std::vector<BFloat16> found = PlanesOf(0);
    const std::vector<BFloat16> expected = Expected(0, slots, buffers);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin(),
                           [](BFloat16 a, BFloat16 b) { return a.bits == b.bits; }));
  }

  SliceExecutor& executor() { return program_.executor(); }
  kernels::ComputeDevice& device() { return executor().device(); }

  struct KvPlanesOf {
    KvPlanesOf(const kernels::KvPlanes& from, const AttentionDescriptor& d)
        : planes(from), elements(size_t{kSlots} * d.kv_width()) {
      EXPECT_EQ(from.head_stride, size_t{kSlots} * d.head_dim);
    }
    kernels::KvPlanes planes;
    size_t elements;
  };

  Program program_{
      {.model_type = GetParam(), .seed = 5, .layers = 3, .kv_heads = 2, .vocabulary = 96},
      DType::kBF16};
  std::unique_ptr<kernels::KvDevice> kv_;
};

TEST_P(SliceStoreTest, RowsOfASliceLieInTheirSlots) {
  ValueBuffers buffers = Buffers();
  ExpectStored(buffers, /*replayed=*/false);
}

TEST_P(SliceStoreTest, RowsOfACapturedSliceLieInTheirSlots) {
  ASSERT_TRUE(executor().Prepare(kRowsMax).ok());
  ValueBuffers buffers = Buffers();
  ASSERT_TRUE(executor().Capture(kRowsMax, buffers).ok());
  const std::vector<BFloat16> captured = PlanesOf(0);
  EXPECT_TRUE(std::all_of(captured.begin(), captured.end(),
                          [](BFloat16 element) { return element.bits == 0; }));

  ExpectStored(buffers, /*replayed=*/true);
}

// Norms of heads, rope and the store are one launch, and no launch more than without a store.
TEST_P(SliceStoreTest, StoringTakesNoLaunch) {
  const std::vector<uint32_t> rows = {1, 2};
  const auto launches_of = [&](ValueBuffers& buffers) {
    EXPECT_TRUE(executor().SetRows({rows, rows, rows}, buffers).ok());
    executor().RunBeforeSend(1, buffers);  // Products and what makes sums of theirs are the same.
    const cuda_emulation::Given before = cuda_emulation::AllGiven();
    executor().RunBeforeSend(1, buffers);
    return (cuda_emulation::AllGiven() - before).launches;
  };
  ValueBuffers plain = *executor().MakeBuffers(kRowsMax);
  ValueBuffers storing = Buffers();

  const uint64_t launches = launches_of(plain);

  EXPECT_EQ(launches_of(storing), launches);
  // Sum and norm, activation, sum and norm, q, k and v; OLMo 2's norms are of what layers make:
  // they, sums and roundings of these are launches each.
  EXPECT_EQ(launches, GetParam() == "olmo2" ? 8u : 4u);
}

// Behind rows that are stored stand no launches but those of attention and its merge.
TEST_P(SliceStoreTest, AttentionBehindItIsTwoDependentLaunches) {
  ValueBuffers buffers = Buffers();
  const std::vector<uint32_t> ids = {1, 2};
  const std::vector<uint32_t> positions = {0, 0};
  const std::vector<uint32_t> slots = {3, 9};
  ASSERT_TRUE(executor().SetRows({ids, positions, slots}, buffers).ok());
  executor().RunBeforeSend(0, buffers);
  const AttentionDescriptor& d = executor().attention(0).descriptor;
  const auto qkv = executor().DeviceQkvRows(0, ids.size(), buffers);
  const auto out = executor().DeviceAttentionRows(0, ids.size(), buffers);
  const Extent extents[] = {{.first_slot = 3, .tokens = 1}, {.first_slot = 9, .tokens = 1}};
  std::vector<kernels::AttentionItem> items;
  for (size_t row = 0; row < ids.size(); ++row) {
    items.push_back({.extents = {&extents[row], 1},
                     .q = qkv.row(row),
                     .q_stride = qkv.stride,
                     .out = out.row(row),
                     .out_stride = out.stride});
  }
  const cuda_emulation::Given before = cuda_emulation::AllGiven();
  const uint64_t dependent = cuda_emulation::DependentLaunches();

  ASSERT_TRUE(kv_->Attend(0, AllHeads(d), items).ok());

  EXPECT_EQ((cuda_emulation::AllGiven() - before).launches, 2u);
  EXPECT_EQ(cuda_emulation::DependentLaunches() - dependent, 2u);
  // Each row attends to itself alone: its output is its v.
  ASSERT_TRUE(executor().QkvToHost(0, ids.size(), ids.size(), buffers).ok());
  std::vector<BFloat16> attended(ids.size() * d.q_width());
  device().Copy(attended.data(), out.data, attended.size() * sizeof(BFloat16));
  ASSERT_TRUE(device().Synchronize().ok());
  const auto rows = executor().QkvRows(0, ids.size(), buffers);
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t i = 0; i < d.q_width(); ++i) {
      const size_t kv_head = i / d.head_dim / d.group();
      const size_t v = d.q_width() + d.kv_width() + kv_head * d.head_dim + i % d.head_dim;
      EXPECT_EQ(attended[row * d.q_width() + i].bits, rows.row(row)[v].bits) << row << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SliceStoreTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "olmo2"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lamina::compute_node
