// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes on a CUDA device together with memory nodes on the processor: the same tokens and
// log-probabilities to the bit, however KV is cut over them.

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kv_device.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

struct Cut {
  std::string name;
  Partition partition = Partition::kRequest;
  uint32_t memory_nodes = 1;
  uint32_t lanes = 1;
  core::SubBatchOptions sub_batches = {};
};

std::vector<coordinator::GenerateSpec> Requests() {
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1u, 17u, 255u, 256u, 300u, 513u}) {
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 8));
  }
  specs.push_back(Sampled(RandomPrompt(40, 3), 8, 5));
  return specs;
}

LocalClusterOptions Plain() {
  return {.model = SmallModel(), .slots = 4096, .sequence_tokens_max = 768};
}

class CudaNodeTest : public ::testing::TestWithParam<Cut> {};

TEST_P(CudaNodeTest, HasTheBitsOfTheProcessor) {
  std::vector<GenerateResult> expected;
  {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : Requests()) {
      expected.push_back(cluster->Generate(spec));
    }
  }
  LocalClusterOptions options = Plain();
  options.partition = GetParam().partition;
  options.memory_nodes = GetParam().memory_nodes;
  options.lanes = GetParam().lanes;
  options.sub_batches = GetParam().sub_batches;
  options.chunk_tokens = 64;
  options.other_device = {.names = {"m0"}, .make = kernels::cuda::CudaKvDevices(0)};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(Requests()), expected);
  ExpectSame({cluster->Generate(Requests()[4])}, {expected[4]});
  if (GetParam().sub_batches.chunks > 2) {
    EXPECT_TRUE(cluster->engine().GetStatus().scheduler.sub_batches.cut.by_heads);
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  for (const coordinator::NodeReport& node : cluster->engine().GetStatus().nodes) {
    EXPECT_EQ(node.windows,
              node.member.name == "m0" ? "host memory, rows are copied to cuda:0" : "host memory");
  }
  for (uint32_t node = 0; node < options.memory_nodes; ++node) {  // All of them took part.
    EXPECT_GT(cluster->handler(absl::StrCat("m", node)).Counters().units, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, CudaNodeTest,
                         ::testing::Values(Cut{"Alone"},
                                           Cut{"ByRequest", Partition::kRequest, 2, 2},
                                           Cut{"ByHead", Partition::kHead, 2, 2},
                                           Cut{"ByTokenRange", Partition::kTokenRange, 2, 2},
                                           Cut{"QueriesFirst",
                                               Partition::kRequest,
                                               1,
                                               1,
                                               {.chunks = 2, .query_first = QueryFirst::kAlways}},
                                           Cut{"ByGroupsOfHeads",
                                               Partition::kRequest,
                                               1,
                                               1,
                                               {.chunks = 4, .query_first = QueryFirst::kAlways}}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lamina::test_support
