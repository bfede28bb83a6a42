// SPDX-License-Identifier: Apache-2.0
//
// Epochs that prepare several policies: each request has the bits that a cluster of its policy
// alone gives it, whoever runs beside it.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/run_variations.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::HasSubstr;

constexpr char kRemote[] = "attend_remote";
constexpr char kFetch[] = "fetch_heads";
constexpr char kSparse[] = "fetch_sparse";
constexpr char kRecompute[] = "fetch_recompute";
constexpr char kHybrid[] = "fetch_hybrid";

LocalClusterOptions Alone() {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model, .slots = 8192, .sequence_tokens_max = 512};
}

LocalClusterOptions Both(std::vector<std::string> policies = {kRemote, kFetch}) {
  LocalClusterOptions options = Alone();
  options.fetch_bytes = 8 << 20;
  options.policies = std::move(policies);
  options.lanes = 2;
  return options;
}

// Each of these asks for the one policy, and again for the other.
std::vector<GenerateSpec> ByBoth(const std::vector<GenerateSpec>& specs,
                                 const std::vector<std::string>& policies = {kRemote, kFetch}) {
  std::vector<GenerateSpec> all;
  for (const GenerateSpec& spec : specs) {
    for (const std::string& policy : policies) {
      all.push_back(spec);
      all.back().policy = policy;
    }
  }
  return all;
}

std::vector<GenerateResult> EachTimes(size_t times, const std::vector<GenerateResult>& results) {
  std::vector<GenerateResult> all;
  for (const GenerateResult& result : results) {
    all.insert(all.end(), times, result);
  }
  return all;
}

std::vector<GenerateResult> Twice(const std::vector<GenerateResult>& results) {
  return EachTimes(2, results);
}

// One of several policies makes K and V of many tokens again.
const std::vector<std::string> kThree = {kRemote, kRecompute, kFetch};

LocalClusterOptions WithRecompute(const std::vector<std::string>& policies = kThree,
                                  RecomputeFrom from = RecomputeFrom::kActivations) {
  LocalClusterOptions options = Both(policies);
  options.recompute_percent = 60;
  options.recompute = from;
  return options;
}

LocalClusterOptions WithHybrid(const std::vector<std::string>& policies, uint32_t percent = 60) {
  LocalClusterOptions options = Both(policies);
  options.activation_percent = percent;
  return options;
}

// One of several policies makes K and V again, of so many per cent of the tokens.
struct Remaking {
  std::string name;
  std::string policy;
  RecomputeFrom from = RecomputeFrom::kActivations;
};

class RemakingPoliciesTest : public ::testing::TestWithParam<Remaking> {
 protected:
  static std::vector<std::string> Three() { return {kRemote, GetParam().policy, kFetch}; }
  static LocalClusterOptions Options(const std::vector<std::string>& policies = Three(),
                                     uint32_t percent = 60) {
    if (GetParam().policy == kHybrid) {
      return WithHybrid(policies, percent);
    }
    LocalClusterOptions options = WithRecompute(policies, GetParam().from);
    options.recompute_percent = percent;
    return options;
  }
};

// Sequences are cut with none but these next to other policies.
class RecomputePoliciesTest : public RemakingPoliciesTest {};

uint64_t Recomputed(LocalCluster& cluster) {
  return cluster.handler("c0").Counters().recomputed_tokens;
}

TEST(PoliciesClusterTest, RequestsOfBothPoliciesHaveTheBitsOfEachAlone) {
  const std::vector<GenerateResult> expected = MakeCluster(Alone())->GenerateMany(MixedLengths(30));
  for (uint32_t variation = 0; variation < 8; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    LocalClusterOptions options = VariedWithHeads(Both(), variation);
    options.sub_batches = {
        .chunks = 1 + variation / 2 % 2,
        .query_first = variation % 2 == 0 ? QueryFirst::kAlways : QueryFirst::kNever};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(ByBoth(MixedLengths(30))), Twice(expected));
    // Some rows attended at the memory node, some here.
    EXPECT_GT(cluster->handler("m0").Counters().kv_bytes_read, 0u);
    EXPECT_GT(cluster->handler("c0").Counters().kv_bytes_read, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
  }
}

// Partials of a span are made where it lies, or where it comes to.
TEST(PoliciesClusterTest, RequestsOfBothPoliciesMayBeCut) {
  const std::vector<GenerateResult> expected = MakeCluster(Alone())->GenerateMany(MixedLengths(30));
  for (const uint32_t memory_nodes : {2u, 3u}) {
    SCOPED_TRACE(absl::StrCat(memory_nodes, " memory nodes"));
    LocalClusterOptions options = Both();
    options.partition = Partition::kTokenRange;
    options.memory_nodes = memory_nodes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(ByBoth(MixedLengths(30))), Twice(expected));
    EXPECT_GT(cluster->handler("m0").Counters().kv_bytes_read, 0u);
    EXPECT_GT(cluster->handler("c0").Counters().kv_bytes_read, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
  }
}

// Tokens that the others have stored are bare, wherever the spans lie that have them. What stays is
// of requests of fetch_heads alone.
TEST_P(RecomputePoliciesTest, SpansAreSharedAndMadeAgain) {
  const std::vector<GenerateSpec> specs = MixedLengths(30);
  const std::vector<GenerateResult> expected = MakeCluster(Alone())->GenerateMany(specs);
  for (const uint64_t resident_bytes : {0u, 256u << 10}) {
    SCOPED_TRACE(absl::StrCat(resident_bytes, " bytes that stay"));
    LocalClusterOptions options = Options();
    options.partition = Partition::kTokenRange;
    options.memory_nodes = 3;
    options.lanes = 3;
    options.resident_bytes = resident_bytes;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const uint64_t before = Recomputed(*cluster);
    for (int turn = 0; turn < 2; ++turn) {
      ExpectSame(cluster->GenerateMany(ByBoth(specs, kThree)), EachTimes(3, expected));
    }
    EXPECT_GT(Recomputed(*cluster), before);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
  }
}

TEST(PoliciesClusterTest, WhoNamesNoneGetsTheFirst) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Both({kFetch, kRemote}));
  ASSERT_NE(cluster, nullptr);
  const auto request = cluster->Start(Greedy(RandomPrompt(40, 1), 300));
  request->WaitForTokens(2);
  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.policy, kFetch);
  ASSERT_EQ(status.policies.size(), 2u);
  EXPECT_EQ(status.policies[0].name, kFetch);
  EXPECT_EQ(status.policies[0].running, 1u);
  EXPECT_EQ(status.policies[1].name, kRemote);
  EXPECT_EQ(status.policies[1].running, 0u);
  EXPECT_TRUE(request->Wait().status.ok());
}

TEST(PoliciesClusterTest, APolicyThatIsNotPreparedIsRefusedByNameAndTheClusterServesOn) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Both());
  ASSERT_NE(cluster, nullptr);
  GenerateSpec spec = Greedy(RandomPrompt(10, 1), 5);
  for (const std::string policy : {kSparse, "local", "no such"}) {
    spec.policy = policy;
    const GenerateResult refused = cluster->Generate(spec);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status.message(),
              absl::StrCat("policy: '", policy,
                           "' is not one that this cluster prepares, which are attend_remote, "
                           "fetch_heads"));
  }
  spec.policy = std::string(100'000, 'x');
  EXPECT_LT(cluster->Generate(spec).status.message().size(), 300u) << "a part of it is shown";
  spec.policy = kFetch;
  EXPECT_TRUE(cluster->Generate(spec).status.ok());

  const std::unique_ptr<LocalCluster> alone = MakeCluster(Alone());
  EXPECT_THAT(alone->Generate(spec).status.ToString(), HasSubstr("which are attend_remote"));
  spec.policy = kRemote;
  EXPECT_TRUE(alone->Generate(spec).status.ok());
}

// K and V that the one has made the other finds.
TEST(PoliciesClusterTest, ExactPoliciesSharePrefixes) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const GenerateResult expected = MakeCluster(Alone())->Generate(spec);
  for (const std::vector<std::string>& order :
       {std::vector<std::string>{kRemote, kFetch}, std::vector<std::string>{kFetch, kRemote}}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Both());
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateSpec> specs = ByBoth({spec}, order);
    ExpectSame({cluster->Generate(specs[0])}, {expected});
    const GenerateResult second = cluster->Generate(specs[1]);
    ExpectSame({second}, {expected});
    EXPECT_EQ(second.choices[0].usage.cached_tokens, 192u);
  }
}

TEST(PoliciesClusterTest, PreemptedRequestsGoOnByTheirPolicyWithTheSameBits) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  LocalClusterOptions options = Alone();
  const std::vector<GenerateResult> expected = MakeCluster(options)->GenerateMany(specs);
  options = Both();
  options.slots = options.sequence_tokens_max;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(ByBoth(specs)), Twice(expected));
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Node m0 leaves when the first `begun` of the requests have tokens: their answers are as they
// were.
void ExpectALostMemoryNodeCostsNobodyAToken(LocalCluster& cluster,
                                            const std::vector<GenerateSpec>& specs, size_t begun) {
  const std::vector<GenerateResult> undisturbed = cluster.GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster.Start(spec));
  }
  for (size_t i = 0; i < begun; ++i) {
    requests[i]->WaitForTokens(2);
  }
  cluster.Detach("m0");
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSame({requests[i]->Wait()}, {undisturbed[i]});
  }
  ASSERT_TRUE(cluster.WaitForState("serving; without m0").ok());
  cluster.Attach("m0");
  ASSERT_TRUE(cluster.WaitForState("serving").ok());
  ExpectSame(cluster.GenerateMany(specs), undisturbed);
  EXPECT_TRUE(cluster.WaitForNoSlots().ok());
}

TEST(PoliciesClusterTest, RequestsOfAMemoryNodeThatLeavesGoOnByTheirPolicy) {
  LocalClusterOptions options = Both();
  options.memory_nodes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = ByBoth(LongRequests(4));
  ExpectALostMemoryNodeCostsNobodyAToken(*cluster, specs, specs.size());
}

// With one lane the policies take turns, and everybody is served.
TEST(PoliciesClusterTest, InOneLaneEveryRequestIsServed) {
  LocalClusterOptions options = Both();
  options.lanes = 1;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  for (const GenerateResult& result : cluster->GenerateMany(ByBoth(LongRequests(8)))) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(PoliciesClusterTest, WithInt8EachHasTheBitsOfItsPolicyAlone) {
  LocalClusterOptions alone = Alone();
  alone.int8 = true;
  const std::vector<GenerateResult> expected = MakeCluster(alone)->GenerateMany(MixedLengths(30));
  LocalClusterOptions options = Both();
  options.int8 = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateResult> found = cluster->GenerateMany(ByBoth(MixedLengths(30)));
  ExpectSame(found, Twice(expected));
  EXPECT_EQ(found[0].choices[0].usage.lossy, "kv_int8");
  EXPECT_EQ(found[1].choices[0].usage.lossy, "kv_int8");
}

// Beside lossy requests exact ones stay exact, and only the lossy ones are said to be.
TEST(PoliciesClusterTest, ALossyPolicyIsTheirsAloneWhoAskForIt) {
  const std::vector<GenerateSpec> specs = MixedLengths(30);
  const std::vector<GenerateResult> exact = MakeCluster(Alone())->GenerateMany(specs);
  LocalClusterOptions sparse = Alone();
  sparse.fetch_bytes = 8 << 20;
  sparse.sparse_ratio = 0.3;
  const std::vector<GenerateResult> lossy = MakeCluster(sparse)->GenerateMany(specs);

  const std::vector<std::string> policies = {kRemote, kSparse, kFetch};
  for (const uint32_t lanes : {1u, 2u, 3u, 4u}) {
    LocalClusterOptions options = Both(policies);
    options.sparse_ratio = 0.3;
    options.lanes = lanes;
    options.memory_nodes = 1 + lanes % 2;
    options.partition = lanes == 3 ? Partition::kHead : Partition::kRequest;
    options.transports = {lanes % 2 == 0 ? "ucx://" : "shm://"};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(cluster->engine().lossy(), "") << "nobody gets it who does not ask";
    // Twice, so that what the first ones have stored may be found.
    for (int round = 0; round < 2; ++round) {
      const std::vector<GenerateResult> found = cluster->GenerateMany(ByBoth(specs, policies));
      for (size_t i = 0; i < specs.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("lanes ", lanes, " round ", round, " prompt ", i));
        ExpectSame({found[3 * i]}, {exact[i]});
        ExpectSame({found[3 * i + 1]}, {lossy[i]});
        ExpectSame({found[3 * i + 2]}, {exact[i]});
        EXPECT_EQ(found[3 * i].choices[0].usage.lossy, "");
        EXPECT_EQ(found[3 * i + 1].choices[0].usage.lossy, "fetch_sparse-0.3-window_sums");
        EXPECT_EQ(found[3 * i + 1].choices[0].usage.cached_tokens, 0u);
        EXPECT_EQ(found[3 * i + 2].choices[0].usage.lossy, "");
      }
    }
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

// Tokens of one policy bring their activations, where these are kept; those of the others do not.
TEST_P(RemakingPoliciesTest, EachHasTheBitsOfAttendRemote) {
  const std::vector<GenerateResult> expected = MakeCluster(Alone())->GenerateMany(MixedLengths(30));
  for (uint32_t variation = 0; variation < 6; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    LocalClusterOptions options = Options(Three(), variation < 4 ? 30 + 20 * variation : 100);
    options.lanes = 1 + variation % 3;
    options.chunk_tokens = variation % 2 == 0 ? 16 : 512;
    options.scratch_tokens = variation < 3 ? 8192 : 64;
    options.threads = 1 + variation % 2;
    options.memory_nodes = 1 + variation / 2 % 2;
    options.partition = variation == 3 ? Partition::kHead : Partition::kRequest;
    options.transports = {variation % 3 == 0 ? "ucx://" : "shm://"};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const uint64_t before = Recomputed(*cluster);
    for (int round = 0; round < 2; ++round) {  // The second one finds what the first one stored.
      ExpectSame(cluster->GenerateMany(ByBoth(MixedLengths(30), Three())), EachTimes(3, expected));
    }
    EXPECT_GT(Recomputed(*cluster), before);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
  }
}

TEST_P(RemakingPoliciesTest, OnlyRequestsOfThatPolicyAreRecomputed) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  ASSERT_NE(cluster, nullptr);
  const uint64_t before = Recomputed(*cluster);
  GenerateSpec spec = Greedy(RandomPrompt(100, 3), 20);
  for (const std::string policy : {kRemote, kFetch}) {
    spec.policy = policy;
    EXPECT_TRUE(cluster->Generate(spec).status.ok());
    EXPECT_EQ(Recomputed(*cluster), before) << policy;
  }
  spec.policy = GetParam().policy;
  EXPECT_TRUE(cluster->Generate(spec).status.ok());
  EXPECT_GT(Recomputed(*cluster), before);
}

// Bare tokens that others stored come as K and V; whoever finds tokens with activations uses these.
TEST(PoliciesClusterTest, RecomputationFindsPrefixesOfOthersAndItsOwn) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const GenerateResult expected = MakeCluster(Alone())->Generate(spec);
  std::map<std::string, uint64_t> recomputed;  // By who stored the prompt.
  for (const std::string& first : kThree) {
    LocalClusterOptions options = WithRecompute();
    options.recompute_percent = 100;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateSpec> specs = ByBoth({spec}, {first, kRecompute, kRemote});
    ExpectSame({cluster->Generate(specs[0])}, {expected});
    const uint64_t before = Recomputed(*cluster);
    for (const GenerateSpec& second : {specs[1], specs[2]}) {
      const GenerateResult found = cluster->Generate(second);
      ExpectSame({found}, {expected});
      EXPECT_EQ(found.choices[0].usage.cached_tokens, 192u) << first;
    }
    recomputed[first] = Recomputed(*cluster) - before;
  }
  EXPECT_GT(recomputed[kRecompute], 192u);
  // Behind 192 bare tokens a few tiles have activations.
  EXPECT_LT(recomputed[kRemote], recomputed[kRecompute] / 2);
  EXPECT_EQ(recomputed[kRemote], recomputed[kFetch]);
}

TEST_P(RemakingPoliciesTest, PreemptedRequestsHaveTheSameBits) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> expected = MakeCluster(Alone())->GenerateMany(specs);
  LocalClusterOptions options = Options();
  options.lanes = 3;
  options.slots = options.sequence_tokens_max;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(ByBoth(specs, Three())), EachTimes(3, expected));
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST_P(RemakingPoliciesTest, ALostMemoryNodeCostsNobodyAToken) {
  LocalClusterOptions options = Options();
  options.memory_nodes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectALostMemoryNodeCostsNobodyAToken(*cluster, ByBoth(LongRequests(3), Three()), 1);
}

// All that may be in a list, one of them lossy.
TEST_P(RemakingPoliciesTest, FourPoliciesAreServedInOneEpoch) {
  const std::vector<GenerateSpec> specs = MixedLengths(30);
  const std::vector<GenerateResult> exact = MakeCluster(Alone())->GenerateMany(specs);
  LocalClusterOptions sparse = Alone();
  sparse.fetch_bytes = 8 << 20;
  sparse.sparse_ratio = 0.3;
  const std::vector<GenerateResult> lossy = MakeCluster(sparse)->GenerateMany(specs);

  const std::vector<std::string> four = {GetParam().policy, kSparse, kRemote, kFetch};
  LocalClusterOptions options = Options(four);
  options.sparse_ratio = 0.3;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateResult> found = cluster->GenerateMany(ByBoth(specs, four));
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("prompt ", i / four.size(), " policy ", four[i % four.size()]));
    ExpectSame({found[i]}, {(four[i % four.size()] == kSparse ? lossy : exact)[i / four.size()]});
  }
}

// Tokens made from their numbers need no activations: whoever stored a prefix, as many are made.
TEST(PoliciesClusterTest, TokensOfFoundPrefixesAreMadeWhoeverStoredThem) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const GenerateResult expected = MakeCluster(Alone())->Generate(spec);
  std::map<std::string, uint64_t> made;  // By who stored the prompt.
  for (const std::string& first : kThree) {
    const std::unique_ptr<LocalCluster> cluster =
        MakeCluster(WithRecompute(kThree, RecomputeFrom::kTokens));
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateSpec> specs = ByBoth({spec}, {first, kRecompute});
    ExpectSame({cluster->Generate(specs[0])}, {expected});
    const uint64_t before = Recomputed(*cluster);
    const GenerateResult found = cluster->Generate(specs[1]);
    ExpectSame({found}, {expected});
    EXPECT_EQ(found.choices[0].usage.cached_tokens, 192u) << first;
    made[first] = Recomputed(*cluster) - before;
  }
  EXPECT_GT(made[kRecompute], 0u);
  EXPECT_EQ(made[kRemote], made[kRecompute]);
  EXPECT_EQ(made[kFetch], made[kRecompute]);
}

// With INT8 blocks are made as memory nodes keep them.
TEST(PoliciesClusterTest, Int8BlocksOfOnePolicyAreMadeFromTokenNumbers) {
  LocalClusterOptions alone = Alone();
  alone.int8 = true;
  const std::vector<GenerateResult> expected = MakeCluster(alone)->GenerateMany(MixedLengths(30));
  LocalClusterOptions options = WithRecompute(kThree, RecomputeFrom::kTokens);
  options.int8 = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const uint64_t before = Recomputed(*cluster);
  for (int round = 0; round < 2; ++round) {
    ExpectSame(cluster->GenerateMany(ByBoth(MixedLengths(30), kThree)),
               EachTimes(kThree.size(), expected));
  }
  EXPECT_GT(Recomputed(*cluster), before);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
}

// K and V of the others are in other slots: of those of fetch_hybrid some hold activations.
TEST(PoliciesClusterTest, HybridFindsItsOwnPrefixes) {
  const GenerateSpec spec = Greedy(RandomPrompt(200, 7), 30);
  const GenerateResult expected = MakeCluster(Alone())->Generate(spec);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(WithHybrid({kRemote, kHybrid, kFetch}));
  ASSERT_NE(cluster, nullptr);
  const auto cached = [&](const std::string& policy) {
    const GenerateResult found = cluster->Generate(ByBoth({spec}, {policy})[0]);
    ExpectSame({found}, {expected});
    return found.choices[0].usage.cached_tokens;
  };
  EXPECT_EQ(cached(kRemote), 0u);
  EXPECT_EQ(cached(kFetch), 192u);
  EXPECT_EQ(cached(kHybrid), 0u);
  EXPECT_EQ(cached(kHybrid), 192u);
  EXPECT_EQ(cached(kRemote), 192u);
}

TEST(PoliciesClusterTest, HybridHasSlotsOfItsOwnAndStatusTellsHowMany) {
  LocalClusterOptions options = WithHybrid({kRemote, kHybrid});
  options.hybrid_percent = 75;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  GenerateSpec spec = Greedy(RandomPrompt(40, 1), 300);
  spec.policy = kHybrid;
  const auto request = cluster->Start(spec);
  request->WaitForTokens(2);
  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_THAT(status.partition, HasSubstr("75% of the room is for fetch_hybrid"));
  ASSERT_EQ(status.policies.size(), 2u);
  EXPECT_EQ(status.policies[1].name, kHybrid);
  EXPECT_EQ(status.policies[1].running, 1u);
  EXPECT_THAT(status.scheduler.fetch_share.why,
              HasSubstr("% of tokens held as activations, as configured"));
  for (const coordinator::NodeReport& node : status.nodes) {
    if (!node.member.is_memory) {
      continue;
    }
    ASSERT_EQ(node.forms.size(), 2u);
    EXPECT_EQ(node.forms[0].policy, "others");
    EXPECT_EQ(node.forms[0].kv.slots_held, 0u);
    EXPECT_GE(node.forms[0].kv.slots_total, options.slots);
    EXPECT_EQ(node.forms[1].policy, kHybrid);
    EXPECT_GE(node.forms[1].kv.slots_held, 40u);
    EXPECT_GT(node.forms[1].kv.slots_total, 2 * node.forms[0].kv.slots_total);
  }
  EXPECT_TRUE(request->Wait().status.ok());
}

std::string NameOf(const ::testing::TestParamInfo<Remaking>& tested) { return tested.param.name; }

const Remaking kByActivations = {.name = "Activations", .policy = kRecompute};
const Remaking kByTokens = {.name = "Tokens", .policy = kRecompute, .from = RecomputeFrom::kTokens};

INSTANTIATE_TEST_SUITE_P(By, RecomputePoliciesTest, ::testing::Values(kByActivations, kByTokens),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(By, RemakingPoliciesTest,
                         ::testing::Values(kByActivations, kByTokens,
                                           Remaking{.name = "Hybrid", .policy = kHybrid}),
                         NameOf);

}  // namespace
}  // namespace lamina::test_support
