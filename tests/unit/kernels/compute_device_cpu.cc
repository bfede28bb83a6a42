// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::kernels {

std::unique_ptr<ComputeDevice> SuiteComputeDevice(DType compute_type, ThreadPool& pool) {
  return MakeCpuComputeDevice(MakeReferenceDense(compute_type), CpuAttention(), pool);
}

namespace {

TEST(CpuComputeDeviceTest, HasNoTensorCores) {
  ThreadPool pool({});
  const AttentionDescriptor layer = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  const auto chunks =
      SuiteComputeDevice(DType::kBF16, pool)
          ->MakeChunkAttention(
              {.layers = {layer}, .arithmetic = AttentionArithmetic::kTensor, .slots = 16});
  EXPECT_TRUE(absl::IsInvalidArgument(chunks.status())) << chunks.status();
}

TEST(CpuComputeDeviceTest, LeavesTheExchangeOfRowsToTheCaller) {
  ThreadPool pool({});
  const auto channel = SuiteComputeDevice(DType::kBF16, pool)->MakeChannel({});
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_EQ(*channel, nullptr);
}

}  // namespace

}  // namespace lamina::kernels
