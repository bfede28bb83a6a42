// SPDX-License-Identifier: Apache-2.0
//
// Beam searches through a cluster: the answers are those of a search that asks the same cluster for
// the next tokens of each beam, request by request, and have the same bits however the cluster is
// made.

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/beam_search.h"
#include "tests/integration/cluster_modes.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

GenerateSpec Search(std::vector<TokenId> prompt, uint32_t max_tokens, BeamParams beams,
                    uint32_t answers) {
  GenerateSpec spec = Greedy(std::move(prompt), max_tokens);
  spec.beams = beams;
  spec.choices = answers;
  return spec;
}

// Around the borders of tiles (16), of blocks of INT8 (64) and of attention blocks (256).
std::vector<GenerateSpec> Searches() {
  std::vector<GenerateSpec> specs;
  specs.push_back(Search(RandomPrompt(1, 1), 20, {.width = 4}, 4));
  specs.push_back(Search(RandomPrompt(15, 2), 12, {.width = 3, .length_penalty = 0.5}, 1));
  specs.push_back(
      Search(RandomPrompt(250, 3), 24, {.width = 5, .early_stopping = BeamStop::kNever}, 2));
  specs.push_back(
      Search(RandomPrompt(300, 4), 16, {.width = 2, .early_stopping = BeamStop::kFull}, 2));
  specs.push_back(Search(RandomPrompt(58, 5), 14, {.width = 4}, 3));
  specs.push_back(Search(RandomPrompt(127, 6), 6, {.width = 3}, 2));
  specs[2].ignore_eos = false;
  specs[2].stop_tokens = {5, 17, 40, 63};
  specs[3].stop_tokens = {11};
  return specs;
}

void ExpectSameAnswers(const std::vector<GenerateResult>& found,
                       const std::vector<GenerateResult>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("search ", i));
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ASSERT_EQ(found[i].choices.size(), expected[i].choices.size());
    for (size_t c = 0; c < found[i].choices.size(); ++c) {
      ExpectSameChoice(found[i].choices[c], expected[i].choices[c]);
    }
  }
}

// `found` are the answers to Searches() of such a cluster.
void ExpectSearchesRequestByRequest(const LocalClusterOptions& options,
                                    const std::vector<GenerateResult>& found_of) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  for (size_t i = 0; i < Searches().size(); ++i) {
    SCOPED_TRACE(absl::StrCat("search ", i));
    const GenerateSpec spec = Searches()[i];
    const auto prompt = static_cast<uint32_t>(spec.prompt.size());
    core::BeamSearch search(spec.beams, {.prompt_tokens = prompt,
                                         .tokens_max = prompt + spec.max_tokens,
                                         .end_tokens = spec.stop_tokens});
    while (!search.beams().empty()) {
      std::vector<GenerateSpec> rows;
      for (const core::BeamSearch::Beam& beam : search.beams()) {
        GenerateSpec row = Greedy(spec.prompt, 1);
        for (const core::BeamSearch::BeamToken& token : beam.tokens) {
          row.prompt.push_back(token.token);
        }
        row.sampling.logprobs =
            static_cast<int32_t>(core::BeamCandidates(spec.beams, spec.stop_tokens.size()));
        rows.push_back(std::move(row));
      }
      std::vector<std::vector<plan::TokenLogprob>> next;
      for (GenerateResult& result : cluster->GenerateMany(rows)) {
        ASSERT_TRUE(result.status.ok()) << result.status;
        next.push_back(result.choices.at(0).top.at(0));
      }
      search.Advance(next);
    }
    const GenerateResult& found = found_of[i];
    ASSERT_TRUE(found.status.ok()) << found.status;
    ASSERT_LE(found.choices.size(), search.answers().size());
    for (size_t c = 0; c < found.choices.size(); ++c) {
      const core::BeamSearch::Answer& answer = search.answers()[c];
      std::vector<TokenId> tokens;
      std::vector<float> logprobs;
      for (const core::BeamSearch::BeamToken& token : answer.tokens) {
        tokens.push_back(token.token);
        logprobs.push_back(token.logprob);
      }
      EXPECT_EQ(found.choices[c].tokens, tokens);
      EXPECT_EQ(Bits(found.choices[c].logprobs), Bits(logprobs));
      EXPECT_EQ(found.choices[c].finish, answer.reason);
    }
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

class LocalClusterBeamsTest : public ::testing::Test {
 protected:
  static LocalClusterOptions Options() {
    LocalClusterOptions options;
    options.model = SmallModel();
    options.sequence_tokens_max = 512;
    return options;
  }
  static const std::vector<GenerateResult>& Expected() {
    static const std::vector<GenerateResult> expected =
        MakeCluster(Options())->GenerateMany(Searches());
    return expected;
  }
  static void ExpectBits(const std::string& what, const LocalClusterOptions& options) {
    SCOPED_TRACE(what);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSameAnswers(cluster->GenerateMany(Searches()), Expected());
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
};

TEST_F(LocalClusterBeamsTest, AnswersAreThoseOfASearchRequestByRequest) {
  ExpectSearchesRequestByRequest(Options(), Expected());
}

// Beams share closed blocks, and compute the open one again.
TEST_F(LocalClusterBeamsTest, AnswersInInt8AreThoseOfASearchRequestByRequest) {
  LocalClusterOptions options = Options();
  options.int8 = true;
  for (const bool kept : {false, true}) {
    options.prefix_cache = kept;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateResult> found = cluster->GenerateMany(Searches());
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    ExpectSearchesRequestByRequest(options, found);
    EXPECT_NE(Bits(found[3].choices[0].logprobs), Bits(Expected()[3].choices[0].logprobs));
  }
}

TEST_F(LocalClusterBeamsTest, HowTheClusterIsMadeDoesNotShow) {
  for (const ClusterMode& mode : ClusterModes()) {
    LocalClusterOptions options = Options();
    options.memory_nodes = 2;
    mode.apply(options);
    if (options.shards > 1) {
      continue;  // Sums of their own.
    }
    ExpectBits(mode.name, options);
  }
  LocalClusterOptions local = Options();
  local.local = true;
  ExpectBits("local", local);
  LocalClusterOptions plain = Options();
  plain.prefix_cache = false;
  plain.lanes = 2;
  ExpectBits("no prefix cache, two lanes", plain);
}

// Other requests during the searches take slots, so that beams wait and are computed anew.
TEST_F(LocalClusterBeamsTest, FullMemoryNodesAndOtherRequestsDoNotShow) {
  for (const auto& [pool_of_replicas, prefill_nodes] :
       {std::pair(false, 0u), {true, 0u}, {false, 1u}}) {
    SCOPED_TRACE(absl::StrCat(pool_of_replicas, ", ", prefill_nodes, " nodes for prompts"));
    LocalClusterOptions options = Options();
    options.slots = pool_of_replicas ? 340 : 420;
    options.sequence_tokens_max = 330;
    options.prefix_cache = false;
    options.local = pool_of_replicas;
    options.compute_nodes = options.lanes = pool_of_replicas ? 2 : 1;
    options.prefill_nodes = prefill_nodes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    std::vector<GenerateSpec> specs = Searches();
    for (uint64_t i = 0; i < 4; ++i) {
      specs.push_back(Greedy(RandomPrompt(60 + 30 * i, 100 + i), 150));
    }
    std::vector<GenerateResult> results = cluster->GenerateMany(specs);
    for (size_t i = Searches().size(); i < results.size(); ++i) {
      EXPECT_TRUE(results[i].status.ok()) << results[i].status;
    }
    results.resize(Searches().size());
    ExpectSameAnswers(results, Expected());
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// Prompts are chunks on these; beams are rows on the nodes that decode.
TEST_F(LocalClusterBeamsTest, NodesForPromptsDoNotShow) {
  for (const auto& [partition, nodes, lanes, chunk, kept] :
       {std::tuple{Partition::kRequest, 1u, 2u, 64u, false},
        {Partition::kRequest, 2u, 3u, 16u, true},
        {Partition::kHead, 1u, 2u, 512u, true},
        {Partition::kTokenRange, 2u, 2u, 64u, true}}) {
    LocalClusterOptions options = Options();
    options.prefill_nodes = nodes;
    options.compute_nodes = nodes;
    options.memory_nodes = 2;
    options.partition = partition;
    options.lanes = lanes;
    options.chunk_tokens = chunk;
    options.prefix_cache = kept;
    options.memory_plan_delay = Micros(200);
    ExpectBits(absl::StrCat("partition ", static_cast<int>(partition), ", ", nodes,
                            " nodes of either kind, ", lanes, " lanes, chunks of ", chunk,
                            ", prefix cache ", kept),
               options);
  }
}

}  // namespace
}  // namespace lamina::test_support
