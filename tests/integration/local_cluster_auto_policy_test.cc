// SPDX-License-Identifier: Apache-2.0
//
// Policy auto: epochs with KV on memory nodes, and with KV on the compute node, by times that the
// compute node says it has measured. Tokens are the same to the bit in both, and a change of policy
// loses nothing.

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::EngineStatus;
using coordinator::GenerateSpec;
using ::testing::HasSubstr;

// With memory nodes each row takes twice as long, and what comes before rows nothing; a step of
// more than about eight rows is shorter on the compute node.
plan::PolicyTimes Times() {
  plan::PolicyTimes times{
      .attention_local = 1e12, .attention_shared = 1e12, .read_bandwidth = 1e12};
  for (const uint32_t rows : {1u, 64u}) {
    times.local.push_back({rows, 1e-3 * (8 + rows), 1e-3 * (8 + rows)});
    times.pools.push_back({rows, 2e-3 * rows, 2e-3 * rows});
  }
  return times;
}

LocalClusterOptions Auto(double rows) {
  LocalClusterOptions options = {.model = SmallModel(),
                                 .memory_nodes = 2,
                                 .slots = 8192,
                                 .lanes = 1,
                                 .sequence_tokens_max = 768,
                                 .threads = 2};
  options.policy_auto = coordinator::PolicyAutoOptions{
      .load = {.rows = rows, .context = 100}, .memory = {{.names = {"m0", "m1"}, .shared = true}}};
  options.policy_times = Times();
  options.pools_threads = 1;
  return options;
}

LocalClusterOptions Pools() {
  LocalClusterOptions options = Auto(1);
  options.policy_auto.reset();
  return options;
}

class AutoPolicyTest : public ::testing::TestWithParam<double> {};

TEST_P(AutoPolicyTest, HasTheBitsOfTwoPools) {
  const bool local = GetParam() > 8;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Pools());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Auto(GetParam()));
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  ExpectSame(cluster->GenerateMany(MixedRequests()), pools->GenerateMany(MixedRequests()));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.policy, local ? "local" : "attend_remote");
  EXPECT_THAT(status.policy_choice, HasSubstr("; the load of the cluster file"));
  ASSERT_TRUE(status.policy_figures.has_value());
  EXPECT_EQ(status.policy_figures->local(), local);
  EXPECT_EQ(cluster->handler("c0").Counters().kv_bytes_read > 0, local);
  EXPECT_EQ(cluster->handler("m0").Counters().units > 0, !local);
  EXPECT_EQ(status.nodes.at(0).kv.slots_total, local ? 8192u : 0u);
  EXPECT_EQ(status.nodes.at(1).kv.slots_total, local ? 0u : 8192u);
}

INSTANTIATE_TEST_SUITE_P(Rows, AutoPolicyTest, ::testing::Values(1, 32));

// As many KV heads as query heads, so that an activation has half the bytes of K and V.
LocalClusterOptions Fetching(cost::KvPolicy policy) {
  LocalClusterOptions options = Auto(1);
  options.model.kv_heads = options.model.query_heads;
  options.model.width = options.model.query_heads * options.model.head_dim;
  options.attention = {.decode = AttentionArithmetic::kCanonical,
                       .prefill = AttentionArithmetic::kCanonical};
  options.fetch_bytes = 8 << 20;
  options.policy_times.attention_pools = 1e12;
  options.policy_times.make_seconds = 1e-9;
  options.auto_only = policy;
  return options;
}

class AutoFetchTest : public ::testing::TestWithParam<cost::KvPolicy> {};

TEST_P(AutoFetchTest, HasTheBitsOfTwoPools) {
  LocalClusterOptions remote = Fetching(GetParam());
  remote.policy_auto.reset();
  remote.fetch_bytes = 0;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(remote);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Fetching(GetParam()));
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  ExpectSame(cluster->GenerateMany(MixedRequests()), pools->GenerateMany(MixedRequests()));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.policy, cost::KvPolicyName(GetParam()));
  // Where everything is made again no K and V come.
  const telemetry::NodeCounters counters = cluster->handler("c0").Counters();
  EXPECT_GT(counters.kv_bytes_read + counters.recomputed_tokens, 0u);
  const bool keeps_both = GetParam() == cost::KvPolicy::kFetchRecompute;
  EXPECT_EQ(status.nodes.at(1).kv.slots_total < 8192u, keeps_both) << "activations take room";
}

INSTANTIATE_TEST_SUITE_P(
    Policies, AutoFetchTest,
    ::testing::Values(cost::KvPolicy::kFetchHeads, cost::KvPolicy::kFetchRecompute,
                      cost::KvPolicy::kFetchHybrid, cost::KvPolicy::kFetchTokens),
    [](const auto& test) { return std::string(cost::KvPolicyName(test.param)); });

// Links are assumed to be as fast as copies, which hide behind dense layers, and turn out slow.
TEST(AutoPolicyClusterTest, LinksThatAreMeasuredChangeTheChoiceBeforeAnythingRuns) {
  LocalClusterOptions options = Fetching(cost::KvPolicy::kFetchHeads);
  options.auto_only.reset();
  options.transports = {"throttle(bandwidth=8MiB)+shm://"};
  options.policy_auto->idle = Seconds(3600);
  options.policy_auto->policies = {
      {.policy = cost::KvPolicy::kAttendRemote},
      {.policy = cost::KvPolicy::kFetchHeads, .fetch = {.bytes = 8 << 20}}};
  options.policy_auto->memory = {{.names = {"m0"}}, {.names = {"m1"}}};
  // 1 KiB of K and V a token, and nodes that read 10 GB/s: attention takes 1 ms, dense layers 4.
  options.policy_auto->load = {.rows = 1, .context = 19500};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ASSERT_TRUE(cluster->WaitForEpoch(2).ok());
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_EQ(cluster->engine().GetStatus().policy, "attend_remote");
  EXPECT_TRUE(cluster->GenerateMany(LongRequests(2)).at(0).status.ok());
}

// Each keeps K and V of a lane of its own, or lanes rotate over both.
class AutoPolicyReplicasTest : public ::testing::TestWithParam<double> {
 protected:
  static LocalClusterOptions Replicas(double rows) {
    LocalClusterOptions options = Auto(rows);
    options.compute_nodes = 2;
    options.lanes = 2;
    options.policy_auto->memory = {{.names = {"m0"}}, {.names = {"m1"}}};
    return options;
  }
};

TEST_P(AutoPolicyReplicasTest, HaveTheBitsOfTwoPools) {
  const bool local = GetParam() > 16;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Pools());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Replicas(GetParam()));
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  ExpectSame(cluster->GenerateMany(MixedRequests()), pools->GenerateMany(MixedRequests()));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.policy, local ? "local" : "attend_remote") << status.policy_choice;
  for (const std::string name : {"c0", "c1"}) {
    EXPECT_EQ(cluster->handler(name).Counters().kv_bytes_read > 0, local) << name;
  }
  EXPECT_EQ(cluster->handler("m0").Counters().units > 0, !local);
}

TEST_P(AutoPolicyReplicasTest, RequestsOutliveALostReplica) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Replicas(GetParam()));
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::vector<GenerateResult> expected = cluster->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  requests[0]->WaitForTokens(2);

  cluster->Detach("c1");

  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult result = requests[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectSameChoice(result.choices[0], expected[i].choices[0]);
  }
  const uint64_t alone = cluster->engine().GetStatus().epoch;
  cluster->Attach("c1");
  ASSERT_TRUE(cluster->WaitForEpoch(alone + 1).ok());
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  ExpectSame(cluster->GenerateMany(specs), expected);
}

INSTANTIATE_TEST_SUITE_P(Rows, AutoPolicyReplicasTest, ::testing::Values(1, 64));

// The file speaks of many rows, and two run.
TEST(AutoPolicyClusterTest, TakesTheOtherPolicyWhenNothingRunsAndLosesNothing) {
  LocalClusterOptions options = Auto(32);
  options.policy_auto->idle = Millis(20);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(2);
  const std::vector<GenerateResult> expected = cluster->GenerateMany(specs);
  EngineStatus status = cluster->engine().GetStatus();
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
  EXPECT_GT(status.epoch, 1u);
  ExpectSame(cluster->GenerateMany(specs), expected);
  EXPECT_EQ(cluster->engine().GetStatus().requests_failed, 0u);
  EXPECT_GT(cluster->handler("m0").Counters().units + cluster->handler("m1").Counters().units, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST(AutoPolicyClusterTest, ServesWithoutMemoryNodesUntilTheyAreBack) {
  LocalClusterOptions options = Auto(1);
  options.policy_auto->idle = Millis(20);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::vector<GenerateResult> expected = cluster->GenerateMany(specs);
  EXPECT_EQ(cluster->engine().GetStatus().policy, "attend_remote");

  cluster->Detach("m0");
  cluster->Detach("m1");
  ASSERT_TRUE(cluster->WaitForState("serving; without m0, m1").ok());

  ExpectSame(cluster->GenerateMany(specs), expected);
  const EngineStatus alone = cluster->engine().GetStatus();
  EXPECT_EQ(alone.policy, "local");
  EXPECT_THAT(alone.policy_choice, HasSubstr("no memory node is there"));

  cluster->Attach("m0");
  cluster->Attach("m1");
  ASSERT_TRUE(cluster->WaitForEpoch(alone.epoch + 1).ok());
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_EQ(cluster->engine().GetStatus().policy, "attend_remote");
  ExpectSame(cluster->GenerateMany(specs), expected);
}

// Its sequences were on both; what was on the other one goes on where KV is then.
TEST(AutoPolicyClusterTest, OnlyRequestsOfALostMemoryNodeEnd) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Auto(1));
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  requests[0]->WaitForTokens(2);

  cluster->Detach("m1");

  size_t done = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult result = requests[i]->Wait();
    if (!result.status.ok()) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      continue;
    }
    ++done;
    ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
  }
  EXPECT_GT(done, 0u);
}

TEST(AutoPolicyClusterTest, AComputeNodeThatMeasuredNothingIsRefused) {
  LocalClusterOptions options = Auto(1);
  options.policy_times = {};
  options.attach = false;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  cluster->Attach("c0");
  EXPECT_THAT(cluster->engine().GetStatus().state, HasSubstr("waiting for c0"));
  EXPECT_THAT(cluster->link("c0").refused(), HasSubstr("has measured nothing for policy auto"));
}

}  // namespace
}  // namespace lamina::test_support
