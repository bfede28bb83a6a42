// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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
  const auto device = *SuiteDevices(pool)({.layers = {layer}, .slots = 16, .step_lanes = 1});

  EXPECT_EQ(device->device_rows(), nullptr);
  EXPECT_EQ(device->step_attention(), nullptr);
  EXPECT_EQ(device->MakeChannel({}).value(), nullptr);
  EXPECT_TRUE(device->UseMemory({}).ok());
  const absl::Span<const std::byte> range;
  EXPECT_TRUE(absl::IsUnimplemented(device->UseMemory({&range, 1})));
}

}  // namespace

}  // namespace lamina::kernels
