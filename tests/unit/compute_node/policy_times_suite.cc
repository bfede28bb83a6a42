// SPDX-License-Identifier: Apache-2.0
//
// What a node measures for policy auto on the suite's device. By its clock: in an emulation that
// tells nothing, so the figures are only those that a coordinator takes.

#include <gtest/gtest.h>

#include "compute_node/policy_times.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

TEST(PolicyTimesSuite, ACoordinatorTakesWhatTheDeviceMeasures) {
  Program program(Spec("llama"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  ASSERT_TRUE(executor.device().Begin().ok());
  PolicyMeasurement what{.kv_bytes = 64 << 10};
  for (uint32_t layer = 0; layer + 1 < executor.slice_count(); ++layer) {
    what.layers.push_back(executor.attention(layer).descriptor);
  }
  ThreadPool pool({});

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what, executor, pool);

  ASSERT_TRUE(times.ok()) << times.status();
  const absl::Status checked = plan::CheckPolicyTimes(*times);
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(times->measured());
  EXPECT_GT(times->read_bandwidth, 0);
}

}  // namespace
}  // namespace lamina::compute_node
