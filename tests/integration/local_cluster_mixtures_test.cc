// SPDX-License-Identifier: Apache-2.0
//
// Everything that must not change a bit, mixed: partitions, modes, lanes, replicas, stages, nodes
// for prompts, chunks of rows and of prompts, queries first, threads and links. The other files of
// this folder vary one or two at a time.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

// All pairs of partition, mode, stages and prefill are there.
constexpr uint32_t kMixtures = 3 * 3 * 2 * 3;

struct Base {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
};

// Three KV heads on two memory nodes: one has two of them.
Base BaseOf(uint32_t mixture) {
  if (mixture % 2 == 0) {
    RandomModelSpec model = SmallModel();
    model.layers = 4;
    model.query_heads = 6;
    model.kv_heads = 3;
    return {model, DType::kBF16};
  }
  return {SmallParallelModel(), DType::kF32};
}

std::vector<GenerateSpec> Requests() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 2u, 16u, 33u, 64u, 100u, 255u, 257u, 300u, 513u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 20, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), 14));
  }
  return specs;
}

LocalClusterOptions Plain(const Base& base) {
  return {.model = base.model, .compute_type = base.compute_type, .sequence_tokens_max = 768};
}

LocalClusterOptions MixtureOf(uint32_t mixture) {
  LocalClusterOptions options = Plain(BaseOf(mixture));
  options.partition =
      std::vector{Partition::kRequest, Partition::kHead, Partition::kTokenRange}[mixture % 3];
  options.mode = std::vector{PipelineMode::kRotational, PipelineMode::kFixed,
                             PipelineMode::kSequential}[mixture / 3 % 3];
  const bool sequential = options.mode == PipelineMode::kSequential;
  options.stages = 1 + mixture / 9 % 2;
  options.compute_nodes = options.stages * (sequential ? 1 : 1 + mixture / 2 % 2);
  options.lanes = sequential ? 1 : 1 + (mixture + mixture / 4) % 4;
  // None, whole models, or stages.
  const uint32_t prefill = mixture / 18;
  options.prefill_stages = std::max(1u, prefill);
  options.prefill_nodes = prefill * (1 + mixture / 3 % 2);
  options.memory_nodes = 2;
  options.memory_bandwidths = {1.0, 1.0 + mixture % 4};
  options.sub_batches = {
      .chunks = 1 + mixture / 5 % 3,
      .query_first = mixture / 7 % 2 == 0 ? QueryFirst::kAlways : QueryFirst::kNever};
  options.chunk_tokens = std::vector{16u, 64u, 512u}[mixture / 4 % 3];
  options.threads = 1 + mixture / 6 % 2;
  options.memory_plan_delay = mixture / 8 % 2 == 0 ? 0 : Micros(200);
  return options;
}

std::string Describe(const LocalClusterOptions& options) {
  return absl::StrCat(
      "partition ", static_cast<int>(options.partition), ", mode ", static_cast<int>(options.mode),
      ", ", options.compute_nodes, " nodes in ", options.stages, " stages, ", options.prefill_nodes,
      " for prompts in ", options.prefill_stages, ", ", options.lanes, " lanes, ",
      options.sub_batches.chunks, " chunks of rows, prompts in chunks of ", options.chunk_tokens,
      ", ", options.threads, " threads, by ", options.transports[0]);
}

void ExpectPlainBits(const LocalClusterOptions& options, const std::vector<GenerateResult>& plain) {
  SCOPED_TRACE(Describe(options));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(Requests()), plain);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
}

// In a few tests, so that several run at a time.
class MixturesTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(MixturesTest, HaveTheBitsOfTheSimplestCluster) {
  constexpr uint32_t kOfOneTest = 9;
  std::vector<GenerateResult> plain[2];
  for (const uint32_t i : {0u, 1u}) {
    plain[i] = MakeCluster(Plain(BaseOf(i)))->GenerateMany(Requests());
  }
  for (uint32_t i = 0; i < kOfOneTest; ++i) {
    const uint32_t mixture = GetParam() * kOfOneTest + i;
    ExpectPlainBits(MixtureOf(mixture), plain[mixture % 2]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixturesTest, ::testing::Range(0u, kMixtures / 9));

TEST(MixturesTest, HeadsStagesPrefillNodesAndThreeLanesOverAnUnrulyTransport) {
  const Base base = BaseOf(0);
  const std::vector<GenerateResult> plain = MakeCluster(Plain(base))->GenerateMany(Requests());
  const auto network = transport::FakeNetwork::Named(
      "unruly_mixture",
      {.seed = 19, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  LocalClusterOptions options = Plain(base);
  options.transports = {"fake://unruly_mixture"};
  options.stages = 2;
  options.compute_nodes = 4;
  options.prefill_nodes = 2;
  options.prefill_stages = 2;
  options.memory_nodes = 2;
  options.lanes = 3;
  options.sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways};
  options.chunk_tokens = 64;
  options.memory_plan_delay = Micros(200);
  for (const Partition partition : {Partition::kHead, Partition::kTokenRange}) {
    options.partition = partition;
    ExpectPlainBits(options, plain);
  }
}

}  // namespace
}  // namespace lamina::test_support
