// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_simulation.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

using testing::HasSubstr;

constexpr char kTwoPools[] = R"(
model: small
compute:
  - {name: c0, replica: r0, stage: 0, price: 2/h}
  - {name: c1, replica: r0, stage: 1, price: 2/h}
memory:
  - {name: m0, capacity: 4GiB, price: 0.5/h}
  - {name: m1, capacity: 4GiB, price: 0.5/h}
pipeline: {lanes: auto}
limits: {sequence_tokens_max: 16384, running_max: 64}
)";

ClusterDevices Devices() {
  const cost::DeviceRates rates = {
      .dense = {.seconds_per_byte = {1e-12}, .seconds_per_flop = {1e-14}},
      .attention = {.seconds_per_byte = {1e-12}},
      .capacity = {1e11}};
  return {.compute = rates, .memory = rates};
}

absl::StatusOr<SimFleet> FleetOfText(const std::string& text) {
  const auto config = ParseClusterConfig(text, "test", {});
  if (!config.ok()) {
    return config.status();
  }
  return FleetOfClusterFile(*config, SmallModel(), Devices(), {});
}

TEST(ClusterSimulationTest, HasTheFilesNodesLimitsAndPrices) {
  const auto fleet = FleetOfText(kTwoPools);

  ASSERT_TRUE(fleet.ok()) << fleet.status();
  const SimCellSpec& cell = fleet->cell;
  EXPECT_EQ(cell.cluster.replicas, 1);
  EXPECT_EQ(cell.cluster.stages, 2);
  EXPECT_EQ(cell.cluster.memory_nodes, 2);
  EXPECT_EQ(cell.kv_tokens, std::floor((uint64_t{4} << 30) / SmallModel().KvBytesPerToken()));
  EXPECT_EQ(cell.scheduler.sequence_tokens_max, SmallModel().positions_max);
  EXPECT_TRUE(cell.scheduler.lanes_auto);
  EXPECT_DOUBLE_EQ(cell.compute_price, 2);
  EXPECT_DOUBLE_EQ(cell.memory_price, 0.5);
  const auto requests =
      MakeArrivals({.requests = 50, .rate = 50, .input = 100, .output = 50, .tokens_max = 8192});
  const auto result = Simulate(*fleet, requests, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->answered, result->requests);
}

// The LM head takes as long as a layer, so that the first of two stages has 13 of the 24 layers,
// and is full first.
TEST(ClusterSimulationTest, ReplicasThatKeepKvAreCells) {
  const auto fleet = FleetOfText(R"(
model: small
policy: local
compute:
  - {name: c0, capacity: 1GiB, replica: r0, stage: 0}
  - {name: c1, capacity: 1GiB, replica: r0, stage: 1}
  - {name: c2, capacity: 1GiB, replica: r1, stage: 0}
  - {name: c3, capacity: 1GiB, replica: r1, stage: 1}
limits: {sequence_tokens_max: 8192, running_max: 64}
)");

  ASSERT_TRUE(fleet.ok()) << fleet.status();
  const SimCellSpec& cell = fleet->cell;
  EXPECT_EQ(fleet->cells, 2);
  EXPECT_EQ(cell.cluster.replicas, 1);
  EXPECT_EQ(cell.cluster.stages, 2);
  EXPECT_EQ(cell.cluster.lanes, 2);
  EXPECT_EQ(cell.scheduler.lanes, 2);
  EXPECT_EQ(cell.scheduler.running_max, 32);
  EXPECT_EQ(cell.kv_tokens,
            std::floor((uint64_t{1} << 30) / (SmallModel().KvBytesPerToken() * 13 / 24)));
  const std::vector<TraceRequest> requests(20, {.at = 0, .input = 100, .output = 20});
  const auto result = Simulate(*fleet, requests, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, 20);
}

// One of three shards has 3 of the 8 KV heads, or 2 of them.
TEST(ClusterSimulationTest, TheShardWithTheMostHeadsIsFullFirst) {
  const auto fleet = FleetOfText(R"(
model: small
policy: local
compute:
  - {name: c0, capacity: 1GiB, replica: r0, shard: 0}
  - {name: c1, capacity: 1GiB, replica: r0, shard: 1}
  - {name: c2, capacity: 1GiB, replica: r0, shard: 2}
)");

  ASSERT_TRUE(fleet.ok()) << fleet.status();
  EXPECT_EQ(fleet->cell.cluster.shards, 3);
  EXPECT_EQ(fleet->cell.kv_tokens,
            std::floor((uint64_t{1} << 30) / (SmallModel().KvBytesPerToken() * 3 / 8)));
}

TEST(ClusterSimulationTest, MoreStagesThanLayersAreRefused) {
  std::string text = "model: small\nmemory: [{name: m0, capacity: 1GiB}]\ncompute:\n";
  for (uint32_t stage = 0; stage <= SmallModel().layers; ++stage) {
    absl::StrAppend(&text, "- {name: c", stage, ", replica: r0, stage: ", stage, "}\n");
  }
  const absl::Status refused = FleetOfText(text).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "compute: a replica of 25 stages wants a model of as many layers; small has 24");
}

// The memory node has 5,461 slots.
TEST(ClusterSimulationTest, SlotsBehindWindowsAreFree) {
  const auto config = ParseClusterConfig(
      "model: small\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 512MiB}]\n", "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  cost::ModelShape shape = SmallModel();
  shape.window = 1024;
  const std::vector<TraceRequest> requests = {{.at = 0, .input = 7000, .output = 100}};
  for (const uint32_t layers : {0u, shape.layers}) {
    shape.window_layers = layers;
    const auto fleet = FleetOfClusterFile(*config, shape, Devices(), {});
    ASSERT_TRUE(fleet.ok()) << fleet.status();
    const auto result = Simulate(*fleet, requests, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->answered, layers > 0 ? 1 : 0);
  }
}

TEST(ClusterSimulationTest, NamesWhatIsNotSimulated) {
  EXPECT_THAT(std::string(FleetOfText("model: m\npolicy: auto\n"
                                      "compute: [{name: c0, capacity: 1GiB}]\n"
                                      "memory: [{name: m0, capacity: 1GiB}]\n")
                              .status()
                              .message()),
              HasSubstr("policy: 'auto' is not simulated"));
  EXPECT_THAT(std::string(FleetOfText("model: m\npolicies: [attend_remote, fetch_heads]\n"
                                      "compute: [{name: c0}]\n"
                                      "memory: [{name: m0, capacity: 1GiB}]\n")
                              .status()
                              .message()),
              HasSubstr("policies: 2 policies of one cluster are not simulated"));
  EXPECT_THAT(std::string(FleetOfText("model: m\ncompute: [{name: c0}]\n"
                                      "memory: [{name: m0, capacity: 1GiB}, "
                                      "{name: m1, capacity: 2GiB}]\n")
                              .status()
                              .message()),
              HasSubstr("m0 and m1 differ in capacity"));
  EXPECT_THAT(std::string(FleetOfText("model: m\npolicy: local\ncompute: "
                                      "[{name: c0, capacity: 1GiB}, {name: c1, capacity: 2GiB}]\n")
                              .status()
                              .message()),
              HasSubstr("compute: c0 and c1 differ in capacity"));
  EXPECT_THAT(std::string(FleetOfText("model: m\ncompute: [{name: c0}]\n"
                                      "memory: [{name: m0, capacity: 1KiB}]\n")
                              .status()
                              .message()),
              HasSubstr("hold no token"));
}

}  // namespace
}  // namespace lamina::planner
