// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes whose K and V lie on a device, run by the emulation: windows in the device's memory,
// and steps that the device serves by itself. What is right and what is refused is the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "control/blame.h"
#include "kernels/cuda/kv_device.h"
#include "kernels/cuda/window_memory.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/shm/shm_transport.h"

namespace lamina::memory_node {
namespace {

using ::testing::HasSubstr;

// The emulation runs kernels of these widths alone.
constexpr AttentionDescriptor kLayer = {
    .query_heads = 6, .kv_heads = 3, .head_dim = 64, .scale = 0.125f};

class DeviceQueriesTest : public ::testing::Test {
 protected:
  // Rows of windows stay in the device's memory.
  UnitClusterOptions InDeviceMemory() {
    return {.layer = kLayer,
            .make_device = kernels::cuda::CudaKvDevices(0),
            .window_memory = memory_.get(),
            .network = {.reaches_devices = true}};
  }
  const std::shared_ptr<void> async_ = kernels::cuda::MakeStreamsAsync();
  const std::unique_ptr<DeviceMemory> memory_ = kernels::cuda::OpenWindowMemory(0).value();
};

// The device waits for windows in the host's memory, of this transport; what it answers leaves by
// an outbox, but for shm://.
class DeviceWaitsTest : public ::testing::TestWithParam<std::string> {
 protected:
  static UnitClusterOptions ByDevice() {
    UnitClusterOptions options = {
        .layer = kLayer, .device_waits = true, .make_device = kernels::cuda::CudaKvDevices(0)};
    if (GetParam() == "fake://") {  // Late and disordered.
      options.network = {.seed = 5, .delay_steps_max = 4, .shows_memory = true};
    } else {
      options.make_transport = [](DeviceMemory*) { return transport::MakeShmTransport(); };
    }
    return options;
  }

  const std::shared_ptr<void> async_ = kernels::cuda::MakeStreamsAsync();
};

void RunWorkload(UnitCluster& cluster) {
  cluster.Run({.step = 1, .prompts = {{0, 300}, {1, 5}}});
  cluster.Run({.step = 2, .rows = {0, 1}});
  cluster.Run({.step = 3, .rows = {1, 0}, .chunking = {.chunks = 2}});
  cluster.Run({.step = 4, .rows = {0, 1}, .chunking = {.chunks = 2, .by_heads = true}});
  cluster.Run({.step = 5, .rows = {0, 1}, .chunking = {.query_first = true}});
  cluster.Run({.step = 6, .rows = {0}, .prompts = {{2, 7}}});
  cluster.Run({.step = 7, .rows = {0, 1, 2}});
}

TEST_F(DeviceQueriesTest, RowsThatStayInItsMemoryHaveTheSameBits) {
  UnitCluster cluster(InDeviceMemory());
  cluster.Start();

  RunWorkload(cluster);

  cluster.Stop();
}

TEST_F(DeviceQueriesTest, WindowsInItsMemoryMayComeBeforeTheirPlans) {
  UnitCluster cluster(InDeviceMemory());
  cluster.Start();
  const UnitCluster::Step step = cluster.MakeStep({.step = 1, .prompts = {{0, 5}}});
  const auto windows = cluster.MakeWindows(step, 0);
  cluster.Put(windows[0]);
  cluster.AwaitTurns();

  cluster.PushPlan(step);

  cluster.ExpectReplies(step, 0, windows);
  cluster.RunUnit(step, 1);
  cluster.Stop();
}

// Their headers are checked during the attention, before anything is answered.
TEST_F(DeviceQueriesTest, WrongWindowsInItsMemoryAreRefused) {
  UnitCluster cluster(InDeviceMemory());
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  cluster.PushPlan(step);
  cluster.AwaitTurns();
  UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
  window.header.rows = 2;

  cluster.PutHeader(window);

  const absl::Status status = cluster.EndOf();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rows 2 where the plan says 1"));
  EXPECT_EQ(control::BlamedIn(status), "c0");
  EXPECT_EQ(cluster.Refused("rows"), 1u);
  EXPECT_LT(cluster.Replied(0, 0, 0), window.value);
}

// Steps of decode rows in one piece are the device's, all others the thread's.
TEST_P(DeviceWaitsTest, StepsThatItServesHaveTheSameBits) {
  UnitCluster cluster(ByDevice());
  cluster.Start();

  RunWorkload(cluster);

  cluster.Stop();
  EXPECT_GE(cluster.counters().device_units, cluster.config().layers.size());
  EXPECT_LE(cluster.counters().device_units, 2 * cluster.config().layers.size());
}

// Per unit: wait, rows in, k and v into their slots, attention and its merge, rows out, signal. Per
// step: slots, and the three tables of its one kind of layers.
TEST_P(DeviceWaitsTest, StepsThatItServesTakeSevenLaunchesAUnitAndCopiesOnlyWhenTheyBegin) {
  UnitCluster cluster(ByDevice());
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 300}, {1, 5}}});
  const cuda_emulation::Given before = cuda_emulation::AllGiven();

  cluster.Run({.step = 2, .rows = {0, 1}});

  const cuda_emulation::Given given = cuda_emulation::AllGiven() - before;
  EXPECT_EQ(given.launches, 7 * cluster.config().layers.size());
  EXPECT_EQ(given.copies, 4u);
  cluster.Stop();
}

TEST_P(DeviceWaitsTest, StepsThatItServesMayBePlannedLate) {
  UnitCluster cluster(ByDevice());
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  const auto windows = cluster.MakeWindows(step, 0);
  cluster.Put(windows[0]);
  cluster.AwaitTurns();

  cluster.PushPlan(step);

  cluster.ExpectReplies(step, 0, windows);
  cluster.RunUnit(step, 1);
  cluster.Run({.step = 3, .rows = {0}});
  cluster.Stop();
  // The thread may be stopped before it has seen the last units done.
  EXPECT_GE(cluster.counters().device_units, cluster.config().layers.size());
}

TEST_P(DeviceWaitsTest, WindowsThatItRefusesAreNamedByTheThread) {
  UnitCluster cluster(ByDevice());
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  cluster.PushPlan(step);
  UnitCluster::Window window = cluster.MakeWindows(step, 0)[0];
  window.header.rows = 2;

  cluster.PutHeader(window);

  const absl::Status status = cluster.EndOf();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rows 2 where the plan says 1"));
  EXPECT_EQ(control::BlamedIn(status), "c0");
  EXPECT_EQ(cluster.Refused("rows"), 1u);
}

TEST_P(DeviceWaitsTest, IsStoppedWhileTheDeviceWaits) {
  UnitCluster cluster(ByDevice());
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 5}}});
  cluster.PushPlan(cluster.MakeStep({.step = 2, .rows = {0}}));
  cluster.AwaitTurns();

  cluster.worker().Stop();

  EXPECT_TRUE(cluster.EndOf().ok());
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceWaitsTest, ::testing::Values("shm://", "fake://"),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':'));
                         });

}  // namespace
}  // namespace lamina::memory_node
