// SPDX-License-Identifier: Apache-2.0
//
// Weights that stream over a slow bus, with which K and V of many tokens are made again: answers
// are those of weights that stay, to the bit, whatever comes first, and however far ahead.

#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_bus.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/run_variations.h"

namespace lamina::test_support {
namespace {

constexpr uint64_t kBytesPerSecond = 50'000'000;  // A layer takes some milliseconds.

LocalClusterOptions Options() {
  RandomModelSpec model = SmallModel();
  model.layers = 6;
  return {.model = model,
          .fetch_bytes = 8 << 20,
          .recompute_percent = 60,
          .slots = 8192,
          .sequence_tokens_max = 512};
}

std::shared_ptr<SharedBus> Bus() {
  auto bus = SharedBus::Open(absl::StrCat("streamed-", getpid()), kBytesPerSecond);
  EXPECT_TRUE(bus.ok()) << bus.status();
  return *std::move(bus);
}

struct Way {
  bool kv_first = true;
  uint32_t lanes = 1;
  uint32_t ahead = 1;
  bool hybrid = false;
  bool tokens = false;
};

TEST(StreamedClusterTest, AnswersAreThoseOfWeightsThatStay) {
  const std::unique_ptr<LocalCluster> resident = MakeCluster(Options());
  ASSERT_NE(resident, nullptr);
  const std::vector<GenerateResult> expected = resident->GenerateMany(MixedLengths(16));
  EXPECT_EQ(resident->handler("c0").Counters().streamed_bytes, 0u);
  for (const Way& way : {Way{.kv_first = true}, Way{.kv_first = false}, Way{.lanes = 3},
                         Way{.kv_first = false, .lanes = 3}, Way{.ahead = 0},
                         Way{.kv_first = false, .ahead = 0}, Way{.lanes = 3, .ahead = 0},
                         Way{.hybrid = true}, Way{.lanes = 3, .ahead = 0, .hybrid = true},
                         Way{.tokens = true}, Way{.lanes = 3, .ahead = 0, .tokens = true}}) {
    SCOPED_TRACE(absl::StrCat(way.kv_first ? "k and v first, " : "in order, ", way.lanes,
                              " lanes, ", way.ahead, " ahead", way.hybrid ? ", hybrid" : "",
                              way.tokens ? ", from token numbers" : ""));
    LocalClusterOptions options = Options();
    options.lanes = way.lanes;
    if (way.tokens) {
      options.recompute = RecomputeFrom::kTokens;
    }
    if (way.hybrid) {
      options.recompute_percent = std::nullopt;
      options.activation_percent = 60;
    }
    options.streamed = {.budget = resident->WeightBytes("c0") * 7 / 10,
                        .bus = Bus(),
                        .kv_first = way.kv_first,
                        .ahead = way.ahead};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths(16)), expected);
    const telemetry::NodeCounters counters = cluster->handler("c0").Counters();
    EXPECT_GT(counters.streamed_bytes, 0u);
    EXPECT_GT(counters.recomputed_tokens, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
  }
}

// The epoch ends while weights, and activations, are on their way.
TEST(StreamedClusterTest, AMemoryNodeThatLeavesTakesNothingAlong) {
  const std::unique_ptr<LocalCluster> resident = MakeCluster(Options());
  ASSERT_NE(resident, nullptr);
  const std::vector<coordinator::GenerateSpec> specs = MixedLengths(40);
  const std::vector<GenerateResult> expected = resident->GenerateMany(specs);
  LocalClusterOptions options = Options();
  options.memory_nodes = 2;
  options.streamed = {.budget = resident->WeightBytes("c0") * 7 / 10, .bus = Bus()};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const coordinator::GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const auto& request : requests) {
    request->WaitForTokens(2);
  }
  cluster->Detach("m0");
  std::vector<GenerateResult> found;
  for (const auto& request : requests) {
    found.push_back(request->Wait());
  }
  ExpectSame(found, expected);
}

}  // namespace
}  // namespace lamina::test_support
