// SPDX-License-Identifier: Apache-2.0
//
// A request's tokens and log-probabilities are the same to the bit, whatever it is batched with and
// however the cluster is made.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

LocalClusterOptions Options(const RandomModelSpec& model, DType compute_type) {
  return {.model = model, .compute_type = compute_type, .slots = 4096, .sequence_tokens_max = 768};
}

ClusterAttention InPairs() {
  return {.decode = AttentionArithmetic::kPairs, .prefill = AttentionArithmetic::kPairs};
}

ClusterAttention InTiles() {
  return {.decode = AttentionArithmetic::kTiles, .prefill = AttentionArithmetic::kTiles};
}

struct Base {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
  ClusterAttention attention = {};
  kernels::DenseLoop dense_loop = kernels::DenseLoop::kFastest;
};

class BitsTest : public ::testing::TestWithParam<Base> {
 protected:
  LocalClusterOptions Plain() const {
    LocalClusterOptions options = Options(GetParam().model, GetParam().compute_type);
    options.attention = GetParam().attention;
    options.dense_loop = GetParam().dense_loop;
    return options;
  }

  // Every request alone, one after another, on the plainest cluster.
  static std::vector<GenerateResult> Alone(const LocalClusterOptions& options,
                                           const std::vector<coordinator::GenerateSpec>& specs) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    std::vector<GenerateResult> results;
    for (const coordinator::GenerateSpec& spec : specs) {
      results.push_back(cluster->Generate(spec));
    }
    return results;
  }

  // The mixed requests so, on this base's plain cluster: once in a run of the program.
  const std::vector<GenerateResult>& MixedAlone() const {
    static auto* const known = new std::map<std::string, std::vector<GenerateResult>>;
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::vector<GenerateResult>& results = (*known)[name.substr(name.find('/'))];
    if (results.empty()) {
      results = Alone(Plain(), MixedRequests());
    }
    return results;
  }

  void ExpectSameTogether(const LocalClusterOptions& options) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), MixedAlone());
  }
};

TEST_P(BitsTest, AloneIsAsInABatchOfSixteen) { ExpectSameTogether(Plain()); }

TEST_P(BitsTest, OneMemoryNodeIsAsTwoAndThree) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const uint32_t nodes : {2u, 3u}) {
    SCOPED_TRACE(nodes);
    LocalClusterOptions options = Plain();
    options.memory_nodes = nodes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
    for (uint32_t node = 0; node < nodes; ++node) {  // All of them took part.
      EXPECT_GT(cluster->handler(absl::StrCat("m", node)).Counters().units, 0u);
    }
  }
}

// Both models have two KV heads.
TEST_P(BitsTest, HeadsOnTwoMemoryNodesAreAsOnOne) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const auto& [replicas, lanes, chunk] :
       {std::tuple{1u, 1u, 512u}, {1u, 2u, 16u}, {2u, 3u, 64u}}) {
    SCOPED_TRACE(absl::StrCat(replicas, " replicas, ", lanes, " lanes, chunks of ", chunk));
    LocalClusterOptions options = Plain();
    options.partition = Partition::kHead;
    options.memory_nodes = 2;
    options.compute_nodes = replicas;
    options.lanes = lanes;
    options.chunk_tokens = chunk;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    EXPECT_THAT(status.partition, ::testing::HasSubstr("m0 1, m1 1 of 2 KV heads"));
    for (const coordinator::NodeReport& node : status.nodes) {
      EXPECT_EQ(node.kv.slots_total, node.member.is_memory ? 2 * options.slots : 0);
      EXPECT_GT(node.counters.units + cluster->handler(node.member.name).Counters().units, 0u);
    }
  }
}

// Spans of 256 tokens: the longest requests have three.
TEST_P(BitsTest, TokenRangesOnTwoAndThreeMemoryNodesAreAsOnOne) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const auto& [nodes, replicas, lanes, chunk] :
       {std::tuple{1u, 1u, 1u, 512u}, {2u, 1u, 1u, 512u}, {3u, 1u, 2u, 16u}, {3u, 2u, 3u, 64u}}) {
    SCOPED_TRACE(absl::StrCat(nodes, " memory nodes, ", replicas, " replicas, ", lanes,
                              " lanes, chunks of ", chunk));
    LocalClusterOptions options = Plain();
    options.partition = Partition::kTokenRange;
    options.memory_nodes = nodes;
    options.compute_nodes = replicas;
    options.lanes = lanes;
    options.chunk_tokens = chunk;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    for (uint32_t node = 0; node < nodes; ++node) {  // All of them took part.
      EXPECT_GT(cluster->handler(absl::StrCat("m", node)).Counters().units, 0u);
    }
  }
}

// No node has room for the longest request.
TEST_P(BitsTest, ASequenceLongerThanAnyMemoryNodeHasTheSameBits) {
  LocalClusterOptions options = Plain();
  options.partition = Partition::kTokenRange;
  options.memory_nodes = 3;
  options.slots = 300;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MixedRequests()), MixedAlone());
}

TEST_P(BitsTest, UnevenHeadsAreAsAllOnOneNode) {
  RandomModelSpec model = GetParam().model;
  model.width = 96;
  model.head_dim = 16;
  model.query_heads = 6;
  model.kv_heads = GetParam().model.model_type == "llama" ? 3 : 6;
  LocalClusterOptions options = Options(model, GetParam().compute_type);
  const std::vector<GenerateResult> alone = Alone(options, MixedRequests());
  options.partition = Partition::kHead;
  options.memory_nodes = 2;
  options.memory_bandwidths = {1, 2.5};
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(MixedRequests()), alone);

  EXPECT_THAT(cluster->engine().GetStatus().partition,
              ::testing::HasSubstr(model.kv_heads == 3 ? "m0 1, m1 2 of 3" : "m0 2, m1 4 of 6"));
}

TEST_P(BitsTest, ChunksOf512AreAsChunksOf16) {
  LocalClusterOptions options = Plain();
  options.chunk_tokens = 16;
  ExpectSameTogether(options);
}

TEST_P(BitsTest, OneLaneIsAsTwoAndThree) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const uint32_t lanes : {2u, 3u}) {
    SCOPED_TRACE(lanes);
    LocalClusterOptions options = Plain();
    options.lanes = lanes;
    options.memory_nodes = 2;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
  }
}

// Rows go to a memory node with and without queries that go first, with prompts in the same step,
// late plans, and partitions that stage rows in their own ways.
TEST_P(BitsTest, RowsInOneChunkAreAsInTwoThreeAndSixteen) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  constexpr QueryFirst kNever = QueryFirst::kNever;
  constexpr QueryFirst kAlways = QueryFirst::kAlways;
  for (const auto& [partition, chunks, query_first, replicas] :
       {std::tuple{Partition::kRequest, 2u, kNever, 1u},
        {Partition::kRequest, 16u, kNever, 1u},
        {Partition::kRequest, 1u, kAlways, 1u},
        {Partition::kRequest, 3u, kAlways, 2u},
        {Partition::kHead, 3u, kNever, 1u},
        {Partition::kHead, 2u, kAlways, 2u},
        {Partition::kTokenRange, 2u, kNever, 1u},
        {Partition::kTokenRange, 1u, kAlways, 1u},
        {Partition::kTokenRange, 16u, kAlways, 2u}}) {
    SCOPED_TRACE(absl::StrCat("partition ", static_cast<int>(partition), ", ", chunks, " chunks, ",
                              query_first == kAlways ? "queries first, " : "", replicas,
                              " replicas"));
    LocalClusterOptions options = Plain();
    options.partition = partition;
    options.sub_batches = {.chunks = chunks, .query_first = query_first};
    options.compute_nodes = replicas;
    options.memory_nodes = 2;
    options.lanes = replicas + 1;
    options.chunk_tokens = 64;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// Attention over full blocks has begun, on several threads, before k and v come.
TEST_P(BitsTest, QueriesFirstOverLongContextsChangeNothing) {
  LocalClusterOptions options = Plain();
  options.sequence_tokens_max = 2100;
  options.slots = 12000;
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1020u, 1530u}) {  // 3 and 5 full blocks, then one more.
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 12));
  }
  const std::vector<GenerateResult> alone = Alone(options, specs);
  options.sub_batches = {.chunks = 1, .query_first = QueryFirst::kAlways};
  options.threads = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(specs), alone);
}

// A slow link, on which the number of chunks follows from what is measured; and one that delays and
// cuts chunks as it likes.
TEST_P(BitsTest, RowsInChunksOverSlowAndUnrulyLinksChangeNothing) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  const auto network = transport::FakeNetwork::Named(
      "unruly_chunks",
      {.seed = 5, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  for (const std::string uri :
       {"throttle(bandwidth=20MB,latency=100us,jitter=50us)+shm://", "fake://unruly_chunks"}) {
    for (const core::SubBatchOptions sub_batches :
         {core::SubBatchOptions{.automatic = true, .query_first = QueryFirst::kAuto},
          core::SubBatchOptions{.chunks = 5, .query_first = QueryFirst::kAlways}}) {
      SCOPED_TRACE(absl::StrCat(uri, " ", sub_batches.chunks));
      LocalClusterOptions options = Plain();
      options.transports = {uri};
      options.sub_batches = sub_batches;
      options.lanes = 2;
      options.memory_nodes = 2;
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
      ASSERT_NE(cluster, nullptr);
      ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
    }
  }
}

TEST_P(BitsTest, OneReplicaIsAsTwoAndThree) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const PipelineMode mode : {PipelineMode::kRotational, PipelineMode::kFixed}) {
    for (const uint32_t replicas : {2u, 3u, 4u}) {
      for (const uint32_t lanes : {1u, 2u, replicas + 1}) {
        SCOPED_TRACE(absl::StrCat(replicas, " replicas, ", lanes, " lanes"));
        LocalClusterOptions options = Plain();
        options.compute_nodes = replicas;
        options.mode = mode;
        options.lanes = lanes;
        options.memory_nodes = 2;
        options.chunk_tokens = 64;
        const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
        ASSERT_NE(cluster, nullptr);
        ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
        for (uint32_t node = 0; node < replicas; ++node) {  // All of them took part.
          if (mode == PipelineMode::kRotational || node < lanes) {
            EXPECT_GT(cluster->handler(absl::StrCat("c", node)).Counters().units, 0u);
          }
        }
      }
    }
  }
}

// Sixteen are more than there are cores, on the compute node and on the memory node.
TEST_P(BitsTest, OneThreadIsAsTwoAndSixteen) {
  for (const size_t threads : {2u, 16u}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    LocalClusterOptions options = Plain();
    options.threads = threads;
    ExpectSameTogether(options);
  }
}

TEST_P(BitsTest, EverythingAtOnceIsAsNothing) {
  LocalClusterOptions options = Plain();
  options.threads = 2;
  options.lanes = 2;
  options.memory_nodes = 3;
  options.chunk_tokens = 16;
  ExpectSameTogether(options);
}

// Data outruns the control stream: windows come before their plans.
TEST_P(BitsTest, LatePlansChangeNothing) {
  LocalClusterOptions options = Plain();
  options.memory_plan_delay = Micros(500);
  options.lanes = 2;
  options.memory_nodes = 2;
  ExpectSameTogether(options);
}

TEST_P(BitsTest, ReplicasOverAnUnrulyTransportChangeNothing) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  const auto network = transport::FakeNetwork::Named(
      "unruly_replicas",
      {.seed = 11, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  LocalClusterOptions options = Plain();
  options.transports = {"fake://unruly_replicas"};
  options.compute_nodes = 2;
  options.lanes = 3;
  options.memory_nodes = 2;
  options.chunk_tokens = 64;
  options.memory_plan_delay = Micros(200);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
}

// A transport that keeps the contract and not a word more: late, in pieces, out of order.
TEST_P(BitsTest, AnUnrulyTransportChangesNothing) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const bool target_must_progress : {false, true}) {
    const std::string name = absl::StrCat("unruly", target_must_progress);
    const auto network =
        transport::FakeNetwork::Named(name, {.seed = 7,
                                             .delay_steps_max = 12,
                                             .target_must_progress = target_must_progress,
                                             .in_flight_max = 4,
                                             .put_bytes_max = 1000});
    LocalClusterOptions options = Plain();
    options.transports = {"fake://" + name};
    options.lanes = 2;
    options.memory_nodes = 2;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
  }
}

TEST_P(BitsTest, UcxChangesNothing) {
  const std::vector<GenerateResult>& alone = MixedAlone();
  for (const std::string uri : {"ucx://", "ucx://tcp"}) {
    SCOPED_TRACE(uri);
    LocalClusterOptions options = Plain();
    options.transports = {uri};
    options.lanes = 2;
    options.memory_nodes = 2;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), alone);
  }
}

TEST_P(BitsTest, PreemptedIsAsUndisturbed) {
  std::vector<coordinator::GenerateSpec> specs;
  for (uint32_t i = 0; i < 16; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(1 + 5 * i, 100 + i);
    specs.push_back(i % 2 == 0 ? Greedy(std::move(prompt), 90) : Sampled(std::move(prompt), 90, i));
  }
  for (const auto& [lanes, partition] :
       {std::pair(1u, Partition::kRequest), {2u, Partition::kRequest}, {2u, Partition::kHead}}) {
    SCOPED_TRACE(absl::StrCat(lanes, " lanes, partition ", static_cast<int>(partition)));
    const uint32_t memory_nodes = partition == Partition::kRequest ? 1 : 2;
    LocalClusterOptions options = Plain();
    options.sequence_tokens_max = 256;
    options.partition = partition;
    options.memory_nodes = memory_nodes;
    options.slots = 300 / memory_nodes;
    options.lanes = lanes;
    options.chunk_tokens = 32;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    const std::vector<GenerateResult> results = cluster->GenerateMany(specs);

    ExpectSame(results, Alone(Plain(), specs));
    EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
    uint32_t preemptions = 0;
    for (const GenerateResult& result : results) {
      preemptions += result.choices[0].usage.preemptions;
      EXPECT_EQ(result.choices[0].tokens.size(), 90u);  // Nothing lost, nothing repeated.
      EXPECT_EQ(result.choices[0].usage.completion_tokens, 90u);
    }
    EXPECT_GT(preemptions, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST_P(BitsTest, ForksAreAsSingleRequestsWithTheirSeeds) {
  // The second: with preemption; the third: over two replicas.
  for (const auto& [slots, replicas] : {std::pair(4096u, 1u), {400u, 1u}, {400u, 2u}}) {
    SCOPED_TRACE(absl::StrCat(slots, " slots, ", replicas, " replicas"));
    LocalClusterOptions options = Plain();
    options.sequence_tokens_max = 400;
    options.slots = slots;
    options.compute_nodes = replicas;
    options.lanes = replicas;
    options.memory_nodes = 2;
    options.chunk_tokens = 32;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    std::vector<coordinator::GenerateSpec> forked;
    std::vector<coordinator::GenerateSpec> single;
    for (uint32_t i = 0; i < 4; ++i) {
      forked.push_back(Sampled(RandomPrompt(20 + 30 * i, i), 60, 50 + 10 * i));
      for (uint32_t choice = 0; choice < 5; ++choice) {
        single.push_back(forked.back());
        single.back().sampling.seed += choice;
      }
      forked.back().choices = 5;
    }

    const std::vector<GenerateResult> results = cluster->GenerateMany(forked);

    const std::vector<GenerateResult> alone = Alone(Plain(), single);
    for (size_t i = 0; i < single.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(results[i / 5].status.ok()) << results[i / 5].status;
      ExpectSameChoice(results[i / 5].choices[i % 5], alone[i].choices[0]);
      EXPECT_EQ(results[i / 5].choices[i % 5].usage.seed, single[i].sampling.seed);
    }
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST_P(BitsTest, ScoresAreTheSameInChunksAndWithOthers) {
  const std::vector<TokenId> text = RandomPrompt(300, 9);
  const std::unique_ptr<LocalCluster> plain = MakeCluster(Plain());
  ASSERT_NE(plain, nullptr);
  const GenerateResult whole = plain->Score(text);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  ASSERT_EQ(whole.scores.size(), text.size() - 1);
  LocalClusterOptions options = Plain();
  options.chunk_tokens = 16;
  options.memory_nodes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<coordinator::GenerateSpec> specs = MixedRequests();
  specs.push_back({.prompt = text, .sampling = {.logprobs = 2}, .score = true});

  const std::vector<GenerateResult> results = cluster->GenerateMany(specs);

  ASSERT_TRUE(results.back().status.ok()) << results.back().status;
  EXPECT_EQ(Bits(results.back().scores), Bits(whole.scores));
  // The alternatives say the same of a token that is one of them, and are better than one that is
  // none.
  EXPECT_TRUE(whole.ranks.empty());
  ASSERT_EQ(results.back().ranks.size(), whole.scores.size());
  for (size_t i = 0; i < whole.scores.size(); ++i) {
    const plan::TokenRank& ranked = results.back().ranks[i];
    ASSERT_EQ(ranked.top.size(), 2u);
    if (ranked.rank <= 2) {
      EXPECT_EQ(ranked.top[ranked.rank - 1].token, text[i + 1]);
      EXPECT_EQ(ranked.top[ranked.rank - 1].logprob, whole.scores[i]);
    } else {
      EXPECT_GE(ranked.top[1].logprob, whole.scores[i]);
    }
  }
}

// A continuation's log-probability is the same whether the token was sampled or given.
TEST_P(BitsTest, ScoresAreTheLogProbabilitiesOfGeneration) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenId> prompt = RandomPrompt(250, 3);
  const GenerateResult generated = cluster->Generate(Greedy(prompt, 20));
  ASSERT_TRUE(generated.status.ok()) << generated.status;
  std::vector<TokenId> text = prompt;
  const ChoiceResult& choice = generated.choices[0];
  text.insert(text.end(), choice.tokens.begin(), choice.tokens.end());

  const GenerateResult scored = cluster->Score(text);

  ASSERT_EQ(scored.scores.size(), text.size() - 1);
  EXPECT_EQ(Bits({scored.scores.end() - 20, scored.scores.end()}), Bits(choice.logprobs));
}

// What is greedy now was the likeliest then.
TEST_P(BitsTest, GreedyTokensAreOfTheFirstRank) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
  ASSERT_NE(cluster, nullptr);
  std::vector<TokenId> text = RandomPrompt(40, 3);
  const GenerateResult generated = cluster->Generate(Greedy(text, 20));
  ASSERT_TRUE(generated.status.ok()) << generated.status;
  text.insert(text.end(), generated.choices[0].tokens.begin(), generated.choices[0].tokens.end());

  const GenerateResult scored =
      cluster->Generate({.prompt = text, .sampling = {.logprobs = 1}, .score = true});

  ASSERT_EQ(scored.ranks.size(), text.size() - 1);
  for (size_t i = scored.ranks.size() - 20; i < scored.ranks.size(); ++i) {
    EXPECT_EQ(scored.ranks[i].rank, 1u);
    EXPECT_EQ(scored.ranks[i].top[0].token, text[i + 1]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, BitsTest,
    ::testing::Values(Base{SmallModel(), DType::kBF16}, Base{SmallParallelModel(), DType::kF32},
                      Base{SmallModel(), DType::kBF16, InPairs()},
                      Base{SmallModel(), DType::kBF16, InTiles()},
                      Base{.model = SmallModel(),
                           .dense_loop = kernels::DenseLoop::kEmulatedTiles}),
    [](const ::testing::TestParamInfo<Base>& test) {
      return test.param.model.model_type +
             (test.param.compute_type == DType::kF32 ? "_f32" : "_bf16") +
             (test.param.attention == InPairs() ? "_pairs" : "") +
             (test.param.attention == InTiles() ? "_tiles" : "") +
             (test.param.dense_loop == kernels::DenseLoop::kEmulatedTiles ? "_emulated_tiles" : "");
    });

// The loops that define the bits give the same as the fast ones where the compute is bf16-exact:
// attention. So a cluster differs from another only by its dense layers.
TEST(BitsTest, ReferenceKernelsServeToo) {
  LocalClusterOptions options = Options(SmallModel(), DType::kF32);
  options.reference_kernels = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  const GenerateResult result = cluster->Generate(Greedy(RandomPrompt(40, 1), 12));

  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.choices[0].tokens.size(), 12u);
}

}  // namespace
}  // namespace lamina::test_support
