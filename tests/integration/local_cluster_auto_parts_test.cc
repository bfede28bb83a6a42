// SPDX-License-Identifier: Apache-2.0
//
// Policy auto of compute nodes that are stages and shards of replicas: by times that they say they
// have measured of their layers, with K and V on memory nodes and on themselves. Bits are those of
// memory nodes with as many shards.

#include <string>
#include <vector>

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::EngineStatus;
using coordinator::GenerateSpec;
using ::testing::HasSubstr;

struct Parts {
  std::string name;
  uint32_t replicas = 1;
  uint32_t stages = 1;
  uint32_t shards = 1;

  uint32_t nodes() const { return replicas * stages * shards; }
};

const std::vector<Parts> kParts = {
    {.name = "TwoStages", .stages = 2},
    {.name = "TwoShards", .shards = 2},
    {.name = "StagesOfShards", .stages = 2, .shards = 2},
    {.name = "ReplicasOfStages", .replicas = 2, .stages = 2},
    {.name = "ReplicasOfShards", .replicas = 2, .shards = 2},
    {.name = "ReplicasOfStagesOfShards", .replicas = 2, .stages = 2, .shards = 2}};

// With memory nodes each row takes twice as long, and what comes before rows nothing.
plan::PolicyTimes Times() {
  plan::PolicyTimes times{.attention_local = 1e12, .read_bandwidth = 1e12};
  for (const uint32_t rows : {1u, 64u}) {
    times.local.push_back({rows, 1e-3 * (8 + rows), 1e-3 * (8 + rows)});
    times.pools.push_back({rows, 2e-3 * rows, 2e-3 * rows});
  }
  return times;
}

LocalClusterOptions Auto(const Parts& parts, double rows) {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  LocalClusterOptions options = {.model = model,
                                 .compute_nodes = parts.nodes(),
                                 .stages = parts.stages,
                                 .shards = parts.shards,
                                 .memory_nodes = 2,
                                 .slots = 8192,
                                 .lanes = parts.replicas * parts.stages,
                                 .chunk_tokens = 64,
                                 .sequence_tokens_max = 768};
  options.policy_auto = coordinator::PolicyAutoOptions{
      .load = {.rows = rows, .context = 100}, .memory = {{.names = {"m0"}}, {.names = {"m1"}}}};
  options.policy_times = Times();
  return options;
}

// On the number of shards bits depend.
LocalClusterOptions TwoPools(const Parts& parts) {
  LocalClusterOptions options = Auto({.shards = parts.shards}, 1);
  options.policy_auto.reset();
  return options;
}

class AutoPartsTest : public ::testing::TestWithParam<std::tuple<Parts, bool>> {
 protected:
  const Parts& parts() const { return std::get<0>(GetParam()); }
  bool local() const { return std::get<1>(GetParam()); }
  LocalClusterOptions Options() const { return Auto(parts(), local() ? 64 : 1); }
};

TEST_P(AutoPartsTest, HaveTheBitsOfTwoPools) {
  const std::unique_ptr<LocalCluster> pools = MakeCluster(TwoPools(parts()));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);
  const EngineStatus status = cluster->engine().GetStatus();  // Later the load of late may count.

  ExpectSame(cluster->GenerateMany(MixedRequests()), pools->GenerateMany(MixedRequests()));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_EQ(status.policy, local() ? "local" : "attend_remote") << status.policy_choice;
  ASSERT_TRUE(status.policy_figures.has_value());
  for (const core::PolicyFigure& figure : status.policy_figures->figures) {
    const cost::KvPolicy policy = figure.candidate.policy;
    EXPECT_EQ(figure.seconds > 0,
              policy == cost::KvPolicy::kLocal || policy == cost::KvPolicy::kAttendRemote)
        << cost::KvPolicyName(policy) << " " << figure.candidate.why_not;
  }
  for (uint32_t node = 0; node < parts().nodes(); ++node) {
    const std::string name = absl::StrCat("c", node);
    EXPECT_EQ(cluster->handler(name).Counters().kv_bytes_read > 0, local()) << name;
    EXPECT_EQ(status.nodes.at(node).kv.slots_total > 0, local()) << name;
  }
  EXPECT_EQ(cluster->handler("m0").Counters().units > 0, !local());
}

// It measures again, and an epoch with it begins; of one replica alone requests end meanwhile.
TEST_P(AutoPartsTest, OutliveALostNode) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::vector<GenerateResult> expected = cluster->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  requests[0]->WaitForTokens(2);
  const uint64_t before = cluster->engine().GetStatus().epoch;
  const std::string lost = absl::StrCat("c", parts().nodes() - 1);

  cluster->Detach(lost);

  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult result = requests[i]->Wait();
    if (parts().replicas == 1 && !result.status.ok()) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      continue;
    }
    ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectSameChoice(result.choices[0], expected[i].choices[0]);
  }
  EXPECT_THAT(cluster->engine().GetStatus().state, HasSubstr(lost));
  cluster->Attach(lost);
  ASSERT_TRUE(cluster->WaitForEpoch(before + parts().replicas).ok());
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  ExpectSame(cluster->GenerateMany(specs), expected);
}

INSTANTIATE_TEST_SUITE_P(Parts, AutoPartsTest,
                         ::testing::Combine(::testing::ValuesIn(kParts), ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param).name +
                                  (std::get<1>(test.param) ? "Local" : "AttendRemote");
                         });

class MeasuredPartsTest : public ::testing::TestWithParam<Parts> {};

// Which one is faster is the machine's affair.
TEST_P(MeasuredPartsTest, AreChosenForByWhatTheyMeasure) {
  LocalClusterOptions options = Auto(GetParam(), 4);
  options.policy_times = {};
  const std::unique_ptr<LocalCluster> pools = MakeCluster(TwoPools(GetParam()));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  const std::vector<GenerateSpec> specs = LongRequests(2);
  ExpectSame(cluster->GenerateMany(specs), pools->GenerateMany(specs));

  const EngineStatus status = cluster->engine().GetStatus();
  ASSERT_TRUE(status.policy_figures.has_value());
  EXPECT_GT(status.policy_figures->SecondsOf(cost::KvPolicy::kLocal), 0);
  EXPECT_GT(status.policy_figures->SecondsOf(cost::KvPolicy::kAttendRemote), 0);
  for (uint32_t node = 0; node < GetParam().nodes(); ++node) {
    const plan::PolicyTimes& times = status.nodes.at(node).hello.identity.policy_times;
    EXPECT_TRUE(times.measured()) << node;
    const bool last = node / GetParam().shards + 1 == GetParam().stages;
    EXPECT_EQ(times.local.front().tail_seconds > 0, last) << node;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, MeasuredPartsTest, ::testing::Values(kParts[0], kParts[1]),
                         [](const auto& test) { return test.param.name; });

// The file speaks of many rows, and two run.
TEST(AutoPartsTest, TakeTheOtherPolicyWhenNothingRunsAndLoseNothing) {
  for (const Parts& parts : {kParts[0], kParts[1]}) {
    SCOPED_TRACE(parts.name);
    LocalClusterOptions options = Auto(parts, 64);
    options.policy_auto->idle = Millis(20);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    EngineStatus status = cluster->engine().GetStatus();
    EXPECT_EQ(status.policy, "local");
    const std::vector<GenerateSpec> specs = LongRequests(2);
    const std::vector<GenerateResult> expected = cluster->GenerateMany(specs);
    const Nanos deadline = RealClock().Now() + LocalCluster::kTimeout;
    while (status.policy == "local" && RealClock().Now() < deadline) {
      ExpectSame(cluster->GenerateMany(specs), expected);
      const Nanos pause = RealClock().Now() + 3 * options.policy_auto->idle;
      while (RealClock().Now() < pause) {
        status = cluster->engine().GetStatus();
      }
    }

    EXPECT_EQ(status.policy, "attend_remote");
    EXPECT_THAT(status.policy_choice, HasSubstr("; the load of late"));
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_EQ(cluster->engine().GetStatus().requests_failed, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// A cluster whose first epoch waits for a stage says for whom, and why.
TEST(AutoPartsTest, ThoseThatAreThereWaitForTheOthersOfTheirReplica) {
  LocalClusterOptions options = Auto(kParts[0], 1);
  options.attach = false;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  cluster->Attach("m0");
  cluster->Attach("m1");
  cluster->Attach("c1");
  EXPECT_EQ(cluster->engine().GetStatus().state,
            "waiting for c0, c1; c1 waits for the other nodes of its replica");
  EXPECT_EQ(cluster->engine().GetStatus().policy, "");
  cluster->Detach("c1");
  EXPECT_EQ(cluster->engine().GetStatus().state, "waiting for c0, c1");
  cluster->Attach("c0");
  cluster->Attach("c1");
  EXPECT_TRUE(cluster->WaitForState("serving").ok());
}

}  // namespace
}  // namespace lamina::test_support
