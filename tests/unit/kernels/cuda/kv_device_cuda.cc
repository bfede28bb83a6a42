// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/kv_device.h"
#include "tests/unit/kernels/kv_device_suite.h"

namespace lamina::kernels {

KvDeviceMaker SuiteDevices(ThreadPool&) { return cuda::CudaKvDevices(0); }

namespace {

TEST(CudaKvDeviceTest, SaysHowMuchMemoryWasRefused) {
  const AttentionDescriptor layer = {.query_heads = 64, .kv_heads = 64, .head_dim = 256};
  const auto device = cuda::CudaKvDevices(0)({.layers = {layer},
                                              .slots = 1u << 30,
                                              .context_tokens_max = 16,
                                              .items_max = 1,
                                              .store_tokens_max = 1});
  ASSERT_TRUE(absl::IsResourceExhausted(device.status())) << device.status();
  EXPECT_THAT(device.status().message(), testing::HasSubstr("TiB"));
}

TEST(CudaKvDeviceTest, ADeviceThatIsNotThereIsUnavailable) {
  const auto device = cuda::CudaKvDevices(63)({.layers = {}, .slots = 1});
  EXPECT_TRUE(absl::IsUnavailable(device.status())) << device.status();
}

TEST(CudaKvDeviceTest, ActivationsAndInt8AreRefused) {
  const AttentionDescriptor layer = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  const KvDeviceOptions options = {.layers = {layer},
                                   .slots = 64,
                                   .context_tokens_max = 64,
                                   .items_max = 1,
                                   .store_tokens_max = 1};
  KvDeviceOptions activations = options;
  activations.activation_width = 32;
  activations.activation_slots = 64;
  KvDeviceOptions int8 = options;
  int8.int8_slots = 64;
  EXPECT_TRUE(cuda::CudaKvDevices(0)(options).ok());
  for (const KvDeviceOptions& refused : {activations, int8}) {
    const auto device = cuda::CudaKvDevices(0)(refused);
    EXPECT_TRUE(absl::IsInvalidArgument(device.status())) << device.status();
  }
}

TEST(CudaKvDeviceTest, MeasuresItsReadBandwidth) {
  const auto bandwidth = cuda::MeasureReadBandwidth(0);
  ASSERT_TRUE(bandwidth.ok()) << bandwidth.status();
  EXPECT_GT(*bandwidth, 0);
}

}  // namespace

}  // namespace lamina::kernels
