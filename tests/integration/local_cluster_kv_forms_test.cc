// SPDX-License-Identifier: Apache-2.0
//
// Clusters that keep K and V in two forms, of which a request chooses one: it has the bits that a
// cluster of its form alone gives it, whoever else runs.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::HasSubstr;

LocalClusterOptions Base() {
  return {.model = SmallModel(),
          .kv_forms = {KvForm::kBF16, KvForm::kInt8},
          .sequence_tokens_max = 768,
          .threads = 2,
          .prefix_cache = false};
}

// One node of each kind, a prompt in one chunk.
LocalClusterOptions Alone(KvForm form) {
  LocalClusterOptions options = Base();
  options.kv_forms = {};
  options.int8 = form == KvForm::kInt8;
  options.chunk_tokens = 768;
  return options;
}

// Around the borders of blocks of 64 and 256.
std::vector<GenerateSpec> Requests() {
  std::vector<GenerateSpec> specs;
  for (const uint32_t tokens : {1u, 62u, 64u, 65u, 100u, 127u, 200u, 257u, 330u}) {
    const uint64_t seed = tokens;
    specs.push_back(tokens % 2 == 0 ? Greedy(RandomPrompt(tokens, seed), 70)
                                    : Sampled(RandomPrompt(tokens, seed), 70, seed));
  }
  return specs;
}

// Each of these asks for bf16, and again for int8.
std::vector<GenerateSpec> ByBoth(const std::vector<GenerateSpec>& specs) {
  std::vector<GenerateSpec> all;
  for (const GenerateSpec& spec : specs) {
    for (const std::string form : {"bf16", "int8"}) {
      all.push_back(spec);
      all.back().kv = form;
    }
  }
  return all;
}

// What a cluster of each form alone answers to ByBoth().
std::vector<GenerateResult> Expected(const std::vector<GenerateSpec>& specs) {
  const std::vector<GenerateResult> bf16 = MakeCluster(Alone(KvForm::kBF16))->GenerateMany(specs);
  const std::vector<GenerateResult> int8 = MakeCluster(Alone(KvForm::kInt8))->GenerateMany(specs);
  std::vector<GenerateResult> all;
  for (size_t i = 0; i < specs.size(); ++i) {
    all.push_back(bf16[i]);
    all.push_back(int8[i]);
  }
  return all;
}

void ExpectSameChoices(const std::vector<GenerateResult>& found,
                       const std::vector<GenerateResult>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(expected[i].status.ok()) << expected[i].status;
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ASSERT_EQ(found[i].choices.size(), expected[i].choices.size());
    for (size_t c = 0; c < found[i].choices.size(); ++c) {
      ExpectSameChoice(found[i].choices[c], expected[i].choices[c]);
    }
  }
}

struct Mode {
  std::string name;
  void (*apply)(LocalClusterOptions& options);
};

const std::vector<Mode>& Modes() {
  static const std::vector<Mode> modes = {
      {"one_lane", [](LocalClusterOptions&) {}},
      {"lanes", [](LocalClusterOptions& options) { options.lanes = 3; }},
      {"request",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.lanes = 2;
       }},
      {"head",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.lanes = 2;
       }},
      {"small_chunks",
       [](LocalClusterOptions& options) {
         options.chunk_tokens = 24;
         options.lanes = 2;
       }},
      {"queries_first",
       [](LocalClusterOptions& options) {
         options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
         options.chunk_tokens = 50;
         options.lanes = 2;
       }},
      {"heads_queries_first",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.partition = Partition::kHead;
         options.sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways};
         options.lanes = 2;
       }},
      {"prompt_rows",
       [](LocalClusterOptions& options) {
         options.scratch_tokens = 50;
         options.chunk_tokens = 100;
         options.lanes = 2;
       }},
      {"rotational", [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.lanes = 3;
       }}};
  return modes;
}

class KvFormsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(KvFormsTest, RequestsOfBothFormsHaveTheBitsOfEachAlone) {
  static const std::vector<GenerateResult> expected = Expected(Requests());
  for (const bool cache : {false, true}) {
    LocalClusterOptions options = Base();
    Modes()[GetParam()].apply(options);
    options.prefix_cache = cache;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(ByBoth(Requests())), expected);
    if (cache) {  // Each finds what those of its form have left.
      ExpectSame(cluster->GenerateMany(ByBoth(Requests())), expected);
    }
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nothing went wrong on the way.
    EXPECT_TRUE(cache || cluster->WaitForNoSlots().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, KvFormsTest, ::testing::Range(size_t{0}, Modes().size()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

TEST(KvFormsClusterTest, PreemptedIsAsUndisturbed) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 10; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(1 + 15 * i, 100 + i);
    specs.push_back(i % 2 == 0 ? Greedy(std::move(prompt), 90) : Sampled(std::move(prompt), 90, i));
  }
  const std::vector<GenerateResult> expected = Expected(specs);
  for (const bool cache : {false, true}) {
    for (const Partition partition : {Partition::kRequest, Partition::kHead}) {
      SCOPED_TRACE(absl::StrCat("partition ", static_cast<int>(partition), " cache ", cache));
      LocalClusterOptions options = Base();
      options.sequence_tokens_max = 300;
      options.partition = partition;
      options.memory_nodes = partition == Partition::kRequest ? 1 : 2;
      options.slots = 320 / options.memory_nodes;
      options.lanes = 2;
      options.chunk_tokens = 32;
      options.running_max = 12;
      options.prefix_cache = cache;
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
      ASSERT_NE(cluster, nullptr);
      ExpectSame(cluster->GenerateMany(ByBoth(specs)), expected);
      EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
      EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    }
  }
}

TEST(KvFormsClusterTest, PrefixesAreFoundByRequestsOfTheirForm) {
  LocalClusterOptions options = Base();
  options.prefix_cache = true;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  // A request finds whole blocks before its last token: of 16 tokens, and with INT8 of 64.
  const std::vector<GenerateSpec> specs = ByBoth({Greedy(RandomPrompt(220, 7), 30)});
  for (const bool again : {false, true}) {
    for (const GenerateSpec& spec : specs) {
      const GenerateResult result = cluster->Generate(spec);
      ASSERT_TRUE(result.status.ok()) << result.status;
      const uint32_t kept = spec.kv == KvFormName(KvForm::kInt8) ? 192 : 208;
      EXPECT_EQ(result.choices[0].usage.cached_tokens, again ? kept : 0) << spec.kv;
    }
  }
}

TEST(KvFormsClusterTest, ChoicesAndBeamsHaveTheBitsOfEachFormAlone) {
  std::vector<GenerateSpec> specs;
  for (const uint32_t tokens : {1u, 63u, 64u, 150u, 250u}) {
    GenerateSpec choices = Sampled(RandomPrompt(tokens, tokens), 40, 5);
    choices.choices = 3;
    specs.push_back(choices);
    GenerateSpec beams = Greedy(RandomPrompt(tokens, tokens), 10);
    beams.beams.width = 2 + tokens % 3;
    beams.choices = 2;
    specs.push_back(beams);
  }
  const std::vector<GenerateResult> expected = Expected(specs);
  for (const bool cache : {false, true}) {
    LocalClusterOptions options = Base();
    options.lanes = 2;
    options.prefix_cache = cache;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSameChoices(cluster->GenerateMany(ByBoth(specs)), expected);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

TEST(KvFormsClusterTest, LostNodesChangeNoBits) {
  LocalClusterOptions options = Base();
  options.memory_nodes = 2;
  options.lanes = 2;
  options.prefix_cache = true;
  std::vector<GenerateSpec> specs;
  for (uint64_t i = 0; i < 4; ++i) {
    specs.push_back(Sampled(RandomPrompt(170 + 20 * i, i), 120, i));
  }
  const std::vector<GenerateResult> expected = Expected(specs);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : ByBoth(specs)) {
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

TEST(KvFormsClusterTest, WhoNamesNoneGetsTheFirstAndAnswersOfInt8SaySo) {
  const GenerateSpec plain = Greedy(RandomPrompt(150, 3), 20);
  const std::vector<GenerateResult> expected = Expected({plain});
  for (const bool int8_first : {false, true}) {
    LocalClusterOptions options = Base();
    if (int8_first) {
      options.kv_forms = {KvForm::kInt8, KvForm::kBF16};
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(cluster->engine().lossy(), int8_first ? "kv_int8" : "");
    for (const std::string kv : {"", "bf16", "int8"}) {
      GenerateSpec spec = plain;
      spec.kv = kv;
      const bool int8 = kv == "int8" || (kv.empty() && int8_first);
      const GenerateResult found = cluster->Generate(spec);
      ExpectSame({found}, {expected[int8 ? 1 : 0]});
      EXPECT_EQ(found.choices[0].usage.lossy, int8 ? "kv_int8" : "") << kv;
    }
  }
  EXPECT_NE(Bits(expected[0].choices[0].logprobs), Bits(expected[1].choices[0].logprobs));
}

TEST(KvFormsClusterTest, AFormThatIsNotPreparedIsRefusedByNameAndTheClusterServesOn) {
  const GenerateSpec plain = Greedy(RandomPrompt(10, 1), 5);
  for (const KvForm form : {KvForm::kBF16, KvForm::kInt8}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Alone(form));
    ASSERT_NE(cluster, nullptr);
    for (const std::string kv : {"bf16", "int8", "fp4"}) {
      GenerateSpec spec = plain;
      spec.kv = kv;
      const GenerateResult result = cluster->Generate(spec);
      if (kv == KvFormName(form)) {
        EXPECT_TRUE(result.status.ok()) << result.status;
        continue;
      }
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(result.status.message(),
                absl::StrCat("kv: '", kv, "' is not a form that this cluster prepares for policy ",
                             "attend_remote, which are ", KvFormName(form)));
    }
    EXPECT_TRUE(cluster->Generate(plain).status.ok());
  }
  const std::unique_ptr<LocalCluster> both = MakeCluster(Base());
  GenerateSpec spec = plain;
  spec.kv = std::string(100'000, 'x');
  const absl::Status refused = both->Generate(spec).status;
  EXPECT_THAT(refused.ToString(), HasSubstr("which are bf16, int8"));
  EXPECT_LT(refused.message().size(), 300u) << "a part of it is shown";
  spec = plain;
  spec.policy = "local";
  EXPECT_EQ(both->Generate(spec).status.message(),
            "policy: 'local' is not one that this cluster prepares, which are attend_remote");
  EXPECT_TRUE(both->Generate(plain).status.ok());
}

TEST(KvFormsClusterTest, StatusTellsSlotsAndSequencesOfEachForm) {
  for (const uint32_t percent : {50u, 20u}) {
    LocalClusterOptions options = Base();
    options.kv_int8_percent = percent;
    options.lanes = 2;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (GenerateSpec spec : {Greedy(RandomPrompt(40, 1), 300), Greedy(RandomPrompt(50, 1), 300),
                              Greedy(RandomPrompt(60, 1), 300)}) {
      spec.kv = requests.empty() ? "bf16" : "int8";
      requests.push_back(cluster->Start(spec));
    }
    for (const auto& request : requests) {
      request->WaitForTokens(2);
    }
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    ASSERT_EQ(status.policies.size(), 2u);
    EXPECT_EQ(status.policies[0].kv, KvForm::kBF16);
    EXPECT_EQ(status.policies[0].running, 1u);
    EXPECT_EQ(status.policies[1].kv, KvForm::kInt8);
    EXPECT_EQ(status.policies[1].running, 2u);
    for (const coordinator::NodeReport& node : status.nodes) {
      if (!node.member.is_memory) {
        EXPECT_TRUE(node.forms.empty());
        continue;
      }
      ASSERT_EQ(node.forms.size(), 2u);
      const core::KvPoolStats& bf16 = node.forms[0].kv;
      const core::KvPoolStats& int8 = node.forms[1].kv;
      EXPECT_EQ(node.forms[0].form, KvForm::kBF16);
      EXPECT_EQ(node.forms[1].form, KvForm::kInt8);
      // 2 layers of 2 heads of 32: 512 bytes of bf16, and 288 of INT8.
      const uint64_t slots = options.slots;
      const uint64_t bytes = bf16.slots_total * uint64_t{512} + int8.slots_total * uint64_t{288};
      EXPECT_EQ(std::min(bf16.slots_total, int8.slots_total), slots);
      EXPECT_NEAR(static_cast<double>(int8.slots_total) * 288 / static_cast<double>(bytes),
                  percent / 100.0, 0.001);
      EXPECT_GE(bf16.slots_held, 40u);
      EXPECT_GE(int8.slots_held, 110u);
      EXPECT_EQ(node.kv.slots_total, bf16.slots_total + int8.slots_total);
      EXPECT_EQ(node.kv.slots_held, bf16.slots_held + int8.slots_held);
    }
    for (const auto& request : requests) {
      EXPECT_TRUE(request->Wait().status.ok());
    }
  }
}

}  // namespace
}  // namespace lamina::test_support
