// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"
#include "planner/scheduler_options.h"
#include "tests/support/random_model.h"
#include "tests/unit/coordinator/options_of_lines.h"

namespace lamina::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineOptionsOfTest, ThePolicyOfRequestsThatNameNoneComesFirst) {
  const auto alone = OptionsOf(kTwoNodes + "policy: fetch_heads\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_EQ(alone->policies.size(), 1u);
  EXPECT_EQ(alone->policies[0].name, "fetch_heads");
  EXPECT_FALSE(HasSeveralPolicies(*alone));
  EXPECT_EQ(PathsOnMemoryNodes(*alone, alone->fetch),
            plan::AttentionPaths({plan::AttentionPath::kFetch}));

  const auto three = OptionsOf(kTwoNodes +
                               "policies: [fetch_sparse, attend_remote, fetch_heads]\n"
                               "policy: attend_remote\nfetch: {caching_ratio: 0.25}\n");
  ASSERT_TRUE(three.ok()) << three.status();
  ASSERT_EQ(three->policies.size(), 3u);
  EXPECT_EQ(three->policies[0].name, "attend_remote");
  EXPECT_EQ(three->policies[0].lossy, "");
  EXPECT_EQ(three->policies[1].name, "fetch_sparse");
  EXPECT_EQ(three->policies[1].path, plan::AttentionPath::kSparse);
  EXPECT_EQ(three->policies[1].lossy, "fetch_sparse-0.25-window_sums");
  EXPECT_EQ(three->policies[2].path, plan::AttentionPath::kFetch);
  EXPECT_EQ(PathsOnMemoryNodes(*three, three->fetch),
            plan::AttentionPaths({plan::AttentionPath::kRemote, plan::AttentionPath::kFetch,
                                  plan::AttentionPath::kSparse}));
  EXPECT_EQ(three->lossy, "");
  EXPECT_TRUE(three->scheduler.prefix_cache) << "of the exact ones";
  EXPECT_EQ(three->partition, Partition::kRequest);

  const auto lossy = OptionsOf(kTwoNodes + "policies: [fetch_sparse, attend_remote]\n");
  ASSERT_TRUE(lossy.ok()) << lossy.status();
  EXPECT_EQ(lossy->lossy, "fetch_sparse-0.5-window_sums");

  const auto int8 = OptionsOf(kTwoNodes + "policies: [fetch_sparse, attend_remote]\nkv: int8\n");
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->policies[0].lossy, "fetch_sparse-0.5-window_sums-kv_int8");
  EXPECT_EQ(int8->policies[1].lossy, "kv_int8");
}

// A slot has room for K and V and for the activation, whoever's token is in it.
TEST(EngineOptionsOfTest, RecomputationIsAPathOfItsOwn) {
  const auto alone = OptionsOf(kTwoNodes + "policy: fetch_recompute\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(PathsOnMemoryNodes(*alone, alone->fetch),
            plan::AttentionPaths({plan::AttentionPath::kRecompute}));

  // K and V of 1024 bytes in a layer, and activations of 512.
  const std::vector<AttentionDescriptor> layers(3,
                                                {.query_heads = 8, .kv_heads = 8, .head_dim = 32});
  const auto three =
      OptionsOf(kTwoNodes + "policies: [attend_remote, fetch_heads, fetch_recompute]\n", layers);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->policies[2].path, plan::AttentionPath::kRecompute);
  EXPECT_EQ(three->policies[2].lossy, "");
  EXPECT_EQ(PathsOnMemoryNodes(*three, three->fetch),
            plan::AttentionPaths({plan::AttentionPath::kRemote, plan::AttentionPath::kFetch,
                                  plan::AttentionPath::kRecompute}));
  EXPECT_EQ(three->partition, Partition::kRequest);
  EXPECT_EQ(three->fetch.activation_width, 256u);
  EXPECT_EQ(SlotBytes(three->fetch, layers.size(), 3072), 3072u + 3 * 512);
  const std::unique_ptr<core::FetchPlanning> planning =
      three->scheduler.strategies.fetch_planning();
  const core::FetchRates rates = {.bytes_per_second = 1, .recompute_seconds = 1e-9};
  const core::FetchShare share =
      planning->Plan({.path = plan::AttentionPath::kRecompute, .tokens = 1000}, rates);
  EXPECT_GT(share.recomputed, 0u);
  // Making K and V of a token takes a quarter of what they take on the link.
  const core::FetchRates quarter = {.bytes_per_second = 1024, .recompute_seconds = 0.25};
  core::FetchStep step = {.path = plan::AttentionPath::kRecompute, .tokens = 1'000'000};
  EXPECT_EQ(planning->Plan(step, quarter).recomputed, plan::kRecomputeUnit * 4 / 5);
  step.lanes = 2;  // Then one makes them while the other's come.
  EXPECT_EQ(planning->Plan(step, quarter).recomputed, plan::kRecomputeUnit);
  step.lanes = 1;  // What a layer takes by itself is shared by its tokens.
  EXPECT_EQ(planning
                ->Plan(step, {.bytes_per_second = 1024,
                              .recompute_seconds = 0.125,
                              .recompute_fixed_seconds = 125'000})
                .recomputed,
            plan::kRecomputeUnit * 4 / 5);
  // A layer of fewer tokens takes so little of the windows that the next one comes meanwhile.
  step.tokens = 1000;
  EXPECT_EQ(planning->Plan(step, quarter).recomputed, plan::kRecomputeUnit);
  // Weights on the link take as long as K and V of 400 tokens, of two lanes as 200 of each.
  core::FetchRates streamed = {
      .bytes_per_second = 1024, .recompute_seconds = 2, .weights_seconds = 400};
  step = {.path = plan::AttentionPath::kRecompute, .tokens = 1000};
  EXPECT_EQ(planning->Plan(step, streamed).recomputed, 1400u * plan::kRecomputeUnit / 3000);
  EXPECT_THAT(planning->Plan(step, streamed).why, HasSubstr("and the layer's weights 4e+08 us"));
  step.lanes = 2;
  EXPECT_EQ(planning->Plan(step, streamed).recomputed, 480u * plan::kRecomputeUnit / 1000);
  // Activations would save half of K and V, 2.4% of a layer, or 1.0% with more weights.
  step.lanes = 1;
  streamed.weights_seconds = 20'000;
  EXPECT_EQ(planning->Plan(step, streamed).recomputed, plan::kRecomputeUnit);
  streamed.weights_seconds = 50'000;
  EXPECT_EQ(planning->Plan(step, streamed).recomputed, 0u);
  EXPECT_THAT(planning->Plan(step, streamed).why,
              HasSubstr("; the best split would save 1.0% of a layer"));
  // Whole tiles of each sequence: 64 of 100 tokens, or 48 where attention of a token takes 0.1 s
  // and dense layers 16 s and 3 s a row.
  const auto made_of_100 = [](const core::FetchShare& made) {
    return plan::SplitByShare(/*before=*/100, /*tokens=*/1, made.recomputed, 0, 0, {}).run.made();
  };
  core::FetchRates even = {.bytes_per_second = 1024, .recompute_seconds = 1};
  step = {.path = plan::AttentionPath::kRecompute, .tokens = 800, .rows = 8, .sequences = 8};
  EXPECT_EQ(made_of_100(planning->Plan(step, even)), 64u);
  even.attend_seconds = 0.1;
  even.slice = {.fixed = 16, .slope = 3};
  const core::FetchShare busy = planning->Plan(step, even);
  EXPECT_EQ(made_of_100(busy), 48u);
  EXPECT_THAT(busy.why, AllOf(HasSubstr("48% of tokens recomputed"),
                              HasSubstr("and attention and dense layers 1.2e+08 us of a layer")));
  for (const plan::AttentionPath other :
       {plan::AttentionPath::kRemote, plan::AttentionPath::kFetch}) {
    EXPECT_EQ(planning->Plan({.path = other, .tokens = 1000}, rates).recomputed, 0u);
  }

  const auto two = OptionsOf(kTwoNodes +
                             "policies: [attend_remote, fetch_recompute]\n"
                             "fetch: {recompute_percent: 50}\n");
  ASSERT_TRUE(two.ok()) << two.status();
  const auto half = two->scheduler.strategies.fetch_planning();
  EXPECT_EQ(half->Plan({.path = plan::AttentionPath::kRecompute, .tokens = 10}, {}).recomputed,
            512u);
  EXPECT_EQ(half->Plan({.path = plan::AttentionPath::kRemote, .tokens = 10}, {}).recomputed, 0u);
}

// Slots hold one or the other, and some are its own.
TEST(EngineOptionsOfTest, HybridIsAPathOfItsOwn) {
  const auto alone = OptionsOf(kTwoNodes + "policy: fetch_hybrid\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->policies[0].path, plan::AttentionPath::kHybrid);
  EXPECT_EQ(PathsOnMemoryNodes(*alone, alone->fetch),
            plan::AttentionPaths({plan::AttentionPath::kHybrid}));
  EXPECT_EQ(alone->fetch.hybrid->percent, 0u);

  const auto three = OptionsOf(kTwoNodes +
                               "policies: [attend_remote, fetch_heads, fetch_hybrid]\n"
                               "fetch: {hybrid_percent: 30, activation_percent: 40}\n");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->policies[2].path, plan::AttentionPath::kHybrid);
  EXPECT_EQ(three->policies[2].lossy, "");
  EXPECT_EQ(PathsOnMemoryNodes(*three, three->fetch),
            plan::AttentionPaths({plan::AttentionPath::kRemote, plan::AttentionPath::kFetch,
                                  plan::AttentionPath::kHybrid}));
  EXPECT_EQ(three->partition, Partition::kRequest);
  EXPECT_EQ(three->fetch.activation_width, 256u);
  ASSERT_TRUE(three->fetch.hybrid.has_value());
  EXPECT_EQ(three->fetch.hybrid->percent, 30u);
  EXPECT_EQ(three->fetch.hybrid->share, 409u);
}

// An activation is as good as its K and V: all are fetched as these.
TEST(EngineOptionsOfTest, WithInt8NoActivationsAreKept) {
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid"}) {
    const auto options = OptionsOf(kTwoNodes + "kv: int8\npolicy: " + policy + "\n");
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(PathsOnMemoryNodes(*options, options->fetch),
              plan::AttentionPaths({plan::AttentionPath::kFetch}));
    EXPECT_EQ(options->policies[0].path, plan::AttentionPath::kFetch);
    EXPECT_EQ(options->fetch.activation_width, 0u);
    EXPECT_FALSE(options->fetch.hybrid.has_value());
    const core::FetchShare share = options->scheduler.strategies.fetch_planning()->Plan(
        {.path = plan::AttentionPath::kFetch, .tokens = 1000}, {});
    EXPECT_EQ(share.recomputed, 0u);
    EXPECT_THAT(share.why, HasSubstr("no activations with kv int8: one has 512 bytes in a layer"));
  }
}

// What is said of a step with rows of that path.
std::string WordsOf(const std::string& lines, const std::vector<AttentionDescriptor>& layers,
                    plan::AttentionPath path = plan::AttentionPath::kSparse) {
  const auto options = OptionsOf(
      kTwoNodes + "limits: {running_max: 16, sequence_tokens_max: 1024}\n" + lines, layers);
  EXPECT_TRUE(options.ok()) << options.status();
  if (!options.ok()) {
    return "";
  }
  const auto planning = options->scheduler.strategies.fetch_planning();
  const core::FetchShare share = planning->Plan({.path = path, .tokens = 1000}, {});
  EXPECT_EQ(share.recomputed, 0u);
  return share.why;
}

// 1280 tokens of 1 KiB stay, 80 of each row.
TEST(EngineOptionsOfTest, SaysWhatStaysAndWhyNoneIsRecomputed) {
  const std::vector<AttentionDescriptor> grouped(2, kLayer);
  const std::string phases =
      "of each of 16 rows 80 of 1024 tokens stay (p1 = 80, alpha = 0.922), none is recomputed "
      "(p2 = n): an activation has 512 bytes in a layer, K and V 512";
  EXPECT_EQ(
      WordsOf("policy: fetch_sparse\nfetch: {caching_ratio: 0.2, resident: 1280KiB}\n", grouped),
      "answers are lossy: decode rows attend to a part of the tokens "
      "(fetch_sparse-0.2-window_sums); " +
          phases);
  EXPECT_EQ(WordsOf("policy: fetch_heads\nfetch: {resident: 1280KiB}\n", grouped), phases);
  // With INT8 an open block of each row takes 64 KiB, and 28 closed ones of 36 KiB fill the rest.
  EXPECT_EQ(WordsOf("policy: fetch_heads\nkv: int8\nfetch: {resident: 2MiB}\n", grouped),
            "of each of 16 rows 112 of 1024 tokens stay (p1 = 112, alpha = 0.891), none is "
            "recomputed (p2 = n): an activation has 512 bytes in a layer, K and V 288");
  const std::string two = "policies: [attend_remote, fetch_sparse]\nfetch: {resident: 1280KiB}\n";
  EXPECT_EQ(WordsOf(two, grouped), phases);
  EXPECT_EQ(WordsOf(two, grouped, plan::AttentionPath::kRemote), "");

  const std::vector<AttentionDescriptor> multi_head(
      2, {.query_heads = 8, .kv_heads = 8, .head_dim = 32});
  EXPECT_THAT(WordsOf("policy: fetch_sparse\n", multi_head),
              HasSubstr("of each of 16 rows 0 of 1024 tokens stay (p1 = 0, alpha = 1), none is "
                        "recomputed (p2 = n): memory nodes keep no activations, with which they "
                        "would have room for 67% of the tokens; recomputing would save at most 50% "
                        "of what comes (an activation has 512 bytes in a layer, K and V 1024)"));
  EXPECT_THAT(WordsOf("policy: fetch_sparse\nkv: int8\n", multi_head),
              HasSubstr("recomputing would save at most 11% of what comes (an activation has 512 "
                        "bytes in a layer, K and V 576)"));
}

TEST(EngineOptionsOfTest, HeadsThatStreamAreAPathAndALossyWord) {
  const std::string path = ::testing::TempDir() + "/heads_that_stream.json";
  const auto options_of = [&path](const std::string& heads, const std::string& policies) {
    std::ofstream(path) << R"({"format": 1, "model": {"layers": 2, "kv_heads": 4, "head_dim": 32},)"
                        << R"( "streaming": [)" << heads << "]}";
    return OptionsOf(kTwoNodes + policies + "fetch: {streaming_heads: '" + path +
                     "', streaming_sink: 3, streaming_window: 9}\n");
  };
  const std::string heads = R"({"layer": 1, "heads": [0, 2]})";
  const auto alone = options_of(heads, "policy: fetch_heads\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->fetch.streaming.layers, ElementsAre(ElementsAre(), ElementsAre(0, 2)));
  EXPECT_EQ(alone->fetch.streaming.sink, 3u);
  EXPECT_EQ(alone->fetch.streaming.window, 9u);
  EXPECT_EQ(alone->lossy, "fetch_heads-" + alone->fetch.streaming.Word());
  EXPECT_EQ(PathsOnMemoryNodes(*alone, alone->fetch),
            plan::AttentionPaths({plan::AttentionPath::kStreaming}));
  EXPECT_TRUE(alone->scheduler.prefix_cache);

  const auto two = options_of(heads, "policies: [attend_remote, fetch_heads]\n");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->lossy, "");
  EXPECT_EQ(two->policies[1].path, plan::AttentionPath::kStreaming);
  EXPECT_EQ(two->policies[1].lossy, alone->lossy);

  const auto none = options_of("", "policy: fetch_heads\n");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->lossy, "");
  EXPECT_EQ(PathsOnMemoryNodes(*none, none->fetch),
            plan::AttentionPaths({plan::AttentionPath::kFetch}));

  ExpectRefused(options_of(R"({"layer": 2, "heads": [0]})", "policy: fetch_heads\n"),
                absl::StatusCode::kInvalidArgument, HasSubstr("streaming.0.layer: 2"));
}

TEST(EngineOptionsOfTest, TellsNodesLayersAndTransports) {
  const auto options = OptionsOf(kTwoNodes + "transport: [throttle(bandwidth=100MB)+ucx, shm]\n");
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->nodes.size(), 3u);
  EXPECT_EQ(options->nodes[0].name, "c0");
  EXPECT_FALSE(options->nodes[0].is_memory || options->nodes[0].holds_kv);
  EXPECT_TRUE(options->nodes[2].is_memory);
  EXPECT_THAT(options->layers, ElementsAre(kLayer, kLayer));
  EXPECT_EQ(KvBytesPerToken(options->layers), 1024u);
  EXPECT_EQ(options->vocabulary, 100u);
  EXPECT_THAT(options->transports,
              ElementsAre("throttle(bandwidth=100MB)+ucx://?peers=local", "shm://"));
  EXPECT_GT(options->node_silence_max, 0);
}

TEST(EngineOptionsOfTest, RowsAreSharedOutOverLanes) {
  const auto options =
      OptionsOf(kTwoNodes +
                "pipeline: {lanes: 3}\nlimits: {running_max: 100}\nprefill: {chunk_tokens: 16}\n");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->scheduler.lanes, 3u);
  EXPECT_EQ(options->scheduler.rows_max, 34u);
  EXPECT_EQ(options->scheduler.step_tokens_max, 68u) << "half of them for prompts";
  EXPECT_TRUE(options->scheduler.Validate().ok());
}

// What is simulated is what would run.
TEST(EngineOptionsOfTest, ThePlannersSchedulerIsTheCoordinators) {
  for (const std::string& lines : {
           kTwoNodes,
           kTwoNodes + "pipeline: {lanes: auto}\nlimits: {running_max: 100}\n",
           kTwoNodes + "pipeline: {mode: sequential, chunks: 4}\nprefix_cache: off\n",
           kTwoNodes + "partition: token_range\nlimits: {waiting_max: 7}\n",
           kTwoNodes + "partition: token_range\npolicy: fetch_heads\n",
           kTwoNodes + "prefill: {chunk_tokens: 64, scratch_tokens: 128}\n",
           std::string("compute: [{name: c0, capacity: 1GiB}]\npolicy: local\n"),
           std::string("compute: [{name: c0}, {name: c1, role: prefill}]\n"
                       "prefill: {mode: dedicated}\nmemory: [{name: m0, capacity: 1GiB}]\n"),
       }) {
    const auto config = ParseClusterConfig("model: m\n" + lines, "test", {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto real = OptionsOf(lines, {kLayer}, 5000);
    ASSERT_TRUE(real.ok()) << real.status();
    const core::SchedulerOptions& wanted = real->scheduler;

    const core::SchedulerOptions said =
        planner::SchedulerOptionsOf(*config, {.layers = 1, .positions_max = 5000});

    EXPECT_EQ(said.lanes, wanted.lanes) << lines;
    EXPECT_EQ(said.lanes_auto, wanted.lanes_auto) << lines;
    EXPECT_EQ(said.sub_batches.chunks, wanted.sub_batches.chunks) << lines;
    EXPECT_EQ(said.sub_batches.automatic, wanted.sub_batches.automatic) << lines;
    EXPECT_EQ(said.plan_ahead, wanted.plan_ahead) << lines;
    EXPECT_EQ(said.rows_max, wanted.rows_max) << lines;
    EXPECT_EQ(said.prompt_rows_max, wanted.prompt_rows_max) << lines;
    EXPECT_EQ(said.step_tokens_max, wanted.step_tokens_max) << lines;
    EXPECT_EQ(said.chunk_tokens, wanted.chunk_tokens) << lines;
    EXPECT_EQ(said.scratch_tokens, wanted.scratch_tokens) << lines;
    EXPECT_EQ(said.sequence_tokens_max, wanted.sequence_tokens_max) << lines;
    EXPECT_EQ(said.running_max, wanted.running_max) << lines;
    EXPECT_EQ(said.waiting_max, wanted.waiting_max) << lines;
    EXPECT_EQ(said.admission_headroom, wanted.admission_headroom) << lines;
    EXPECT_EQ(said.span_tokens, wanted.span_tokens) << lines;
    EXPECT_EQ(said.soft_reservation_min, wanted.soft_reservation_min) << lines;
    EXPECT_EQ(said.soft_reservation_max, wanted.soft_reservation_max) << lines;
    EXPECT_EQ(said.prefix_cache, wanted.prefix_cache) << lines;
  }
}

TEST(EngineOptionsOfTest, ThePlannersSchedulerHasTheModelsWindows) {
  AttentionDescriptor windowed = kLayer;
  windowed.window = 100;
  const auto real = OptionsOf(kTwoNodes, {windowed, windowed});
  ASSERT_TRUE(real.ok()) << real.status();
  const auto config = ParseClusterConfig("model: m\n" + kTwoNodes, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();

  const core::SchedulerOptions said =
      planner::SchedulerOptionsOf(*config, {.layers = 2, .window = 100, .window_layers = 2});

  EXPECT_EQ(said.windows.longest(), 100u);
  EXPECT_EQ(said.windows.longest(), real->scheduler.windows.longest());
  EXPECT_EQ(said.windows.SeenOf(1000), real->scheduler.windows.SeenOf(1000));
  EXPECT_EQ(real->scheduler.release_tokens, cost::kReleasedTokens);
}

TEST(EngineOptionsOfTest, AModelForShorterSequencesLowersTheLimit) {
  const std::string lines = kTwoNodes + "limits: {sequence_tokens_max: 4000}\n";
  EXPECT_EQ(OptionsOf(lines, {kLayer}, 1000)->scheduler.sequence_tokens_max, 1000u);
  EXPECT_EQ(OptionsOf(lines, {kLayer}, 5000)->scheduler.sequence_tokens_max, 4000u);
  EXPECT_EQ(OptionsOf(lines, {kLayer})->scheduler.sequence_tokens_max, 4000u) << "not known";
}

TEST(EngineOptionsOfTest, PolicyLocalHasOneLaneAndSaysWhereKvIs) {
  const auto options =
      OptionsOf("compute: [{name: c0, capacity: 1GiB}]\npolicy: local\npipeline: {lanes: auto}\n");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->nodes[0].holds_kv);
  EXPECT_FALSE(options->scheduler.lanes_auto);
  EXPECT_THAT(options->scheduler.lanes_why, HasSubstr("no attention is away"));
  EXPECT_EQ(options->replica_lanes, 1u);
  EXPECT_FALSE(options->policy_auto.has_value());
}

TEST(EngineOptionsOfTest, PolicyLocalGivesEachReplicaLanesOfItsOwn) {
  const auto replicas = OptionsOf(
      "compute: [{name: c0, capacity: 1GiB}, {name: c1, capacity: 1GiB}]\npolicy: local\n");
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  EXPECT_EQ(replicas->scheduler.lanes, 2u);
  EXPECT_EQ(replicas->scheduler.rows_max, (replicas->scheduler.running_max + 1) / 2);
  EXPECT_EQ(replicas->replica_lanes, 1u);
  EXPECT_THAT(replicas->replica_lanes_why, HasSubstr("one for each replica"));
  EXPECT_TRUE(replicas->nodes[1].holds_kv);
}

TEST(EngineOptionsOfTest, PolicyAutoHasRoomForAllRowsInOneLaneAndKnowsWhoSharesCores) {
  const auto options = OptionsOf(
      "compute: [{name: c0, cores: \"0-1\", capacity: 1GiB}]\n"
      "memory: [{name: m0, cores: \"1\", capacity: 1GiB}, {name: m1, cores: \"2\", capacity: 1GiB}]"
      "\npolicy: auto\npolicy_load: {rows: 9, context: 70, prompts: 3}\n"
      "pipeline: {lanes: 2}\nlimits: {running_max: 100}\n");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->scheduler.rows_max, 100u);
  EXPECT_TRUE(options->nodes[0].holds_kv);
  ASSERT_TRUE(options->policy_auto.has_value());
  EXPECT_EQ(options->policy_auto->load.rows, 9);
  EXPECT_EQ(options->policy_auto->load.context, 70);
  EXPECT_EQ(options->policy_auto->load.prompts, 3);
  ASSERT_EQ(options->policy_auto->memory.size(), 2u);
  EXPECT_THAT(options->policy_auto->memory[0].names, ElementsAre("m0"));
  EXPECT_TRUE(options->policy_auto->memory[0].shared);
  EXPECT_FALSE(options->policy_auto->memory[1].shared);
  EXPECT_EQ(options->partition, Partition::kRequest);
}

TEST(EngineOptionsOfTest, PolicyAutoCountsTheTokensOfItsLoadThatWindowsHide) {
  AttentionDescriptor windowed = kLayer;
  windowed.window = 100;
  const auto options = OptionsOf(
      "compute: [{name: c0, capacity: 1GiB}]\nmemory: [{name: m0, capacity: 1GiB}]\n"
      "policy: auto\npolicy_load: {rows: 9, context: 700}\n",
      {kLayer, windowed});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->policy_auto->load.context, 700);
}

std::string WhyNot(const EngineOptions& options, cost::KvPolicy wanted) {
  for (const WeighedPolicy& policy : options.policy_auto->policies) {
    if (policy.policy == wanted) {
      return policy.why_not;
    }
  }
  return "not weighed";
}

TEST(EngineOptionsOfTest, PolicyAutoWeighsWhatTheClusterCanHave) {
  const std::string keys =
      "policy: auto\nfetch: {window: 256MiB}\nattention: {decode: canonical, "
      "prefill: canonical}\n";
  const auto options = OptionsOf(
      "compute: [{name: c0, capacity: 1GiB}]\nmemory: [{name: m0, capacity: 1GiB}]\n" + keys);
  ASSERT_TRUE(options.ok()) << options.status();
  for (const cost::KvPolicy policy :
       {cost::KvPolicy::kAttendRemote, cost::KvPolicy::kLocal, cost::KvPolicy::kFetchHeads}) {
    EXPECT_EQ(WhyNot(*options, policy), "") << cost::KvPolicyName(policy);
  }
  EXPECT_EQ(WhyNot(*options, cost::KvPolicy::kFetchRecompute),
            "recomputation cannot pay: an activation has 256 elements in a layer, K and V 256");
  EXPECT_EQ(WhyNot(*options, cost::KvPolicy::kFetchTokens), "") << "by measured times alone";
  EXPECT_THAT(WhyNot(*options, cost::KvPolicy::kFetchSparse), HasSubstr("lossy"));
  EXPECT_EQ(options->fetch.bytes, 0u) << "each epoch has its own";
  EXPECT_EQ(options->policy_auto->policies[5].fetch.made_tokens_max, 4096u);
  // An epoch that makes tokens from their numbers plans so: a quarter if they take three times as
  // long as their transfer.
  const auto planning = options->scheduler.strategies.fetch_planning();
  const core::FetchStep step = {.path = plan::AttentionPath::kRecompute,
                                .tokens = 4096,
                                .rows = 2,
                                .sequences = 2,
                                .contexts = 4096};
  core::FetchRates rates = {.bytes_per_second = 512, .recompute_seconds = 3, .from_tokens = true};
  EXPECT_EQ(planning->Plan(step, rates).recomputed, plan::kRecomputeUnit / 4);
  rates.from_tokens = false;
  EXPECT_EQ(planning->Plan(step, rates).recomputed, 0u);
  EXPECT_EQ(options->policy_auto->policies[2].fetch.bytes, uint64_t{256} << 20);

  const auto store = OptionsOf(
      "compute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB, attend: false}]\n" + keys,
      {{.query_heads = 8, .kv_heads = 8, .head_dim = 32}});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(WhyNot(*store, cost::KvPolicy::kAttendRemote), HasSubstr("makes 'm0' a store"));
  EXPECT_THAT(WhyNot(*store, cost::KvPolicy::kLocal), HasSubstr("compute.0.capacity"));
  EXPECT_EQ(WhyNot(*store, cost::KvPolicy::kFetchRecompute), "");
  EXPECT_EQ(WhyNot(*store, cost::KvPolicy::kFetchHybrid), "");
  const auto f32 = OptionsOf(
      "compute: [{name: c0, compute_type: f32}]\nmemory: [{name: m0, capacity: 1GiB}]\n" + keys,
      {{.query_heads = 8, .kv_heads = 8, .head_dim = 32}});
  ASSERT_TRUE(f32.ok()) << f32.status();
  for (const cost::KvPolicy policy :
       {cost::KvPolicy::kFetchRecompute, cost::KvPolicy::kFetchHybrid}) {
    EXPECT_THAT(WhyNot(*f32, policy), HasSubstr("f32 is not served by this version with policy"));
  }
  EXPECT_EQ(WhyNot(*f32, cost::KvPolicy::kFetchTokens), "");
  EXPECT_FALSE(store->nodes[0].holds_kv);
  EXPECT_EQ(store->partition, Partition::kRequest);

  ExpectRefused(
      OptionsOf("compute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB, attend: false}]\n"
                "policy: auto\nfetch: {window: 1KiB}\n"),
      absl::StatusCode::kFailedPrecondition,
      AllOf(HasSubstr("finds none that this cluster can have; not attend_remote: memory.0.attend"),
            HasSubstr("not fetch_heads: fetch.window")));
}

TEST(EngineOptionsOfTest, PolicyAutoOfStagesHasLanesForThemAndSaysWhatIsOut) {
  const std::string folder = ::testing::TempDir() + "/options_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(test_support::WriteRandomModel({.model_type = "llama",
                                              .layers = 4,
                                              .width = 64,
                                              .ffn_width = 96,
                                              .query_heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 16,
                                              .vocabulary = 100},
                                             folder)
                  .ok());
  const auto model = model::OpenModel(folder);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto config = ParseClusterConfig(
      "model: m\ncompute: [{name: c0, capacity: 1GiB, replica: r, stage: 0},"
      " {name: c1, capacity: 1GiB, replica: r, stage: 1},"
      " {name: c2, capacity: 1GiB, replica: q, stage: 0},"
      " {name: c3, capacity: 1GiB, replica: q, stage: 1}]\n"
      "memory: [{name: m0, capacity: 1GiB}]\npolicy: auto\npipeline: {lanes: 4}\n",
      "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto options = EngineOptionsOf(*config, model->graph, model->config);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->replica_lanes, 2u);
  EXPECT_THAT(options->replica_lanes_why, HasSubstr("2 for each replica"));
  EXPECT_EQ(options->scheduler.lanes, 4u);
  EXPECT_EQ(options->replicas.size(), 2u);
  EXPECT_EQ(options->part_row_bytes, 64 * 4);
  EXPECT_EQ(WhyNot(*options, cost::KvPolicy::kLocal), "");
  EXPECT_EQ(WhyNot(*options, cost::KvPolicy::kAttendRemote), "");
  EXPECT_THAT(WhyNot(*options, cost::KvPolicy::kFetchHeads),
              HasSubstr("compute: 4 nodes are not served by this version with policy fetch_heads"));
}

TEST(EngineOptionsOfTest, WindowsBeyondAllBoundsAreRefused) {
  AttentionDescriptor wide = kLayer;
  wide.query_heads = 32768;
  wide.head_dim = 256;
  ExpectRefused(OptionsOf(kTwoNodes + "limits: {running_max: 4096}\n", {wide}),
                absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("query windows would take"), HasSubstr("limits.running_max")));
}

TEST(EngineOptionsOfTest, TellsWhetherTheModelHasExperts) {
  const auto config = ParseClusterConfig("model: m\n" + kTwoNodes, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  for (const uint32_t experts : {0u, 4u}) {
    const auto options = EngineOptionsOf(*config, GraphOf({kLayer, kLayer}),
                                         {.width = 256, .vocabulary = 100, .experts = experts});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->has_experts, experts > 0);
  }
}

TEST(EngineOptionsOfTest, StagesThatTheModelDoesNotHaveAreRefused) {
  ExpectRefused(OptionsOf("compute: [{name: c0, replica: r, stage: 0, layers: 0-0}, "
                          "{name: c1, replica: r, stage: 1, layers: 1-2}]\n"
                          "memory: [{name: m0, capacity: 1GiB}]\n"),
                absl::StatusCode::kInvalidArgument,
                HasSubstr("must end with layer 1, the last of the model"));
}

}  // namespace
}  // namespace lamina::coordinator
