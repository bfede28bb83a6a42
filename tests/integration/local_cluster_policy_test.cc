// SPDX-License-Identifier: Apache-2.0
//
// Policy local: the compute node holds KV and attends itself. Tokens and log-probabilities are
// those of a cluster with memory nodes, to the bit.

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::Contains;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Pair;

LocalClusterOptions Pools(const RandomModelSpec& model, DType compute_type = DType::kBF16) {
  return {.model = model,
          .compute_type = compute_type,
          .memory_nodes = 2,
          .slots = 8192,
          .lanes = 2,
          .sequence_tokens_max = 768};
}

LocalClusterOptions Local(LocalClusterOptions options) {
  options.local = true;
  options.lanes = 1;
  return options;
}

struct Base {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
};

class LocalPolicyTest : public ::testing::TestWithParam<Base> {
 protected:
  static LocalClusterOptions Plain() { return Pools(GetParam().model, GetParam().compute_type); }
};

TEST_P(LocalPolicyTest, HasTheBitsOfTwoPools) {
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Plain());
  ASSERT_NE(pools, nullptr);
  const std::vector<GenerateResult> expected = pools->GenerateMany(MixedRequests());
  for (const auto& [chunk, threads, lanes] :
       {std::tuple{512u, 1u, 1u}, {16u, 2u, 1u}, {64u, 1u, 2u}, {64u, 16u, 1u}}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk, ", ", threads, " threads, ", lanes, " lanes"));
    LocalClusterOptions options = Local(Plain());
    options.chunk_tokens = chunk;
    options.threads = threads;
    options.lanes = lanes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(MixedRequests()), expected);

    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    const telemetry::NodeCounters counters = cluster->handler("c0").Counters();
    EXPECT_GT(counters.kv_bytes_read, 0u);
    EXPECT_EQ(counters.bytes_sent, 0u);
    EXPECT_THAT(counters.links, ::testing::IsEmpty());
    EXPECT_THAT(counters.parts, Contains(Pair("attend", Gt(0.0))));
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    EXPECT_EQ(status.nodes.at(0).kv.slots_total, options.slots);
    EXPECT_EQ(status.scheduler.sub_batches.why, "");
  }
}

TEST_P(LocalPolicyTest, HasTheBitsOfTwoPoolsWhereSlotsRunOut) {
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Plain());
  ASSERT_NE(pools, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(12);
  const std::vector<GenerateResult> expected = pools->GenerateMany(specs);
  LocalClusterOptions options = Local(Plain());
  options.slots = options.sequence_tokens_max;
  options.chunk_tokens = 64;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(specs), expected);

  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Forks share the slots of their prompt.
TEST_P(LocalPolicyTest, ChoicesAreThoseOfTwoPools) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 3; ++i) {
    specs.push_back(Sampled(RandomPrompt(20 + 130 * i, i), 40, 50 + 10 * i));
    specs.back().choices = 4;
  }
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Plain());
  LocalClusterOptions options = Local(Plain());
  options.slots = options.sequence_tokens_max;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  const std::vector<GenerateResult> expected = pools->GenerateMany(specs);
  const std::vector<GenerateResult> found = cluster->GenerateMany(specs);

  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    for (uint32_t choice = 0; choice < 4; ++choice) {
      ExpectSameChoice(found[i].choices[choice], expected[i].choices[choice]);
    }
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST_P(LocalPolicyTest, ScoresAreThoseOfTwoPools) {
  const std::vector<TokenId> text = RandomPrompt(300, 9);
  const std::unique_ptr<LocalCluster> pools = MakeCluster(Plain());
  LocalClusterOptions options = Local(Plain());
  options.chunk_tokens = 32;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_TRUE(pools != nullptr && cluster != nullptr);

  const GenerateResult found = cluster->Score(text);

  ASSERT_EQ(found.scores.size(), text.size() - 1);
  EXPECT_EQ(Bits(found.scores), Bits(pools->Score(text).scores));
}

INSTANTIATE_TEST_SUITE_P(Models, LocalPolicyTest,
                         ::testing::Values(Base{SmallModel(), DType::kBF16},
                                           Base{SmallParallelModel(), DType::kF32}),
                         [](const ::testing::TestParamInfo<Base>& test) {
                           return test.param.model.model_type;
                         });

// A fast kernel's mistake would be in both of the above.
TEST(LocalPolicyClusterTest, HasTheBitsOfTheReferenceKernels) {
  LocalClusterOptions options = Local(Pools(SmallModel(), DType::kF32));
  options.reference_kernels = true;
  const std::unique_ptr<LocalCluster> reference = MakeCluster(options);
  options.local = false;
  const std::unique_ptr<LocalCluster> pools = MakeCluster(options);
  ASSERT_TRUE(reference != nullptr && pools != nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(4);

  ExpectSame(reference->GenerateMany(specs), pools->GenerateMany(specs));
}

TEST(LocalPolicyClusterTest, RequestsEndWithTheNodeAndItServesAgain) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Local(Pools(SmallModel())));
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    requests[0]->WaitForTokens(2 + 20 * round);

    cluster->Detach("c0");

    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      if (!result.status.ok()) {  // It may have been faster.
        EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
        continue;
      }
      ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
    }
    const GenerateResult refused = cluster->Generate(specs[0]);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr("waiting for c0"));
    cluster->Attach("c0");
    ASSERT_TRUE(cluster->WaitForState("serving").ok());
    ExpectSame(cluster->GenerateMany(specs), undisturbed);
  }
}

TEST(LocalPolicyClusterTest, ACancelledRequestFreesItsSlots) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Local(Pools(SmallModel())));
  ASSERT_NE(cluster, nullptr);
  const std::shared_ptr<LocalRequest> running = cluster->Start(Greedy(RandomPrompt(40, 1), 700));
  running->WaitForTokens(2);

  cluster->Cancel(*running);

  EXPECT_EQ(running->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(40, 1), 4)).status.ok());
}

}  // namespace
}  // namespace lamina::test_support
