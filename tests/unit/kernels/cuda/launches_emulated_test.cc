// SPDX-License-Identifier: Apache-2.0
//
// What the emulation refuses as a device would, or holds up as a device may: launches of kernels
// that were not loaded, impossible grids, memory taken while a kernel polls.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.h"
#include "kernels/cuda/wait.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/support/cuda_emulation/streams.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

__global__ void NeverLoadedKernel(int) {}
__global__ void LoadedKernel(int) {}

cudaError_t LaunchLoaded(const dim3& grid, const dim3& block, size_t shared_bytes) {
  KernelLimits limits;
  EXPECT_EQ(LoadEach(limits, LoadedKernel), cudaSuccess);
  return Launch(LoadedKernel, {.grid = grid, .block = block, .shared_bytes = shared_bytes}, 1);
}

TEST(LaunchTest, AKernelThatWasNotLoadedIsRefused) {
  EXPECT_EQ(Launch(NeverLoadedKernel, {.grid = dim3(1), .block = dim3(1)}, 1),
            cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(LaunchLoaded(dim3(1), dim3(1), 0), cudaSuccess);
}

TEST(LaunchTest, GridsBlocksAndSharedMemoryThatNoDeviceHasAreRefused) {
  EXPECT_EQ(LaunchLoaded(dim3(0), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchLoaded(dim3(1, 0), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchLoaded(dim3(1, 65536), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchLoaded(dim3(1), dim3(0), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchLoaded(dim3(1), dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchLoaded(dim3(1), dim3(32), 228 * 1024), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchLoaded(dim3(1), dim3(32), 227 * 1024), cudaSuccess);
}

TEST(LoadKernelsTest, ADeviceThatIsTooOldIsToldWhatItWouldNeed) {
  const DeviceInfo device = {
      .name = "Older", .index = 64, .capability_major = 7, .capability_minor = 5};
  cuda_emulation::FailLoads(true);

  const absl::Status refused = LoadKernels(device);

  cuda_emulation::FailLoads(false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("Older"), HasSubstr("7.5"), HasSubstr("they need 8.0 or later")));
  EXPECT_TRUE(LoadKernels(device).ok());
}

TEST(LoadKernelsTest, ADeviceThatNothingWasBuiltForIsNamed) {
  const DeviceInfo device = {
      .name = "Other", .index = 64, .capability_major = 8, .capability_minor = 6};
  cuda_emulation::FailLoads(true);

  const absl::Status refused = LoadKernels(device);

  cuda_emulation::FailLoads(false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("Other"), HasSubstr("8.6"), HasSubstr("CMAKE_CUDA_ARCHITECTURES")));
}

TEST(CudaToStatusTest, WhatADeviceDoesNotHaveIsUnimplemented) {
  EXPECT_EQ(CudaToStatus(cudaErrorNotSupported, "call").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CudaToStatus(cudaErrorNoDevice, "call").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CudaToStatus(cudaErrorLaunchFailure, "call").code(), absl::StatusCode::kInternal);
}

class ThreadedDeviceTest : public DeviceTest {
 private:
  const cuda_emulation::ThreadedStreams threads_;
};

// So a test hangs, or runs into its wait's deadline, where a device may.
TEST_F(ThreadedDeviceTest, WhoTakesMemoryWaitsForAKernelThatPolls) {
  struct Words {
    uint64_t signal = 0;
    uint32_t abort = 0;
    WaitRecord record;
  };
  Words* const words = new (*pinned_->Take<Words>(1)) Words{};
  ASSERT_TRUE(WaitForWindow({.signal = &words->signal,
                             .at_least = 1,
                             .timeout_nanos = 2'000'000,
                             .abort = &words->abort,
                             .record = &words->record,
                             .sequence = 1},
                            stream())
                  .ok());

  const auto arena = MemoryArena::Create(ArenaKind::kPinnedHost, 4096);

  EXPECT_TRUE(arena.ok());
  EXPECT_EQ(words->record.sequence, 1u);
  EXPECT_EQ(words->record.outcome, static_cast<uint32_t>(WaitOutcome::kTimeout));
}

}  // namespace
}  // namespace lamina::kernels::cuda
