// SPDX-License-Identifier: Apache-2.0
#include "coordinator/recompute_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster_options.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kNodes[] = "model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

// K and V of 512 bytes a layer.
const std::vector<AttentionDescriptor> kGrouped(2,
                                                {.query_heads = 8, .kv_heads = 4, .head_dim = 32});

// Activations have 512.
absl::StatusOr<EngineOptions> OptionsOf(const std::string& lines,
                                        const std::vector<AttentionDescriptor>& layers) {
  const auto config = ParseClusterConfig(lines, "test", {});
  EXPECT_TRUE(config.ok()) << config.status();
  model::Graph graph;
  for (const AttentionDescriptor& layer : layers) {
    graph.ops.push_back({.body = model::AttentionOp{.descriptor = layer}});
  }
  return EngineOptionsOf(*config, graph, {.width = 256, .vocabulary = 100});
}

// K and V of 512 bytes a layer.
TEST(RecomputeOptionsTest, TokenNumbersAreOfPathRecomputeAndSlotsHaveKAndVAlone) {
  const std::string lines =
      std::string(kNodes) + "policy: fetch_recompute\nfetch: {recompute: tokens";
  const auto options = OptionsOf(lines + "}\n", kGrouped);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(PathsOnMemoryNodes(*options, options->fetch),
            plan::AttentionPaths({plan::AttentionPath::kRecompute}));
  EXPECT_EQ(options->policies[0].path, plan::AttentionPath::kRecompute);
  EXPECT_EQ(options->lossy, "");
  EXPECT_EQ(options->fetch.activation_width, 0u);
  EXPECT_EQ(options->fetch.made_tokens_max, 4096u);
  const auto planning = options->scheduler.strategies.fetch_planning();
  core::FetchStep step = {.path = plan::AttentionPath::kRecompute,
                          .tokens = 4096,
                          .rows = 2,
                          .sequences = 2,
                          .contexts = 4096};
  EXPECT_THAT(planning->Plan(step, {}).why, HasSubstr("not measured yet"));
  // An idle device that takes three times as long makes a quarter.
  core::FetchRates rates = {.bytes_per_second = 512, .recompute_seconds = 3};
  const core::FetchShare quarter = planning->Plan(step, rates);
  EXPECT_EQ(quarter.recomputed, plan::kRecomputeUnit / 4);
  EXPECT_THAT(quarter.why, HasSubstr("25% of tokens made from their numbers: K and V of one take"));
  for (const plan::AttentionPath other :
       {plan::AttentionPath::kRemote, plan::AttentionPath::kFetch}) {  // Next to others in a list.
    step.path = other;
    EXPECT_EQ(planning->Plan(step, rates).recomputed, 0u);
  }
  step.path = plan::AttentionPath::kRecompute;
  // Two lanes share the weights that come: 7,168 seconds of the link for this one.
  rates.weights_seconds = 14336;
  step.lanes = 2;
  EXPECT_EQ(planning->Plan(step, rates).recomputed, 704u);
  rates.weights_seconds = 0;
  step.lanes = 1;
  // One that is busy for longer than the link makes none.
  rates.slice = {.fixed = 1000, .slope = 2000};
  const core::FetchShare none = planning->Plan(step, rates);
  EXPECT_EQ(none.recomputed, 0u);
  EXPECT_THAT(none.why, HasSubstr("no tokens made from their numbers"));
  EXPECT_THAT(none.why, HasSubstr("all else of a layer on the device 5e+09 us"));
}

TEST(RecomputeOptionsTest, TokenNumbersAreThoseOfOnePolicyOfAList) {
  const auto options = OptionsOf(std::string(kNodes) +
                                     "policies: [fetch_heads, fetch_recompute, attend_remote]\n"
                                     "fetch: {recompute: tokens, recompute_percent: 50}\n",
                                 kGrouped);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->policies[0].path, plan::AttentionPath::kFetch);
  EXPECT_EQ(options->policies[1].path, plan::AttentionPath::kRecompute);
  EXPECT_EQ(options->policies[2].path, plan::AttentionPath::kRemote);
  EXPECT_EQ(options->fetch.made_tokens_max, 4096u);
  EXPECT_EQ(options->fetch.activation_width, 0u);
  EXPECT_EQ(SlotBytes(options->fetch, kGrouped.size(), 1024), 1024u);
}

// K and V of INT8 take 288 bytes in a layer: two of 32 for a head, and 8 of scales.
TEST(RecomputeOptionsTest, Int8IsMadeFromTokenNumbersInWholeBlocks) {
  const auto options = OptionsOf(
      std::string(kNodes) + "kv: int8\npolicy: fetch_recompute\nfetch: {recompute: tokens}\n",
      kGrouped);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->policies[0].path, plan::AttentionPath::kRecompute);
  EXPECT_EQ(options->lossy, "kv_int8");
  const auto planning = options->scheduler.strategies.fetch_planning();
  const core::FetchStep step = {.path = plan::AttentionPath::kRecompute,
                                .tokens = 1024,
                                .rows = 1,
                                .sequences = 1,
                                .contexts = 1024};
  // 250 tokens would let link and device end at once: 256 are four blocks.
  const core::FetchShare share =
      planning->Plan(step, {.bytes_per_second = 288, .recompute_seconds = 774.0 / 250});
  EXPECT_EQ(share.recomputed, plan::kRecomputeUnit / 4);
}

TEST(RecomputeOptionsTest, OfNoMoreTokensThanThereMayBe) {
  const auto options = OptionsOf(std::string(kNodes) +
                                     "policy: fetch_recompute\nfetch: {recompute: tokens, "
                                     "recompute_percent: 50, recompute_tokens_max: 160}\n",
                                 kGrouped);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->fetch.made_tokens_max, 160u);
  const auto planning = options->scheduler.strategies.fetch_planning();
  core::FetchStep step = {.path = plan::AttentionPath::kRecompute,
                          .tokens = 320,
                          .rows = 1,
                          .sequences = 1,
                          .contexts = 320};
  EXPECT_EQ(planning->Plan(step, {}).recomputed, plan::kRecomputeUnit / 2);
  EXPECT_EQ(planning->Plan(step, {}).why, "50% of tokens made from their numbers, as configured");
  step.contexts = 1600;  // What windows hide counts: nobody knows which rows see it still.
  const core::FetchShare less = planning->Plan(step, {});
  EXPECT_EQ(less.recomputed, plan::kRecomputeUnit / 10);
  EXPECT_THAT(less.why, HasSubstr("at most fetch.recompute_tokens_max 160 of a step's 1600"));
}

// Places are shared out over the sequences that may run, and the split knows what stays.
TEST(RecomputeOptionsTest, ActivationsStayOnTheComputeNode) {
  const std::string lines =
      std::string(kNodes) + "policy: fetch_recompute\nlimits: {running_max: 4}\nfetch: {resident: ";
  // K and V of 1024 bytes in a layer, and activations of 512.
  const std::vector<AttentionDescriptor> layers(3,
                                                {.query_heads = 8, .kv_heads = 8, .head_dim = 32});
  const auto options = OptionsOf(lines + "192KiB}\n", layers);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->fetch.resident_tokens, 128u);
  EXPECT_EQ(options->scheduler.resident_tokens, 128u);
  EXPECT_EQ(options->scheduler.ResidentOfEach(), 32u);
  const auto planning = options->scheduler.strategies.fetch_planning();
  const core::FetchShare share = planning->Plan(
      {.path = plan::AttentionPath::kRecompute, .tokens = 1'000'000, .resident = 400'000},
      {.bytes_per_second = 1024, .recompute_seconds = 0.25});
  EXPECT_EQ(share.recomputed, plan::kRecomputeUnit * 880 / 1000);
  EXPECT_THAT(share.why, HasSubstr("activations of 400000 tokens are on the compute node"));
  // Windows have room for the next layer of fewer tokens: the longer of link and device counts.
  EXPECT_EQ(planning
                ->Plan({.path = plan::AttentionPath::kRecompute, .tokens = 1000, .resident = 400},
                       {.bytes_per_second = 1024, .recompute_seconds = 1})
                .recomputed,
            plan::kRecomputeUnit * 533 / 1000);

  const absl::Status refused = OptionsOf(lines + "64KiB}\n", layers).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has no room for activations of 16 tokens of each of 4 sequences"));

  // With grouped queries the same bytes have room for K and V of as many tokens.
  const auto grouped = OptionsOf(lines + "192KiB}\n", kGrouped);
  ASSERT_TRUE(grouped.ok()) << grouped.status();
  EXPECT_EQ(grouped->fetch.resident_tokens, 0u);
  EXPECT_THAT(grouped->scheduler.strategies.fetch_planning()
                  ->Plan({.path = plan::AttentionPath::kRecompute, .tokens = 10}, {})
                  .why,
              AllOf(HasSubstr("nothing recomputed, and nothing kept in fetch.resident"),
                    HasSubstr("has 512 bytes in a layer, no less than K and V with 512")));
  const auto asked = OptionsOf(lines + "192KiB, recompute_percent: 50}\n", kGrouped);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->fetch.resident_tokens, 192u);

  // Next to fetch_heads it is that one's.
  const auto both = OptionsOf(std::string(kNodes) +
                                  "policies: [fetch_heads, fetch_recompute]\n"
                                  "fetch: {resident: 192KiB}\n",
                              layers);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->fetch.resident_tokens, 0u);
}

// Places are those of sequences whose slots hold one or the other.
TEST(RecomputeOptionsTest, ActivationsOfHybridSlotsStayToo) {
  const std::string lines =
      std::string(kNodes) + "policy: fetch_hybrid\nlimits: {running_max: 4}\nfetch: {resident: ";
  const std::vector<AttentionDescriptor> layers(3,
                                                {.query_heads = 8, .kv_heads = 8, .head_dim = 32});
  const auto options = OptionsOf(lines + "192KiB}\n", layers);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->fetch.resident_tokens, 128u);
  EXPECT_EQ(options->scheduler.ResidentOfEach(), 32u);
  EXPECT_EQ(options->scheduler.resident_path, plan::AttentionPath::kHybrid);
  EXPECT_EQ(options->policies.front().path, plan::AttentionPath::kHybrid);
  EXPECT_FALSE(options->fetch.hybrid->keeps_nothing);
  EXPECT_THAT(std::string(OptionsOf(lines + "64KiB}\n", layers).status().message()),
              HasSubstr("has no room for activations of 16 tokens of each of 4 sequences"));

  // With grouped queries nothing is held as an activation, unless a number says so.
  const auto grouped = OptionsOf(lines + "192KiB}\n", kGrouped);
  ASSERT_TRUE(grouped.ok()) << grouped.status();
  EXPECT_EQ(grouped->scheduler.resident_tokens, 0u);
  EXPECT_TRUE(grouped->fetch.hybrid->keeps_nothing);
  const auto asked = OptionsOf(lines + "192KiB, activation_percent: 50}\n", kGrouped);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->scheduler.resident_tokens, 192u);
}

// With K and V of as many bytes none is held, and such a cluster serves.
TEST(RecomputeOptionsTest, HybridInF32IsRefusedWhereItWouldHoldActivations) {
  const std::vector<AttentionDescriptor> layers(3,
                                                {.query_heads = 8, .kv_heads = 8, .head_dim = 32});
  const std::string lines =
      "model: m\ncompute: [{name: c0, compute_type: f32}]\n"
      "memory: [{name: m0, capacity: 1GiB}]\npolicy: fetch_hybrid\n";
  const absl::Status refused = OptionsOf(lines, layers).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("compute.0.compute_type: f32 is not served"),
                    HasSubstr("recomputation cannot pay")));
  const std::string none = lines + "fetch: {activation_percent: 0}\n";
  EXPECT_TRUE(OptionsOf(none, layers).ok()) << OptionsOf(none, layers).status();
  EXPECT_TRUE(OptionsOf(lines, kGrouped).ok()) << OptionsOf(lines, kGrouped).status();
}

// K and V of one head of a longest request take 2 MiB, and its part of activations as many.
TEST(RecomputeOptionsTest, ActivationsAreSpreadWhereTheFileSpreadsHeads) {
  const auto of_two = [](const std::string& capacity, const std::string& lines) {
    return OptionsOf("model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: " + capacity +
                         "}, {name: m1, capacity: " + capacity + "}]\n" + lines,
                     kGrouped);
  };
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid"}) {
    const auto heads = of_two("1GiB", "partition: head\npolicy: " + policy + "\n");
    ASSERT_TRUE(heads.ok()) << heads.status();
    EXPECT_EQ(heads->partition, Partition::kHead);
    const auto chosen = of_two("1GiB", "partition: auto\npolicy: " + policy + "\n");
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->partition, Partition::kRequest);
  }
  const auto hybrid = of_two("6MiB", "partition: head\npolicy: fetch_hybrid\n");
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  const auto both = of_two("6MiB", "partition: head\npolicy: fetch_recompute\n");
  EXPECT_EQ(both.status().code(), absl::StatusCode::kFailedPrecondition) << both.status();
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("room for 2 of 4 KV heads"));
}

TEST(RecomputeOptionsTest, PackingIsAStrategyOfTheScheduler) {
  for (const auto& [lines, name] :
       {std::pair("", "rows stay"), {"fetch: {packing: true}\n", "mini-batches"}}) {
    const auto options =
        OptionsOf(std::string(kNodes) + "policy: fetch_hybrid\n" + lines, kGrouped);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->scheduler.strategies.lane_packing()->name(), name);
  }
}

}  // namespace
}  // namespace lamina::coordinator
