// SPDX-License-Identifier: Apache-2.0
//
// The devices on CUDA that make channels: a compute device, on whose one stream all lanes are, and
// a KV device, with a stream for each lane.

#include <gtest/gtest.h>

#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/kv_device.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "tests/unit/kernels/window_channel_suite.h"

namespace lamina::kernels::cuda {
namespace {

std::unique_ptr<ComputeDevice> MakeMemory() {
  std::unique_ptr<ComputeDevice> device =
      MakeCudaComputeDevice(
          {.dense = {.compute_type = DType::kBF16, .workspace_bytes = size_t{8} << 20}})
          .value();
  EXPECT_TRUE(device->Begin().ok());
  return device;
}

class OneStream final : public ChannelDevice {
 public:
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) override {
    return device_->MakeChannel(options);
  }
  ComputeDevice& memory() override { return *device_; }

 private:
  const std::shared_ptr<void> async_ = MakeStreamsAsync();
  const std::unique_ptr<ComputeDevice> device_ = MakeMemory();
};

class LaneStreams final : public ChannelDevice {
 public:
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) override {
    const absl::Status made = device_->MakeStepLanes({.lanes = kLanes, .rows_max = 2});
    if (!made.ok()) {
      return made;
    }
    return device_->MakeChannel(options);
  }
  ComputeDevice& memory() override { return *memory_; }

 private:
  const std::shared_ptr<void> async_ = MakeStreamsAsync();
  const std::unique_ptr<ComputeDevice> memory_ = MakeMemory();
  const std::unique_ptr<KvDevice> device_ =
      CudaKvDevices(0)({.layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 16}},
                        .slots = 256,
                        .context_tokens_max = 256,
                        .items_max = 2,
                        .store_tokens_max = 4})
          .value();
};

template <typename Device>
std::unique_ptr<ChannelDevice> Make() {
  return std::make_unique<Device>();
}

}  // namespace
}  // namespace lamina::kernels::cuda

namespace lamina::kernels {

std::vector<ChannelDeviceCase> ChannelDeviceCases() {
  return {{.name = "OneStream", .make = cuda::Make<cuda::OneStream>},
          {.name = "LaneStreams", .make = cuda::Make<cuda::LaneStreams>}};
}

}  // namespace lamina::kernels
