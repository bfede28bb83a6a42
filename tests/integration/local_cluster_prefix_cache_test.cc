// SPDX-License-Identifier: Apache-2.0
//
// K and V that are kept: conversations go on with the bits that they have where nothing is kept.

#include <string>
#include <tuple>
#include <vector>

#include "tests/integration/cluster_modes.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/conversation.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

std::vector<ClusterMode> Modes() {
  std::vector<ClusterMode> modes = ClusterModes();
  modes.push_back({"small_chunks", [](LocalClusterOptions& options) {
                     options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
                     options.chunk_tokens = 16;
                   }});
  modes.push_back({"local", [](LocalClusterOptions& options) { options.local = true; }});
  return modes;
}

bool Keeps(const LocalClusterOptions& options) { return options.sparse_ratio == 0; }

// Where sequences are cut those are found that are half of a prompt or more.
uint64_t CachedAtLeast(const LocalClusterOptions& options) {
  return options.partition == Partition::kTokenRange ? 1000 : 2000;
}

LocalClusterOptions Base() {
  return {.model = SmallModel(), .memory_nodes = 2, .sequence_tokens_max = 768, .threads = 2};
}

// Lengths lie around the borders of tiles of 16 tokens and of blocks of 256.
const Conversations kConversations = {.first_prompts = {1, 15, 16, 17, 40, 250, 300},
                                      .turns = 4,
                                      .greedy_tokens = 9,
                                      .sampled_tokens = 16};

class PrefixCacheTest : public ::testing::TestWithParam<size_t> {};

TEST_P(PrefixCacheTest, ConversationsGoOnWithTheSameBits) {
  const ClusterMode mode = Modes()[GetParam()];
  LocalClusterOptions options = Base();
  mode.apply(options);
  const std::unique_ptr<LocalCluster> keeping = MakeCluster(options);
  options.prefix_cache = false;
  const std::unique_ptr<LocalCluster> forgetting = MakeCluster(options);
  ASSERT_NE(keeping, nullptr);
  ASSERT_NE(forgetting, nullptr);

  const std::vector<std::vector<GenerateResult>> found = Converse(*keeping, kConversations);
  const std::vector<std::vector<GenerateResult>> expected = Converse(*forgetting, kConversations);

  uint64_t cached = 0;
  for (size_t turn = 0; turn < found.size(); ++turn) {
    SCOPED_TRACE(absl::StrCat("turn ", turn));
    ExpectSame(found[turn], expected[turn]);
    for (size_t i = 0; i < found[turn].size(); ++i) {
      cached += found[turn][i].choices[0].usage.cached_tokens;
      EXPECT_EQ(expected[turn][i].choices[0].usage.cached_tokens, 0u);
      EXPECT_EQ(found[turn][i].choices[0].usage.cached_tokens % 16, 0u);
    }
  }
  EXPECT_EQ(cached > CachedAtLeast(options), Keeps(options)) << cached;
  EXPECT_TRUE(keeping->WaitForNoSlots().ok());
  EXPECT_EQ(keeping->engine().GetStatus().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefixCacheTest, ::testing::Range(size_t{0}, Modes().size()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

// Prompts that are longer than the scratch end in rows, and have the same bits.
class BoundedScratchTest : public ::testing::TestWithParam<size_t> {};

TEST_P(BoundedScratchTest, LongPromptsHaveTheSameBits) {
  const ClusterMode mode = Modes()[GetParam()];
  LocalClusterOptions options = Base();
  options.chunk_tokens = 32;
  options.running_max = 8;
  mode.apply(options);
  const std::unique_ptr<LocalCluster> roomy = MakeCluster(options);
  options.scratch_tokens = 50;
  const std::unique_ptr<LocalCluster> cramped = MakeCluster(options);
  ASSERT_NE(roomy, nullptr);
  ASSERT_NE(cramped, nullptr);
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {20u, 49u, 50u, 51u, 64u, 200u, 300u, 600u}) {
    specs.push_back(Sampled(RandomPrompt(tokens, tokens), 12, tokens));
  }
  ExpectSame(cramped->GenerateMany(specs), roomy->GenerateMany(specs));
  const std::vector<TokenId> scored = RandomPrompt(300, 9);
  const GenerateResult score = cramped->Score(scored);
  const GenerateResult expected = roomy->Score(scored);
  ASSERT_TRUE(score.status.ok()) << score.status;
  EXPECT_EQ(Bits(score.scores), Bits(expected.scores));
  EXPECT_EQ(cramped->engine().GetStatus().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Modes, BoundedScratchTest, ::testing::Range(size_t{0}, Modes().size()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

// Choices of one request share what is found; their answers are those of separate requests.
TEST(PrefixCacheTest, ChoicesShareAPrefixThatIsKept) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Base());
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenId> prompt = RandomPrompt(70, 3);
  GenerateSpec spec = Sampled(prompt, 20, 5);
  spec.choices = 3;
  const GenerateResult first = cluster->GenerateMany({spec})[0];
  const GenerateResult again = cluster->GenerateMany({spec})[0];
  ASSERT_TRUE(first.status.ok() && again.status.ok()) << again.status;
  for (size_t i = 0; i < 3; ++i) {
    ExpectSameChoice(again.choices[i], first.choices[i]);
    EXPECT_EQ(first.choices[i].usage.cached_tokens, 0u);
    EXPECT_EQ(again.choices[i].usage.cached_tokens, 64u);
  }
}

// A score of a prompt that is kept computes all of its tokens, and says what it says where nothing
// is.
TEST(PrefixCacheTest, ScoresFindNothing) {
  LocalClusterOptions options = Base();
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  options.prefix_cache = false;
  const std::unique_ptr<LocalCluster> forgetting = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ASSERT_NE(forgetting, nullptr);
  const std::vector<TokenId> prompt = RandomPrompt(100, 4);
  const GenerateResult cold = cluster->Generate(Greedy(prompt, 8));
  const GenerateResult warm = cluster->Generate(Greedy(prompt, 8));
  ASSERT_TRUE(cold.status.ok() && warm.status.ok()) << cold.status << warm.status;
  ASSERT_EQ(warm.choices[0].usage.cached_tokens, 96u);
  const coordinator::EngineStatus before = cluster->engine().GetStatus();

  const GenerateResult score = cluster->Score(prompt);

  const coordinator::EngineStatus after = cluster->engine().GetStatus();
  const GenerateResult expected = forgetting->Score(prompt);
  ASSERT_TRUE(score.status.ok() && expected.status.ok()) << score.status << expected.status;
  EXPECT_EQ(score.scores.size(), 99u);
  EXPECT_EQ(Bits(score.scores), Bits(expected.scores));
  EXPECT_GE(after.tokens_prefilled - before.tokens_prefilled, 99u);
  EXPECT_EQ(after.tokens_cached, before.tokens_cached);
  EXPECT_EQ(after.scheduler.prefix_cache.tokens_found, before.scheduler.prefix_cache.tokens_found);
  const GenerateResult again = cluster->Generate(Greedy(prompt, 8));
  ASSERT_TRUE(again.status.ok()) << again.status;
  ExpectSameChoice(again.choices[0], cold.choices[0]);
  EXPECT_EQ(again.choices[0].usage.cached_tokens, 96u) << "what is kept stays through a score";
}

TEST(PrefixCacheTest, OtherSaltsFindNothing) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Base());
  ASSERT_NE(cluster, nullptr);
  GenerateSpec spec = Greedy(RandomPrompt(100, 4), 8);
  spec.cache_salt = "a";
  const auto cached = [&] {
    const GenerateResult result = cluster->GenerateMany({spec})[0];
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result.choices[0].usage.cached_tokens;
  };
  EXPECT_EQ(cached(), 0u);
  EXPECT_EQ(cached(), 96u);
  spec.cache_salt = "b";
  EXPECT_EQ(cached(), 0u);
  spec.cache_salt.clear();
  EXPECT_EQ(cached(), 0u);
  spec.cache_salt = "a";
  EXPECT_EQ(cached(), 96u);
}

// With slots for little more than what runs, blocks make room, and sequences that were preempted
// find what is left of theirs.
TEST(PrefixCacheTest, BlocksMakeRoomForWhatRuns) {
  LocalClusterOptions options = Base();
  options.memory_nodes = 1;
  options.slots = 800;
  const std::unique_ptr<LocalCluster> cramped = MakeCluster(options);
  options.slots = 4096;
  options.prefix_cache = false;
  const std::unique_ptr<LocalCluster> roomy = MakeCluster(options);
  ASSERT_NE(cramped, nullptr);
  ASSERT_NE(roomy, nullptr);
  const auto found = Converse(*cramped, kConversations);
  const auto expected = Converse(*roomy, kConversations);
  for (size_t turn = 0; turn < found.size(); ++turn) {
    ExpectSame(found[turn], expected[turn]);
  }
  EXPECT_GT(cramped->engine().GetStatus().scheduler.prefix_cache.blocks_dropped, 0u);
}

// What lives on nodes that stay is not computed anew when another node leaves, or comes back.
TEST(PrefixCacheTest, KvOfNodesThatStayOutlivesAnEpoch) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Base());
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Sampled(RandomPrompt(300, i), 200, i));
  }
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  for (GenerateSpec& spec : specs) {
    spec.cache_salt = "again";  // Nothing is found of the first time.
  }
  for (const std::string node : {"m1", "c0"}) {
    SCOPED_TRACE(node);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    for (const auto& request : requests) {
      request->WaitForTokens(20);
    }
    const uint64_t found = cluster->engine().GetStatus().scheduler.prefix_cache.tokens_found;
    cluster->Detach(node);
    if (node == "c0") {
      cluster->Attach(node);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      if (node == "m1") {  // Without its only compute node the cluster ends all requests.
        ASSERT_TRUE(result.status.ok()) << result.status;
        ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
      }
    }
    if (node == "m1") {
      // Half of them lived on m0: all of their tokens but those of a block that was not full.
      EXPECT_GE(cluster->engine().GetStatus().scheduler.prefix_cache.tokens_found - found,
                3u * 304);
      cluster->Attach(node);
    }
    ASSERT_TRUE(cluster->WaitForState("serving").ok());
  }
  // The compute node has come back as another one; memory nodes have what they had. A request whose
  // node has many others by now goes elsewhere.
  const uint64_t found = cluster->engine().GetStatus().scheduler.prefix_cache.tokens_found;
  ExpectSame(cluster->GenerateMany(specs), undisturbed);
  EXPECT_GE(cluster->engine().GetStatus().scheduler.prefix_cache.tokens_found - found, 3u * 288);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// K and V that compute nodes of another kind have made have other bits.
TEST(PrefixCacheTest, KvOfAnotherKindOfComputeNodeIsNotFound) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Base());
  ASSERT_NE(cluster, nullptr);
  const GenerateSpec spec = Greedy(RandomPrompt(100, 4), 8);
  const auto cached = [&] {
    const GenerateResult result = cluster->Generate(spec);
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result.choices[0].usage.cached_tokens;
  };
  const auto come_back = [&](const std::string& kernels) {
    cluster->Detach("c0");
    cluster->SetKernels("c0", kernels);
    cluster->Attach("c0");
    const absl::Status serves = cluster->WaitForState("serving");
    EXPECT_TRUE(serves.ok()) << serves;
  };
  EXPECT_EQ(cached(), 0u);
  come_back("");
  EXPECT_EQ(cached(), 96u);
  come_back("loop B, weights packed");
  EXPECT_EQ(cached(), 0u);
  come_back("loop B, weights as they come");
  EXPECT_EQ(cached(), 96u) << "how weights are held decides on no bit";
  come_back("");
  EXPECT_EQ(cached(), 0u) << "what it made itself was dropped when the other one came";
}

// Where heads are spread, all is there still if the same memory nodes have the same heads as
// before, and nothing if not.
TEST(PrefixCacheTest, KvOfSpreadHeadsOutlivesAnEpochOfTheSameMemoryNodes) {
  LocalClusterOptions options = Base();
  options.partition = Partition::kHead;
  options.compute_nodes = 2;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Sampled(RandomPrompt(300, i), 200, i));
  }
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  const auto found = [&] {
    return cluster->engine().GetStatus().scheduler.prefix_cache.tokens_found;
  };
  for (const std::string node : {"c1", "m1"}) {
    SCOPED_TRACE(node);
    for (GenerateSpec& spec : specs) {
      spec.cache_salt = node;  // Nothing is found of the time before.
    }
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    for (const auto& request : requests) {
      request->WaitForTokens(20);
    }
    const uint64_t before = found();
    cluster->Detach(node);
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      ASSERT_TRUE(result.status.ok()) << result.status;
      ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
    }
    if (node == "c1") {
      EXPECT_GE(found() - before, 6u * 304) << "all but a block that was not full, of each";
    } else {
      EXPECT_EQ(found(), before);
    }
    cluster->Attach(node);
    ASSERT_TRUE(cluster->WaitForState("serving").ok());
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// A memory node comes, and all sequences live on the one that stays: in a new epoch each computes
// the one token that was to come, with the same bits.
class SurvivorsTest : public ::testing::TestWithParam<size_t> {};

bool SequencesAreWhole(const LocalClusterOptions& options) {
  return Keeps(options) && options.partition == Partition::kRequest && !options.local;
}

TEST_P(SurvivorsTest, NothingOfThemIsComputedAgain) {
  const ClusterMode mode = ClusterModes()[GetParam()];
  LocalClusterOptions options = Base();
  mode.apply(options);
  if (!SequencesAreWhole(options)) {
    GTEST_SKIP() << mode.name << " keeps other things";
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 4; ++i) {
    const std::vector<TokenId> prompt = RandomPrompt(200 + 5 * i, i);
    specs.push_back(i % 2 == 0 ? Greedy(prompt, 150) : Sampled(prompt, 150, i));
  }
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  for (GenerateSpec& spec : specs) {
    spec.cache_salt = "again";  // Nothing is found of the first time.
  }
  cluster->Detach("m1");
  ASSERT_TRUE(cluster->WaitForState("serving; without m1").ok());
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  for (const auto& request : requests) {
    request->WaitForTokens(20);
  }
  const coordinator::EngineStatus before = cluster->engine().GetStatus();
  EXPECT_EQ(before.scheduler.running, specs.size()) << "they ended too early to tell anything";
  cluster->Attach("m1");
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult result = requests[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
  }
  const coordinator::EngineStatus after = cluster->engine().GetStatus();
  EXPECT_GT(after.epoch, before.epoch);
  EXPECT_LE(after.tokens_prefilled - before.tokens_prefilled, specs.size());
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

INSTANTIATE_TEST_SUITE_P(Modes, SurvivorsTest, ::testing::Range(size_t{0}, ClusterModes().size()),
                         [](const auto& tested) { return ClusterModes()[tested.param].name; });

// Who attends to cut sequences, and what comes for it.
const std::vector<ClusterMode>& CutModes() {
  static const std::vector<ClusterMode> modes = {
      {"attend_remote", [](LocalClusterOptions&) {}},
      {"int8", [](LocalClusterOptions& options) { options.int8 = true; }},
      {"fetch_heads", [](LocalClusterOptions& options) { options.fetch_bytes = 2 << 20; }},
      {"fetch_heads_with_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 256 << 10;
       }},
      {"fetch_recompute",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.recompute_percent = 60;
         options.resident_bytes = 4 << 20;
       }},
      {"fetch_hybrid", [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.activation_percent = 60;
         options.resident_bytes = 4 << 20;
       }}};
  return modes;
}

// Sequences of three spans each, over three memory nodes, in so many lanes, in one of these modes.
class CutSequencesTest : public ::testing::TestWithParam<std::tuple<uint32_t, size_t>> {
 protected:
  void SetUp() override { Make(/*keeps=*/true); }

  void Make(bool keeps) {
    LocalClusterOptions options = Base();
    options.partition = Partition::kTokenRange;
    options.memory_nodes = 3;
    const auto& [lanes, mode] = GetParam();
    options.lanes = lanes;
    CutModes()[mode].apply(options);
    options.prefix_cache = keeps;
    // The open block of each sequence in INT8 is computed again, too.
    open_ = options.int8 ? kInt8BlockTokens - 1 : 0;
    specs_.clear();
    cluster_ = MakeCluster(options);
    ASSERT_NE(cluster_, nullptr);
    for (uint64_t i = 0; i < 4; ++i) {
      const std::vector<TokenId> prompt = RandomPrompt(520 + 10 * i, i);
      specs_.push_back(i % 2 == 0 ? Greedy(prompt, 200) : Sampled(prompt, 200, i));
    }
    undisturbed_ = cluster_->GenerateMany(specs_);
  }

  uint32_t SlotsHeldOn(const std::string& name) const {
    for (const auto& node : cluster_->engine().GetStatus().nodes) {
      if (node.member.name == name) {
        return node.kv.slots_held;
      }
    }
    return 0;
  }

  // Has all requests run, and members change while they do. Returns how many tokens were computed
  // again.
  template <typename Change>
  uint64_t ComputedAgain(const Change& change) {
    std::vector<std::shared_ptr<LocalRequest>> requests;
    ++times_;
    for (GenerateSpec& spec : specs_) {
      spec.cache_salt = absl::StrCat(times_);  // Nothing is found of the times before.
      requests.push_back(cluster_->Start(spec));
    }
    for (const auto& request : requests) {
      request->WaitForTokens(20);
    }
    const coordinator::EngineStatus before = cluster_->engine().GetStatus();
    EXPECT_EQ(before.scheduler.running, specs_.size()) << "they ended too early to tell anything";
    change();
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      EXPECT_TRUE(result.status.ok()) << result.status;
      ExpectSameChoice(result.choices[0], undisturbed_[i].choices[0]);
    }
    EXPECT_TRUE(cluster_->WaitForNoSlots().ok());
    const coordinator::EngineStatus after = cluster_->engine().GetStatus();
    EXPECT_GT(after.epoch, before.epoch);
    const auto missed = [](const coordinator::EngineStatus& status) {
      const core::PrefixCacheStats& cache = status.scheduler.prefix_cache;
      return cache.tokens_asked - cache.tokens_found;
    };
    missed_ = missed(after) - missed(before);
    epochs_ = after.epoch - before.epoch;
    return after.tokens_prefilled - before.tokens_prefilled;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::vector<GenerateSpec> specs_;
  std::vector<GenerateResult> undisturbed_;
  uint64_t missed_ = 0;  // Tokens of sequences that joined again, and did not find them.
  uint64_t epochs_ = 0;  // How often each of them did.
  uint32_t open_ = 0;    // So many tokens of each are not kept, at most.
  int times_ = 0;
};

TEST_P(CutSequencesTest, OnlyWhatLayOnALostNodeIsComputedAgain) {
  uint32_t lost = 0;
  const uint64_t computed = ComputedAgain([&] {
    lost = SlotsHeldOn("m1");
    cluster_->Detach("m1");
  });
  RecordProperty("lost", static_cast<int>(lost));
  RecordProperty("computed", static_cast<int>(computed));
  EXPECT_LE(computed, missed_);
  EXPECT_LE(missed_, computed + epochs_ * specs_.size()) << "that which is sampled from";
  // Slots of rows that were planned and not done are held, and sequences grow meanwhile.
  ASSERT_GT(lost, 4u * 100);
  EXPECT_GE(computed + 4 * 8, lost);
  EXPECT_LE(computed, lost + 4 * (60 + open_));
  EXPECT_LT(computed, 4u * 520 * 2 / 3 + 4 * open_) << "of more than so many";
}

TEST_P(CutSequencesTest, AllIsComputedAgainWhereNothingIsKept) {
  Make(/*keeps=*/false);
  EXPECT_GE(ComputedAgain([&] { cluster_->Detach("m1"); }), 4u * 520);
  EXPECT_EQ(missed_, 0u) << "nobody looks for anything";
}

// Nothing is lost with a node that joins: the token that is sampled from is the next row's, as if
// nothing had happened, and no other one is missing.
TEST_P(CutSequencesTest, NothingIsComputedAgainWhereANodeJoins) {
  cluster_->Detach("m1");
  ASSERT_TRUE(cluster_->WaitForState("serving; without m1").ok());
  const uint64_t computed = ComputedAgain([&] { cluster_->Attach("m1"); });
  EXPECT_LE(computed, specs_.size() * open_);
  EXPECT_GT(missed_, 0u);
  EXPECT_LE(missed_, specs_.size() * (1 + open_));
}

TEST_P(CutSequencesTest, ANodeThatComesBackEmptyIsFilledAgain) {
  for (const std::string node : {"m2", "m0"}) {
    SCOPED_TRACE(node);
    const uint64_t computed = ComputedAgain([&] {
      cluster_->Detach(node);
      cluster_->Attach(node);
    });
    EXPECT_GT(computed, 4u * 100);
    EXPECT_LT(computed, 4u * 520 * 3 / 4 + epochs_ * 4 * open_) << "of more than so many";
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, CutSequencesTest,
                         ::testing::Combine(::testing::Values(1u, 2u),
                                            ::testing::Range(size_t{0}, CutModes().size())),
                         [](const auto& tested) {
                           return absl::StrCat(CutModes()[std::get<1>(tested.param)].name, "_",
                                               std::get<0>(tested.param), "_lanes");
                         });

// Prompts of several spans over three memory nodes: turns find what earlier ones left, wherever it
// lies, and have the bits that they have where nothing is kept. With slots for little more than
// what runs, blocks make room on each node, and preempted sequences find what is left of theirs.
TEST(CutPrefixCacheTest, LongConversationsGoOnWithTheSameBits) {
  const Conversations conversations = {
      .first_prompts = {260, 300, 420, 530}, .turns = 4, .greedy_tokens = 9, .sampled_tokens = 16};
  LocalClusterOptions options = Base();
  options.sequence_tokens_max = 1024;
  options.prefix_cache = false;
  const std::unique_ptr<LocalCluster> plain = MakeCluster(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<std::vector<GenerateResult>> expected = Converse(*plain, conversations);
  options.prefix_cache = true;
  options.partition = Partition::kTokenRange;
  options.memory_nodes = 3;
  for (const auto& [slots, lanes, replicas, fetch_bytes, resident_bytes] :
       {std::tuple{4096u, 1u, 1u, 0u, 0u},
        {4096u, 2u, 2u, 0u, 0u},
        {512u, 1u, 1u, 0u, 0u},
        {512u, 3u, 1u, 0u, 0u},
        {4096u, 2u, 1u, 2u << 20, 0u},
        {512u, 1u, 1u, 2u << 20, 0u},
        {4096u, 2u, 1u, 2u << 20, 256u << 10},
        {512u, 2u, 1u, 2u << 20, 256u << 10}}) {
    SCOPED_TRACE(absl::StrCat(slots, " slots, ", lanes, " lanes, ", replicas, " replicas, ",
                              fetch_bytes, " bytes of windows, ", resident_bytes, " that stay"));
    options.slots = slots;
    options.lanes = lanes;
    options.compute_nodes = replicas;
    options.fetch_bytes = fetch_bytes;
    options.resident_bytes = resident_bytes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const std::vector<std::vector<GenerateResult>> found = Converse(*cluster, conversations);
    uint64_t cached = 0;
    for (size_t turn = 0; turn < found.size(); ++turn) {
      ExpectSame(found[turn], expected[turn]);
      for (const GenerateResult& result : found[turn]) {
        cached += result.choices[0].usage.cached_tokens;
      }
    }
    const core::PrefixCacheStats stats = cluster->engine().GetStatus().scheduler.prefix_cache;
    if (slots > 512) {
      EXPECT_GT(cached, 1500u);
    } else {
      EXPECT_GT(stats.blocks_dropped, 0u);
    }
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

// Choices of one request share a prefix that lies on several nodes.
TEST(CutPrefixCacheTest, ChoicesShareAPrefixOfSeveralSpans) {
  LocalClusterOptions options = Base();
  options.partition = Partition::kTokenRange;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  GenerateSpec spec = Sampled(RandomPrompt(300, 3), 20, 5);
  spec.choices = 3;
  const GenerateResult first = cluster->GenerateMany({spec})[0];
  const GenerateResult again = cluster->GenerateMany({spec})[0];
  ASSERT_TRUE(first.status.ok() && again.status.ok()) << again.status;
  for (size_t i = 0; i < 3; ++i) {
    ExpectSameChoice(again.choices[i], first.choices[i]);
    EXPECT_EQ(first.choices[i].usage.cached_tokens, 0u);
    EXPECT_EQ(again.choices[i].usage.cached_tokens, 288u);
  }
}

}  // namespace
}  // namespace lamina::test_support
