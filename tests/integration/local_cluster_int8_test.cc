// SPDX-License-Identifier: Apache-2.0
//
// K and V as INT8: answers have the same bits however prompts are cut, rows and heads are spread,
// sequences are preempted, and prefixes are found.

#include <string>
#include <vector>

#include "tests/integration/cluster_test_util.h"
#include "tests/integration/conversation.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

struct Mode {
  std::string name;
  void (*apply)(LocalClusterOptions& options);
};

const std::vector<Mode>& Modes() {
  static const std::vector<Mode> modes = {
      {"request", [](LocalClusterOptions& options) { options.memory_nodes = 2; }},
      {"head",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
       }},
      // Spans have 256 tokens, and a chunk has tokens of several spans of one node.
      {"token_range",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kTokenRange;
         options.chunk_tokens = 768;
       }},
      {"token_range_with_small_chunks",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 3;
         options.partition = Partition::kTokenRange;
         options.chunk_tokens = 50;
         options.lanes = 2;
       }},
      {"token_range_queries_first",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kTokenRange;
         options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
       }},
      // Steps have rows of a prompt over the borders of blocks, and of spans.
      {"token_range_with_prompt_rows",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kTokenRange;
         options.scratch_tokens = 50;
         options.chunk_tokens = 100;
         options.sub_batches.chunks = 2;
       }},
      {"small_chunks", [](LocalClusterOptions& options) { options.chunk_tokens = 24; }},
      {"queries_first",
       [](LocalClusterOptions& options) {
         options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
         options.chunk_tokens = 50;
       }},
      {"heads_queries_first",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
       }},
      {"prompt_rows",
       [](LocalClusterOptions& options) {
         options.scratch_tokens = 50;
         options.chunk_tokens = 100;
       }},
      {"lanes", [](LocalClusterOptions& options) { options.lanes = 3; }},
      {"rotational",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.lanes = 3;
       }},
      {"stages",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.stages = 2;
         options.lanes = 2;
       }},
      {"fetch_heads",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.memory_nodes = 2;
         options.lanes = 2;
         options.chunk_tokens = 70;
       }},
      // One head of the longest sequence fits.
      {"fetch_small_windows",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 200 << 10;
         options.chunk_tokens = 100;
         options.scratch_tokens = 50;
       }},
      {"fetch_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.scratch_tokens = 40;
       }},
      {"fetch_recompute_from_tokens",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.recompute_percent = 60;
         options.recompute = RecomputeFrom::kTokens;
         options.memory_nodes = 2;
         options.lanes = 2;
         options.chunk_tokens = 70;
       }},
      // All closed blocks are made, of several requests in one block of rows.
      {"fetch_recompute_all_from_tokens_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.recompute_percent = 100;
         options.recompute = RecomputeFrom::kTokens;
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.scratch_tokens = 40;
       }},
      // One head of the longest sequence fits.
      {"fetch_recompute_from_tokens_in_small_windows",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 200 << 10;
         options.recompute_percent = 50;
         options.recompute = RecomputeFrom::kTokens;
         options.chunk_tokens = 100;
         options.scratch_tokens = 50;
       }},
      {"fetch_sparse_with_all",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.sparse_ratio = 1;
         options.memory_nodes = 2;
         options.lanes = 2;
         options.chunk_tokens = 70;
       }},
      {"fetch_sparse_with_all_and_prompt_rows",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 200 << 10;
         options.sparse_ratio = 1;
         options.chunk_tokens = 100;
         options.scratch_tokens = 50;
       }},
      // Room for an open block of each of some sequences, and for fewer closed ones than they have.
      {"fetch_heads_with_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 256 << 10;
         options.memory_nodes = 2;
         options.lanes = 2;
         options.chunk_tokens = 70;
       }},
      {"fetch_heads_with_resident_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 1 << 20;
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.scratch_tokens = 40;
       }},
      // One head of the longest sequence fits, and one block of each form stays.
      {"fetch_sparse_with_all_and_a_block_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 200 << 10;
         options.sparse_ratio = 1;
         options.resident_bytes = 60 << 10;
         options.chunk_tokens = 100;
         options.scratch_tokens = 50;
       }},
      {"local", [](LocalClusterOptions& options) { options.local = true; }},
      {"local_small_chunks", [](LocalClusterOptions& options) {
         options.local = true;
         options.chunk_tokens = 40;
       }}};
  return modes;
}

LocalClusterOptions Base() {
  return {.model = SmallModel(),
          .int8 = true,
          .sequence_tokens_max = 768,
          .threads = 2,
          .prefix_cache = false};
}

// One node of each kind, a prompt in one chunk.
LocalClusterOptions Plain() {
  LocalClusterOptions options = Base();
  options.chunk_tokens = 768;
  return options;
}

// Around the borders of blocks of 64 and 256.
std::vector<GenerateSpec> Requests() {
  std::vector<GenerateSpec> specs;
  for (const uint32_t tokens :
       {1u, 62u, 63u, 64u, 65u, 100u, 127u, 128u, 200u, 255u, 257u, 330u, 600u}) {
    const uint64_t seed = tokens;
    specs.push_back(tokens % 2 == 0 ? Greedy(RandomPrompt(tokens, seed), 70)
                                    : Sampled(RandomPrompt(tokens, seed), 70, seed));
  }
  return specs;
}

class Int8Test : public ::testing::TestWithParam<size_t> {};

TEST_P(Int8Test, HasTheBitsOfPromptsInOneChunk) {
  static const std::vector<GenerateResult> expected =
      MakeCluster(Plain())->GenerateMany(Requests());
  LocalClusterOptions options = Base();
  Modes()[GetParam()].apply(options);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(Requests()), expected);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Lengths lie around the borders of blocks of 64 tokens.
const Conversations kConversations = {.first_prompts = {1, 63, 64, 65, 100, 250, 300},
                                      .turns = 3,
                                      .greedy_tokens = 30,
                                      .sampled_tokens = 60};

TEST_P(Int8Test, ConversationsGoOnBehindClosedBlocksWithTheSameBits) {
  static const std::vector<std::vector<GenerateResult>> expected =
      Converse(*MakeCluster(Plain()), kConversations);
  LocalClusterOptions options = Base();
  Modes()[GetParam()].apply(options);
  options.prefix_cache = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<std::vector<GenerateResult>> found = Converse(*cluster, kConversations);
  uint64_t cached = 0;
  for (size_t turn = 0; turn < found.size(); ++turn) {
    SCOPED_TRACE(absl::StrCat("turn ", turn));
    ExpectSame(found[turn], expected[turn]);
    for (const GenerateResult& result : found[turn]) {
      EXPECT_EQ(result.choices[0].usage.cached_tokens % kInt8BlockTokens, 0u);
      cached += result.choices[0].usage.cached_tokens;
    }
  }
  if (options.sparse_ratio > 0) {
    EXPECT_EQ(cached, 0u) << "the cache is off";
  } else {
    EXPECT_GT(cached, options.partition == Partition::kTokenRange ? 500u : 1500u);
  }
}

// Searches whose beams part before, at and behind the borders of blocks.
std::vector<GenerateSpec> Searches() {
  std::vector<GenerateSpec> specs;
  for (const uint32_t tokens : {1u, 60u, 63u, 64u, 126u, 191u, 250u}) {
    GenerateSpec spec = Greedy(RandomPrompt(tokens, tokens), 10);
    spec.beams.width = 2 + tokens % 3;
    spec.choices = 2;
    specs.push_back(std::move(spec));
  }
  return specs;
}

void ExpectSameChoices(const std::vector<GenerateResult>& found,
                       const std::vector<GenerateResult>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("search ", i));
    ASSERT_TRUE(expected[i].status.ok()) << expected[i].status;
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ASSERT_EQ(found[i].choices.size(), expected[i].choices.size());
    for (size_t c = 0; c < found[i].choices.size(); ++c) {
      ExpectSameChoice(found[i].choices[c], expected[i].choices[c]);
    }
  }
}

TEST_P(Int8Test, BeamsHaveTheBitsOfPromptsInOneChunk) {
  static const std::vector<GenerateResult> expected =
      MakeCluster(Plain())->GenerateMany(Searches());
  for (const bool cache : {false, true}) {
    LocalClusterOptions options = Base();
    Modes()[GetParam()].apply(options);
    options.prefix_cache = cache;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSameChoices(cluster->GenerateMany(Searches()), expected);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// The name of a node that may come and go: who runs without it loses nothing by it. Empty where
// every node is needed.
std::string AddVisitor(LocalClusterOptions& options) {
  if (options.local || options.partition == Partition::kHead) {
    options.compute_nodes = 2;
    return options.fetch_bytes == 0 ? "c1" : "";
  }
  options.memory_nodes = 2;
  options.fetch_bytes *= 2;  // There are windows for each.
  return "m1";
}

// In a new epoch each sequence computes the token that was to come. Those that may have filled
// their block in steps which were under way, few of all, compute it again.
TEST_P(Int8Test, OpenBlocksOutliveEpochs) {
  constexpr uint32_t kChanges = 3;  // It comes, leaves and comes.
  std::vector<GenerateSpec> specs;
  for (const uint32_t tokens : {10u, 63u, 64u, 100u, 131u, 290u}) {
    const std::vector<TokenId> prompt = RandomPrompt(tokens, tokens);
    specs.push_back(tokens % 2 == 0 ? Greedy(prompt, 160) : Sampled(prompt, 160, tokens));
  }
  static const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(specs);
  LocalClusterOptions options = Base();
  Modes()[GetParam()].apply(options);
  options.prefix_cache = true;
  const std::string visitor = AddVisitor(options);
  if (visitor.empty()) {
    GTEST_SKIP() << "no node can be spared";
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  cluster->Detach(visitor);
  ASSERT_TRUE(cluster->WaitForState(absl::StrCat("serving; without ", visitor)).ok());
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const auto& request : requests) {
    request->WaitForTokens(10);
  }
  const coordinator::EngineStatus before = cluster->engine().GetStatus();
  ASSERT_EQ(before.scheduler.running, specs.size()) << "they ended too early to tell anything";
  for (uint32_t change = 1; change <= kChanges; ++change) {
    change % 2 == 1 ? cluster->Attach(visitor) : cluster->Detach(visitor);
    for (const auto& request : requests) {
      request->WaitForTokens(10 + 30 * change);
    }
  }
  std::vector<GenerateResult> found;
  for (const auto& request : requests) {
    found.push_back(request->Wait());
  }
  ExpectSame(found, expected);
  const coordinator::EngineStatus after = cluster->engine().GetStatus();
  EXPECT_GE(after.epoch, before.epoch + kChanges);
  const uint64_t computed = after.tokens_prefilled - before.tokens_prefilled;
  RecordProperty("computed", static_cast<int>(computed));
  if (options.partition == Partition::kTokenRange) {  // Open blocks are, and what has moved.
    EXPECT_LE(computed, kChanges * specs.size() * 2 * kInt8BlockTokens);
  } else if (options.sparse_ratio == 0) {  // There the cache is off.
    EXPECT_LE(computed, kChanges * specs.size() + 4 * (kInt8BlockTokens - 1));
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

INSTANTIATE_TEST_SUITE_P(Modes, Int8Test, ::testing::Range(size_t{0}, Modes().size()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

TEST(Int8KvTest, ItsBitsAreNotThoseOfBf16) {
  LocalClusterOptions options = Base();
  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(64, 1), 1),
                                           Greedy(RandomPrompt(66, 1), 1)};
  const std::vector<GenerateResult> int8 = MakeCluster(options)->GenerateMany(specs);
  options.int8 = false;
  const std::vector<GenerateResult> bf16 = MakeCluster(options)->GenerateMany(specs);
  // The first block is open until a token stands behind it.
  EXPECT_EQ(Bits(int8[0].choices[0].logprobs), Bits(bf16[0].choices[0].logprobs));
  EXPECT_NE(Bits(int8[1].choices[0].logprobs), Bits(bf16[1].choices[0].logprobs));
  EXPECT_NEAR(int8[1].choices[0].logprobs[0], bf16[1].choices[0].logprobs[0], 0.05);
}

// Requests for which there are slots one after the other.
std::vector<GenerateSpec> MoreThanFit() {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 16; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(1 + 9 * i, 100 + i);
    specs.push_back(i % 2 == 0 ? Greedy(std::move(prompt), 90) : Sampled(std::move(prompt), 90, i));
  }
  return specs;
}

LocalClusterOptions WithFewSlots(uint32_t lanes, Partition partition) {
  LocalClusterOptions options = Base();
  options.sequence_tokens_max = 300;
  options.partition = partition;
  options.memory_nodes = partition == Partition::kRequest ? 1 : 2;
  // Each has room for a span.
  options.slots = partition == Partition::kTokenRange ? 300 : 400 / options.memory_nodes;
  options.lanes = lanes;
  options.chunk_tokens = 32;
  options.running_max = 12;
  return options;
}

void ExpectPreemptedHas(const std::vector<GenerateResult>& expected,
                        const LocalClusterOptions& options) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MoreThanFit()), expected);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST(Int8KvTest, PreemptedIsAsUndisturbed) {
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(MoreThanFit());
  for (const bool cache : {false, true}) {
    for (const auto& [lanes, partition] : {std::pair(1u, Partition::kRequest),
                                           {2u, Partition::kRequest},
                                           {2u, Partition::kHead},
                                           {2u, Partition::kTokenRange}}) {
      SCOPED_TRACE(absl::StrCat(lanes, " lanes, partition ", static_cast<int>(partition)));
      LocalClusterOptions options = WithFewSlots(lanes, partition);
      options.prefix_cache = cache;
      ExpectPreemptedHas(expected, options);
    }
  }
}

// What stays of a request goes with it, and what it makes anew stays: four open blocks, and seven
// closed ones.
TEST(Int8KvTest, PreemptedIsAsUndisturbedWhereBlocksStay) {
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(MoreThanFit());
  for (const bool cache : {false, true}) {
    SCOPED_TRACE(absl::StrCat("cache ", cache));
    LocalClusterOptions options = WithFewSlots(2, cache ? Partition::kHead : Partition::kRequest);
    options.prefix_cache = cache;
    options.fetch_bytes = 2 << 20;
    options.resident_bytes = 256 << 10;
    ExpectPreemptedHas(expected, options);
  }
}

// More requests than tails, one after the other and side by side: each waits for one.
TEST(Int8KvTest, TailsAreGivenUpBeforeOthersTakeThem) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 40; ++i) {
    specs.push_back(Greedy(RandomPrompt(60 + i % 7, i), 1 + i % 9));
  }
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(specs);
  for (const auto& [running, nodes] : {std::pair(1u, 1u), {3u, 1u}, {1u, 2u}, {3u, 2u}}) {
    LocalClusterOptions options = Base();
    options.memory_nodes = nodes;
    options.partition = nodes > 1 ? Partition::kTokenRange : Partition::kRequest;
    options.lanes = running;
    options.running_max = running;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

TEST(Int8KvTest, ChoicesOfOnePromptAreAsSingleRequests) {
  GenerateSpec spec = Sampled(RandomPrompt(150, 3), 80, 5);
  spec.choices = 3;
  const GenerateResult expected = MakeCluster(Plain())->GenerateMany({spec})[0];
  for (const Partition partition : {Partition::kRequest, Partition::kTokenRange}) {
    LocalClusterOptions options = Base();
    options.partition = partition;
    options.prefix_cache = true;
    options.lanes = 2;
    const GenerateResult found = MakeCluster(options)->GenerateMany({spec})[0];
    ASSERT_TRUE(expected.status.ok() && found.status.ok()) << found.status;
    ASSERT_EQ(found.choices.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      ExpectSameChoice(found.choices[i], expected.choices[i]);
    }
    EXPECT_EQ(found.choices[1].usage.cached_tokens, 128u);
  }
}

// Scales of K are of all tokens of a block: what differs behind 100 tokens shares 64.
TEST(Int8KvTest, PromptsThatPartInsideABlockShareTheBlocksBeforeIt) {
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(100, 1);
    const std::vector<TokenId> own = RandomPrompt(60, 10 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    specs.push_back(Greedy(prompt, 40));
  }
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(specs);
  LocalClusterOptions options = Base();
  options.prefix_cache = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateResult> found;
  for (const GenerateSpec& spec : specs) {
    found.push_back(cluster->GenerateMany({spec})[0]);
    EXPECT_EQ(found.back().choices[0].usage.cached_tokens, found.size() == 1 ? 0u : 64u);
  }
  ExpectSame(found, expected);
}

TEST(Int8KvTest, ScoresDoNotDependOnChunks) {
  const std::vector<TokenId> text = RandomPrompt(400, 9);
  const GenerateResult expected = MakeCluster(Plain())->Score(text);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  for (const Partition partition : {Partition::kRequest, Partition::kTokenRange}) {
    LocalClusterOptions options = Base();
    options.memory_nodes = 2;
    options.partition = partition;
    options.chunk_tokens = 70;
    options.scratch_tokens = 150;
    const GenerateResult found = MakeCluster(options)->Score(text);
    ASSERT_TRUE(found.status.ok()) << found.status;
    EXPECT_EQ(Bits(found.scores), Bits(expected.scores));
  }
}

// Closed blocks on nodes that stay are found again; open ones are computed anew.
class LostNodeTest : public ::testing::TestWithParam<Partition> {};

TEST_P(LostNodeTest, ChangesNoBits) {
  LocalClusterOptions options = Base();
  options.memory_nodes = 2;
  options.partition = GetParam();
  options.prefix_cache = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Sampled(RandomPrompt(170 + 30 * i, i), 150, i));
  }
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const auto& request : requests) {
    request->WaitForTokens(20);
  }
  cluster->Detach("m1");
  std::vector<GenerateResult> found;
  for (const auto& request : requests) {
    found.push_back(request->Wait());
  }
  ExpectSame(found, expected);
  EXPECT_GT(cluster->engine().GetStatus().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Partitions, LostNodeTest,
                         ::testing::Values(Partition::kRequest, Partition::kTokenRange),
                         [](const auto& tested) {
                           return std::string(tested.param == Partition::kRequest ? "request"
                                                                                  : "token_range");
                         });

// Fewer tails than the beams of two searches, and slots for few: beams wait for both.
TEST(Int8KvTest, BeamsWaitForTailsAndSlots) {
  const std::vector<GenerateResult> expected = MakeCluster(Plain())->GenerateMany(Searches());
  for (const auto& [nodes, cache] : {std::pair(1u, false), {1u, true}, {2u, false}, {2u, true}}) {
    LocalClusterOptions options = Base();
    options.memory_nodes = nodes;
    options.partition = nodes > 1 ? Partition::kTokenRange : Partition::kRequest;
    options.sequence_tokens_max = 300;
    options.slots = 600 / nodes;
    options.running_max = 5;
    options.prefix_cache = cache;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    std::vector<GenerateSpec> specs = Searches();
    for (uint64_t i = 0; i < 4; ++i) {
      specs.push_back(Greedy(RandomPrompt(60 + 30 * i, 100 + i), 100));
    }
    std::vector<GenerateResult> found = cluster->GenerateMany(specs);
    EXPECT_TRUE(found.back().status.ok()) << found.back().status;
    found.resize(expected.size());
    ExpectSameChoices(found, expected);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST(Int8KvTest, StatusTellsTheBytesOfAToken) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Base());
  // 2 layers of 2 heads of 32: 2 * 32 + 4 + 4 bytes each.
  EXPECT_THAT(cluster->engine().GetStatus().partition,
              ::testing::HasSubstr("int8: 288 B a token, 1.78 times fewer than bf16"));
  EXPECT_EQ(cluster->engine().lossy(), "kv_int8");
  for (const coordinator::NodeReport& node : cluster->engine().GetStatus().nodes) {
    if (node.member.is_memory) {
      EXPECT_EQ(node.kv.slots_total, 4096u);
    }
  }
}

}  // namespace
}  // namespace lamina::test_support
