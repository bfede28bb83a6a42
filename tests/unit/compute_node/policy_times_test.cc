// SPDX-License-Identifier: Apache-2.0
#include "compute_node/policy_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/compute_node/counting_device.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> RowsOf(const std::vector<plan::SliceTimes>& times) {
  std::vector<uint32_t> rows;
  for (const plan::SliceTimes& size : times) {
    rows.push_back(size.rows);
  }
  return rows;
}

TEST(BytesToReadTest, AreMoreThanTheLastCachesKeep) {
  EXPECT_EQ(BytesToRead(uint64_t{16} << 20), size_t{64} << 20);
  EXPECT_EQ(BytesToRead(uint64_t{40} << 20), size_t{80} << 20);
  EXPECT_EQ(BytesToRead(uint64_t{1152} << 20), size_t{256} << 20);
  EXPECT_EQ(BytesToRead(0), size_t{256} << 20) << "the kernel names no caches";
}

class PolicyTimesTest : public ::testing::Test {
 protected:
  PolicyTimesTest() {
    EXPECT_TRUE(executor().device().Begin().ok());
    what_.kv_bytes = uint64_t{16} << 20;
    for (uint32_t layer = 0; layer + 1 < executor().slice_count(); ++layer) {
      what_.layers.push_back(executor().attention(layer).descriptor);
    }
  }

  SliceExecutor& executor() { return program_.executor(); }

  // What the coordinator takes, and can choose a policy by.
  static void ExpectSound(const plan::PolicyTimes& times) {
    const absl::Status checked = plan::CheckPolicyTimes(times);
    EXPECT_TRUE(checked.ok()) << checked;
    EXPECT_TRUE(times.measured());
    EXPECT_GT(times.read_bandwidth, 0);
    EXPECT_GT(times.attention_pools, 0);
    EXPECT_THAT(RowsOf(times.local), ElementsAre(1, 4, 8, 16, 32, 64));
    EXPECT_THAT(RowsOf(times.pools), ElementsAre(1, 4, 8, 16, 32, 64));
  }

  Program program_{Spec("llama"), DType::kBF16, UINT32_MAX,
                   [](ThreadPool& pool) { return std::make_unique<CountingDevice>(pool); }};
  ThreadPool pool_{{.threads = 2}};
  PolicyMeasurement what_;
};

TEST_F(PolicyTimesTest, WithoutSharedCoresBothPoliciesHaveTheSameSlices) {
  what_.pools_threads = 2;
  std::vector<size_t> threads;
  what_.make_kv = [&]() -> absl::StatusOr<uint32_t> {
    threads.push_back(pool_.threads_in_use());
    return 100;
  };

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what_, executor(), pool_);

  ASSERT_TRUE(times.ok()) << times.status();
  ExpectSound(*times);
  EXPECT_GT(static_cast<CountingDevice&>(executor().device()).timed(), 0) << "its own clock";
  EXPECT_EQ(times->attention_shared, 0);
  for (size_t size = 0; size < times->local.size(); ++size) {
    EXPECT_EQ(times->pools[size].slice_seconds, times->local[size].slice_seconds);
    EXPECT_EQ(times->pools[size].tail_seconds, times->local[size].tail_seconds);
  }
  EXPECT_GT(times->make_seconds, 0);
  EXPECT_THAT(threads, ::testing::Each(2u));
  EXPECT_EQ(pool_.threads_in_use(), 2u);
}

TEST_F(PolicyTimesTest, SharedCoresAttendWhileTheOthersRunSlices) {
  what_.pools_threads = 1;
  what_.shared_cores = {0};

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what_, executor(), pool_);

  ASSERT_TRUE(times.ok()) << times.status();
  ExpectSound(*times);
  EXPECT_GT(times->attention_shared, 0);
  EXPECT_EQ(times->make_seconds, 0) << "nothing makes K and V";
  EXPECT_EQ(pool_.threads_in_use(), 2u) << "all threads are in use again";
}

TEST_F(PolicyTimesTest, WithoutMemoryOfTheDeviceThereAreNone) {
  static_cast<CountingDevice&>(executor().device()).FailAllocations();
  what_.pools_threads = 1;
  what_.shared_cores = {0};

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what_, executor(), pool_);

  EXPECT_EQ(times.status().code(), absl::StatusCode::kResourceExhausted) << times.status();
  EXPECT_EQ(pool_.threads_in_use(), 2u);
}

}  // namespace
}  // namespace lamina::compute_node
