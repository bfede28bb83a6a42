// SPDX-License-Identifier: Apache-2.0
//
// SameBits: one workload over variations of a cluster, each with the bits of the simplest one.
// Every mode runs over UCX, with its own choice of transport and by TCP alone; what else a cluster
// may vary is spread over the modes so that each pair occurs.

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_modes.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

LocalClusterOptions Simplest() {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model, .sequence_tokens_max = 768};
}

std::vector<GenerateSpec> Workload() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 16u, 33u, 100u, 257u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 16, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), 12));
  }
  return specs;
}

// Sums over shards have an order of their own: shards are compared with shards over shm://.
const std::vector<GenerateResult>& SimplestWith(uint32_t shards) {
  static const auto run = [](uint32_t count) {
    LocalClusterOptions options = Simplest();
    options.shards = count;
    options.compute_nodes = count;
    return MakeCluster(options)->GenerateMany(Workload());
  };
  static const std::vector<GenerateResult> whole = run(1);
  static const std::vector<GenerateResult> halves = run(2);
  return shards == 1 ? whole : halves;
}

void ExpectSameBits(const LocalClusterOptions& options) {
  const std::vector<GenerateResult>& simplest = SimplestWith(options.shards);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(Workload()), simplest);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
}

// (mode, transport)
class SameBitsTest : public ::testing::TestWithParam<std::tuple<size_t, std::string>> {};

TEST_P(SameBitsTest, OverUcx) {
  const auto& [mode, transport] = GetParam();
  const auto variation = static_cast<uint32_t>(mode + (transport == "ucx://" ? 0 : 1));
  LocalClusterOptions options = Simplest();
  options.transports = {transport};
  options.memory_nodes = 2;
  options.lanes = 1 + variation % 3;
  options.chunk_tokens = variation / 2 % 2 == 0 ? 16 : 512;
  options.threads = 1 + variation / 3 % 2;
  options.sub_batches = {
      .chunks = 1 + variation / 2 % 2,
      .query_first = variation % 2 == 0 ? QueryFirst::kAlways : QueryFirst::kNever};
  ClusterModes()[mode].apply(options);
  ExpectSameBits(options);
}

INSTANTIATE_TEST_SUITE_P(Modes, SameBitsTest,
                         ::testing::Combine(::testing::Range(size_t{0}, ClusterModes().size()),
                                            ::testing::Values("ucx://", "ucx://tcp")),
                         [](const auto& tested) {
                           return absl::StrCat(ClusterModes()[std::get<0>(tested.param)].name,
                                               std::get<1>(tested.param) == "ucx://" ? "" : "_tcp");
                         });

// What a slow link holds back is handed to UCX later, out of memory that may lie anywhere.
TEST(SameBitsTest, OverAThrottledUcxWithTwoComputeNodes) {
  LocalClusterOptions options = Simplest();
  options.transports = {"throttle(bandwidth=1GB,latency=20us)+ucx://tcp"};
  options.compute_nodes = 2;
  options.memory_nodes = 2;
  options.lanes = 3;
  ExpectSameBits(options);
}

}  // namespace
}  // namespace lamina::test_support
