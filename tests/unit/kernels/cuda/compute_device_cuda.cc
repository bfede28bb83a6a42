// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "kernels/cuda/compute_device.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::kernels {

// So few bytes that some chunks of the suite go in several parts.
std::unique_ptr<ComputeDevice> SuiteComputeDevice(DType compute_type, ThreadPool&) {
  auto device = cuda::MakeCudaComputeDevice(
      {.dense = {.compute_type = compute_type, .workspace_bytes = size_t{8} << 20},
       .partial_bytes_max = 64 * 1024});
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

namespace {

TEST(CudaComputeDeviceTest, ADeviceThatIsNotThereIsUnavailable) {
  const auto device = cuda::MakeCudaComputeDevice({.index = 63});
  EXPECT_TRUE(absl::IsUnavailable(device.status())) << device.status();
}

TEST(CudaComputeDeviceTest, SaysHowMuchMemoryWasRefused) {
  ThreadPool pool({});
  const auto device = SuiteComputeDevice(DType::kBF16, pool);
  const auto buffer = device->Allocate(size_t{1} << 50);
  ASSERT_TRUE(absl::IsResourceExhausted(buffer.status())) << buffer.status();
  EXPECT_THAT(buffer.status().message(), testing::HasSubstr("TiB"));
}

TEST(CudaComputeDeviceTest, HeadsThatItsKernelsDoNotComputeAreRefused) {
  ThreadPool pool({});
  const auto device = SuiteComputeDevice(DType::kBF16, pool);
  const AttentionDescriptor odd = {.query_heads = 2, .kv_heads = 2, .head_dim = 24};
  const auto chunks =
      device->MakeChunkAttention({.layers = {odd}, .slots = 16, .context_tokens_max = 16});
  EXPECT_TRUE(absl::IsInvalidArgument(chunks.status())) << chunks.status();
}

TEST(CudaComputeDeviceTest, Int8IsRefused) {
  ThreadPool pool({});
  const auto device = SuiteComputeDevice(DType::kBF16, pool);
  const AttentionDescriptor layer = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  const auto chunks = device->MakeChunkAttention(
      {.layers = {layer}, .slots = 64, .context_tokens_max = 64, .int8 = true});
  EXPECT_TRUE(absl::IsInvalidArgument(chunks.status())) << chunks.status();
  const auto kv = device->MakeKvDevice(
      {.layers = {layer}, .slots = 64, .context_tokens_max = 64, .int8_slots = 64});
  EXPECT_TRUE(absl::IsInvalidArgument(kv.status())) << kv.status();
}

}  // namespace

}  // namespace lamina::kernels
