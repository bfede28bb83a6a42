// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/kernels/kv_device_suite.h"

namespace lamina::kernels {

KvDeviceMaker SuiteDevices(ThreadPool& pool) { return CpuKvDevices(CpuAttention(), pool); }

namespace {

TEST(CpuKvDeviceTest, HasNoTensorCores) {
  ThreadPool pool({});
  const AttentionDescriptor layer = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  const auto device = SuiteDevices(pool)(
      {.layers = {layer}, .arithmetic = AttentionArithmetic::kTensor, .slots = 16});
  EXPECT_TRUE(absl::IsInvalidArgument(device.status())) << device.status();
}

TEST(CpuKvDeviceTest, TakesRowsFromTheHostsMemoryOnlyAndHasNoChannel) {
  ThreadPool pool({});
  const AttentionDescriptor layer = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  const auto device = *SuiteDevices(pool)({.layers = {layer}, .slots = 16});

  EXPECT_TRUE(device->MakeStepLanes({.lanes = 1, .rows_max = 1}).ok());
  EXPECT_EQ(device->device_rows(), nullptr);
  EXPECT_EQ(device->step_attention(), nullptr);
  EXPECT_EQ(device->MakeChannel({}).value(), nullptr);
  EXPECT_TRUE(device->UseMemory({}).ok());
  const absl::Span<const std::byte> range;
  EXPECT_TRUE(absl::IsUnimplemented(device->UseMemory({&range, 1})));
}

// Some rows of a step are as little work as waking a thread; many are the pool's.
TEST(CpuKvDeviceTest, TheWholePoolStoresManyRows) {
  ThreadPool pool({});
  const AttentionDescriptor layer = {.query_heads = 9, .kv_heads = 3, .head_dim = 64};
  const auto device = *SuiteDevices(pool)({.layers = {layer}, .slots = 128});
  const std::vector<BFloat16> values(layer.kv_width());
  const auto parts = [&](uint32_t tokens) {
    std::vector<Extent> slots;
    std::vector<KvRows> rows;
    for (uint32_t t = 0; t < tokens; ++t) {
      slots.push_back({.first_slot = 3 * t, .tokens = 1});
    }
    for (const Extent& slot : slots) {
      rows.push_back({.k = values.data(), .v = values.data(), .slots = {&slot, 1}});
    }
    const uint64_t before = pool.caller_steps();
    EXPECT_TRUE(device->Store(0, AllHeads(layer), rows).ok());
    return pool.caller_steps() - before;
  };
  EXPECT_EQ(parts(7), 0u);
  EXPECT_EQ(parts(8), 24u);

  const std::vector<BFloat16> prompt(100 * layer.kv_width());
  const Extent slots = {.first_slot = 10, .tokens = 100};
  const KvRows rows = {
      .k = prompt.data(), .v = prompt.data(), .stride = layer.kv_width(), .slots = {&slots, 1}};
  const uint64_t before = pool.caller_steps();
  EXPECT_TRUE(device->Store(0, AllHeads(layer), {&rows, 1}).ok());
  EXPECT_EQ(pool.caller_steps() - before, 6u) << "of slots below 64 and above, for three heads";
}

}  // namespace

}  // namespace lamina::kernels
