// SPDX-License-Identifier: Apache-2.0
//
// Dependent launches in the emulation, which holds kernels to the wait that they begin with; and
// where launches are ordinary.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using cuda_emulation::DependentLaunches;

__global__ void WaitsKernel(uint32_t* sum) {
  WaitForLaunchBefore();
  *sum += threadIdx.x + 1;
}
__global__ void ReadsBeforeItsWaitKernel(uint32_t* sum) {
  const uint32_t before = *sum;
  WaitForLaunchBefore();
  *sum = before + threadIdx.x + 1;
}
__global__ void WaitsInOneThreadKernel(uint32_t* sum) {
  if (threadIdx.x == 0) {
    WaitForLaunchBefore();
    *sum += 1;
  }
}

class DependentLaunchesTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    KernelLimits limits;
    ASSERT_EQ(LoadEach(limits, WaitsKernel, ReadsBeforeItsWaitKernel, WaitsInOneThreadKernel),
              cudaSuccess);
    sum_ = Upload(std::vector<uint32_t>{0});
  }

  cudaError_t LaunchOn(void (*kernel)(uint32_t*), bool dependent = true) {
    return Launch(kernel,
                  {.grid = dim3(2),
                   .block = dim3(3),
                   .stream = static_cast<cudaStream_t>(stream().get()),
                   .dependent = dependent},
                  sum_);
  }
  uint32_t sum() { return Download(sum_, 1)[0]; }

  // Rows of zeros into slots, by a launch that is dependent where there are such.
  uint64_t DependentOfAStore() {
    const AttentionDescriptor shape = {.query_heads = 1, .kv_heads = 1, .head_dim = 16};
    const uint32_t* const slots = Upload(std::vector<uint32_t>{1, 0});
    const BFloat16* const rows = Upload(std::vector<BFloat16>(32));
    BFloat16* const k = Make<BFloat16>(32);
    BFloat16* const v = Make<BFloat16>(32);
    const uint64_t before = DependentLaunches();
    EXPECT_TRUE(StoreKv(shape, rows, rows, 16, {slots, 2}, k, v, 32, stream()).ok());
    for (const BFloat16 element : Download(k, 32)) {
      EXPECT_EQ(element.bits, 0);
    }
    return DependentLaunches() - before;
  }

  uint32_t* sum_ = nullptr;
};

TEST_F(DependentLaunchesTest, AKernelThatWaitsFirstRuns) {
  const uint64_t before = DependentLaunches();

  ASSERT_EQ(LaunchOn(WaitsKernel), cudaSuccess);
  ASSERT_EQ(LaunchOn(WaitsKernel), cudaSuccess);

  EXPECT_EQ(sum(), 24u);
  EXPECT_EQ(DependentLaunches() - before, 2u);
}

TEST_F(DependentLaunchesTest, AKernelThatReadsBeforeItsWaitEndsTheProgram) {
  EXPECT_EXIT((void)LaunchOn(ReadsBeforeItsWaitKernel), testing::KilledBySignal(SIGSEGV), "");

  ASSERT_EQ(LaunchOn(ReadsBeforeItsWaitKernel, /*dependent=*/false), cudaSuccess);
  EXPECT_EQ(sum(), 12u);
}

TEST_F(DependentLaunchesTest, AThreadThatHasNotWaitedEndsTheProgram) {
  EXPECT_DEATH((void)LaunchOn(WaitsInOneThreadKernel), "has not waited for the launch before");

  sum_ = Upload(std::vector<uint32_t>{0});  // Memory of the device is the child's too.
  ASSERT_EQ(LaunchOn(WaitsInOneThreadKernel, /*dependent=*/false), cudaSuccess);
  EXPECT_EQ(sum(), 2u);
}

TEST_F(DependentLaunchesTest, ADeviceOfAnEarlierKindLaunchesOrdinarily) {
  EXPECT_EQ(DependentOfAStore(), 1u);
  {
    const cuda_emulation::OtherCard card({.capability_major = 8, .capability_minor = 6});
    const auto device = OpenDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_FALSE(LaunchesAreDependent());
    EXPECT_EQ(DescribeLaunches(*device), "ordinary launches (compute capability 8.6)");

    EXPECT_EQ(DependentOfAStore(), 0u);
  }
  const auto device = OpenDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(DescribeLaunches(*device), "dependent launches");
  EXPECT_EQ(DependentOfAStore(), 1u);
}

TEST_F(DependentLaunchesTest, TheyCanBeTurnedOff) {
  AllowDependentLaunches(false);
  EXPECT_EQ(DescribeLaunches(device_), "ordinary launches (turned off)");
  const uint64_t dependent = DependentOfAStore();
  AllowDependentLaunches(true);

  EXPECT_EQ(dependent, 0u);
  EXPECT_EQ(DependentOfAStore(), 1u);
}

TEST_F(DependentLaunchesTest, KernelsThatWereBuiltForEarlierDevicesAreNamed) {
  const DeviceInfo newer = {.name = "Newer", .capability_major = 12};

  EXPECT_EQ(DescribeLaunches(newer), "ordinary launches (kernels built for less than 9.0)");
}

}  // namespace
}  // namespace lamina::kernels::cuda
