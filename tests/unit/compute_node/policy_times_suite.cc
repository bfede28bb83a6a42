// SPDX-License-Identifier: Apache-2.0
//
// What a node measures for policy auto on the suite's device. By its clock: in an emulation that
// tells nothing, so the figures are only those that a coordinator takes.

#include <gtest/gtest.h>

#include "compute_node/policy_times.h"
#include "tests/unit/compute_node/part_of_model.h"
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
  EXPECT_GT(times->reads_low, 0);
  EXPECT_GE(times->reads_high, times->reads_low);
}

// Two of three layers, with the weights of their slices alone.
TEST(PolicyTimesSuite, AStageMeasuresItsOwnSlicesAndNoTail) {
  PartOfModel part(Spec("llama"), {.layers = 2});
  ASSERT_TRUE(part.executor().device().Begin().ok());
  const PolicyMeasurement what{.layers = part.layers(),
                               .slices = {.end = 2, .tail = false, .head = false},
                               .kv_bytes = 64 << 10};
  ThreadPool pool({});

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what, part.executor(), pool);

  ASSERT_TRUE(times.ok()) << times.status();
  const absl::Status checked = plan::CheckPolicyTimes(*times);
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(times->measured());
  for (const plan::SliceTimes& size : times->local) {
    EXPECT_GT(size.slice_seconds, 0);
    EXPECT_EQ(size.tail_seconds, 0);
  }
}

// The one without the LM head, which has the last MLP all the same.
TEST(PolicyTimesSuite, AShardMeasuresItsOwnHeadsAndColumns) {
  PartOfModel part(Spec("llama"), {.layers = 3, .shard = {.index = 1}}, /*shards=*/2);
  ASSERT_TRUE(part.executor().device().Begin().ok());
  EXPECT_EQ(part.layers()[0].kv_heads, 1u);
  const PolicyMeasurement what{
      .layers = part.layers(), .slices = {.head = false, .shards = 2}, .kv_bytes = 64 << 10};
  ThreadPool pool({});

  const absl::StatusOr<plan::PolicyTimes> times = MeasurePolicyTimes(what, part.executor(), pool);

  ASSERT_TRUE(times.ok()) << times.status();
  const absl::Status checked = plan::CheckPolicyTimes(*times);
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(times->measured());
  for (const plan::SliceTimes& size : times->local) {
    EXPECT_GT(size.slice_seconds, 0);
    EXPECT_GT(size.tail_seconds, 0);
  }
}

}  // namespace
}  // namespace lamina::compute_node
