// SPDX-License-Identifier: Apache-2.0
//
// K and V that went to the spill tier and came back: the same bits as if there had been room,
// however the disk behaves.

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/support/memory_spill_disk.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

// Four times what there are slots for.
LocalClusterOptions Cramped() {
  return {.model = SmallModel(),
          .slots = 300,
          .spill_bytes = 64 << 20,
          .chunk_tokens = 32,
          .sequence_tokens_max = 256,
          .prefix_cache = false};
}

// Spans of 256 tokens. Requests with these more tokens grow into a second one of up to 150, which
// goes to the other node: there are 44 slots behind another sequence's first span.
constexpr uint32_t kMoreTokens = 240;

void CutIntoSpans(LocalClusterOptions& options) {
  options.memory_nodes = 2;
  options.slots = 300;
  options.partition = Partition::kTokenRange;
  options.sequence_tokens_max = 420;
}

LocalClusterOptions Roomy() {
  return {.model = SmallModel(), .sequence_tokens_max = 256, .prefix_cache = false};
}

std::vector<GenerateSpec> Requests(uint32_t more_tokens = 0) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 16; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(1 + 5 * i + more_tokens, 100 + i);
    specs.push_back(i % 2 == 0 ? Greedy(std::move(prompt), 90) : Sampled(std::move(prompt), 90, i));
  }
  return specs;
}

// Shards add up in an order of their own, so that only a cluster of as many has the same bits.
std::vector<GenerateResult> Expected(uint32_t shards = 1, bool int8 = false,
                                     uint32_t more_tokens = 0) {
  LocalClusterOptions options = Roomy();
  options.shards = shards;
  options.compute_nodes = shards;
  options.int8 = int8;
  options.sequence_tokens_max += more_tokens;
  options.slots += 16 * more_tokens;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  return cluster == nullptr ? std::vector<GenerateResult>()
                            : cluster->GenerateMany(Requests(more_tokens));
}

telemetry::SpillCount CountOf(LocalCluster& cluster, const std::string& node = "m0") {
  return cluster.handler(node).Counters().spill;
}

struct SpillMode {
  std::string name;
  void (*apply)(LocalClusterOptions& options);
  bool converses = true;     // Its cached blocks are copied, which conversations always have.
  uint32_t more_tokens = 0;  // In each prompt.
};

const std::vector<SpillMode>& Modes() {
  static const std::vector<SpillMode> modes = {
      {"one_node", [](LocalClusterOptions&) {}},
      {"lanes", [](LocalClusterOptions& options) { options.lanes = 2; }},
      {"two_nodes",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.slots = 260;
       }},
      {"heads",
       [](LocalClusterOptions& options) {
         options.memory_nodes = 2;
         options.slots = 150;
         options.partition = Partition::kHead;
       }},
      {"replicas",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.lanes = 3;
       }},
      {"stages",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.stages = 2;
       }},
      {"shards",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.shards = 2;
       }},
      {"fetch_heads", [](LocalClusterOptions& options) { options.fetch_bytes = 2 << 20; }},
      {"two_policies",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.policies = {"fetch_heads", "attend_remote"};
         options.lanes = 2;
       }},
      {"int8", [](LocalClusterOptions& options) { options.int8 = true; }},
      {"int8_lanes",
       [](LocalClusterOptions& options) {
         options.int8 = true;
         options.lanes = 2;
       }},
      {"int8_heads",
       [](LocalClusterOptions& options) {
         options.int8 = true;
         options.memory_nodes = 2;
         options.slots = 150;
         options.partition = Partition::kHead;
       }},
      {"int8_shards",
       [](LocalClusterOptions& options) {
         options.int8 = true;
         options.compute_nodes = 2;
         options.shards = 2;
       }},
      {"int8_fetch_heads",
       [](LocalClusterOptions& options) {
         options.int8 = true;
         options.fetch_bytes = 2 << 20;
       }},
      {"prefix_cache", [](LocalClusterOptions& options) { options.prefix_cache = true; }, false},
      {"token_range", CutIntoSpans, false, kMoreTokens},
      {"token_range_lanes",
       [](LocalClusterOptions& options) {
         CutIntoSpans(options);
         options.lanes = 2;
       },
       false, kMoreTokens},
      {"token_range_fetch_heads",
       [](LocalClusterOptions& options) {
         CutIntoSpans(options);
         options.fetch_bytes = 2 << 20;
       },
       false, kMoreTokens},
      {"token_range_prefix_cache",
       [](LocalClusterOptions& options) {
         CutIntoSpans(options);
         options.prefix_cache = true;
       },
       false, kMoreTokens}};
  return modes;
}

std::vector<size_t> ModesThatConverse() {
  std::vector<size_t> converse;
  for (size_t i = 0; i < Modes().size(); ++i) {
    if (Modes()[i].converses) {
      converse.push_back(i);
    }
  }
  return converse;
}

class SpillTest : public ::testing::TestWithParam<size_t> {};

TEST_P(SpillTest, SpilledIsAsUndisturbed) {
  LocalClusterOptions options = Cramped();
  const SpillMode& mode = Modes()[GetParam()];
  mode.apply(options);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  std::vector<GenerateSpec> requests = Requests(mode.more_tokens);
  for (size_t i = 0; i < requests.size() && !options.policies.empty(); ++i) {
    requests[i].policy = options.policies[i / 2 % options.policies.size()];
  }

  const std::vector<GenerateResult> results = cluster->GenerateMany(requests);

  ExpectSame(results, Expected(options.shards, options.int8, mode.more_tokens));
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const core::SpillStats spills = cluster->engine().GetStatus().scheduler.spills;
  EXPECT_GT(spills.sequences_out, 0u);
  EXPECT_EQ(spills.failures, 0u);
  EXPECT_EQ(spills.stored, 0u);
  const telemetry::SpillCount count = CountOf(*cluster);
  EXPECT_GT(count.sequences_in, 0u);
  EXPECT_EQ(count.failures, 0u);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Modes, SpillTest, ::testing::Range(size_t{0}, Modes().size()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

// A sequence with spans on both nodes goes to both tiers, and comes back from both.
TEST(SpillTest, SpansGoToTheTiersOfTheirNodes) {
  LocalClusterOptions options = Cramped();
  CutIntoSpans(options);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(Requests(kMoreTokens)),
             Expected(/*shards=*/1, /*int8=*/false, kMoreTokens));

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const core::SpillStats spills = cluster->engine().GetStatus().scheduler.spills;
  const telemetry::SpillCount first = CountOf(*cluster, "m0");
  const telemetry::SpillCount second = CountOf(*cluster, "m1");
  EXPECT_GT(first.sequences_out + second.sequences_out, spills.sequences_out);
  EXPECT_GT(first.sequences_in + second.sequences_in, spills.sequences_in);
  EXPECT_EQ(spills.failures, 0u);
}

// What one of its nodes cannot bring back is recomputed as a whole.
TEST(SpillTest, ABadDiskOfOneNodeChangesNoTokenOfASequenceThatIsCut) {
  for (const bool write : {false, true}) {
    LocalClusterOptions options = Cramped();
    CutIntoSpans(options);
    uint32_t disks = 0;
    options.spill_disk = [&disks, write] {
      const bool bad = disks++ == 1;
      return std::make_unique<MemorySpillDisk>([bad, write](bool writes, uint64_t number) {
        return MemorySpillDisk::Fault{.error = bad && writes == write && number % 2 == 1 ? EIO : 0};
      });
    };
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(Requests(kMoreTokens)),
               Expected(/*shards=*/1, /*int8=*/false, kMoreTokens));

    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_GT(CountOf(*cluster, "m0").failures + CountOf(*cluster, "m1").failures, 0u);
    EXPECT_GT(cluster->engine().GetStatus().scheduler.spills.failures, 0u);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u) << "the epoch goes on";
  }
}

struct DiskFault {
  std::string name;
  MemorySpillDisk::Faults faults;
  bool fails = true;  // Some sequences are recomputed.
};

const std::vector<DiskFault>& DiskFaults() {
  using Fault = MemorySpillDisk::Fault;
  static const std::vector<DiskFault> faults = {
      {"short_calls", [](bool, uint64_t) { return Fault{.most = 1000}; }, false},
      {"interrupted",
       [](bool, uint64_t number) { return Fault{.error = number % 3 == 0 ? EINTR : 0}; }, false},
      {"full", [](bool write,
                  uint64_t number) { return Fault{.error = write && number >= 3 ? ENOSPC : 0}; }},
      {"cannot_be_read",
       [](bool write, uint64_t number) {
         return Fault{.error = !write && number % 2 == 1 ? EIO : 0};
       }},
      {"flips_a_bit",
       [](bool write, uint64_t number) { return Fault{.flips = !write && number % 3 == 2}; }},
      {"ends_early", [](bool write, uint64_t number) {
         return Fault{.most = !write && number % 3 == 0 ? 0 : SIZE_MAX};
       }}};
  return faults;
}

class SpillFaultTest : public ::testing::TestWithParam<size_t> {};

TEST_P(SpillFaultTest, ABadDiskChangesNoToken) {
  const DiskFault& fault = DiskFaults()[GetParam()];
  LocalClusterOptions options = Cramped();
  options.spill_disk = [&fault] { return std::make_unique<MemorySpillDisk>(fault.faults); };
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  const std::vector<GenerateResult> results = cluster->GenerateMany(Requests());

  ExpectSame(results, Expected());
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  const telemetry::SpillCount count = CountOf(*cluster);
  EXPECT_EQ(count.failures > 0, fault.fails) << count.failures;
  EXPECT_EQ(cluster->engine().GetStatus().scheduler.spills.failures, count.failures);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u) << "the epoch goes on";
}

INSTANTIATE_TEST_SUITE_P(Faults, SpillFaultTest, ::testing::Range(size_t{0}, DiskFaults().size()),
                         [](const auto& tested) { return DiskFaults()[tested.param].name; });

TEST(SpillTest, ABadDiskChangesNoTokenInInt8) {
  for (const uint64_t period : {2, 3}) {
    LocalClusterOptions options = Cramped();
    options.int8 = true;
    options.spill_disk = [period] {
      return std::make_unique<MemorySpillDisk>([period](bool write, uint64_t number) {
        return MemorySpillDisk::Fault{.flips = !write && number % period == 1};
      });
    };
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(Requests()), Expected(/*shards=*/1, /*int8=*/true));

    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_GT(CountOf(*cluster).failures, 0u);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u) << "the epoch goes on";
  }
}

// All four have joined before there is too little room, at some 90 tokens each, and whoever comes
// back computes the token that was to come.
class OpenBlocksTest : public ::testing::TestWithParam<bool> {};

TEST_P(OpenBlocksTest, NothingOfSpilledSequencesIsComputedAgain) {
  std::vector<GenerateSpec> specs;
  uint64_t prompt_tokens = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const std::vector<TokenId> prompt = RandomPrompt(30 + i, 300 + i);
    prompt_tokens += prompt.size();
    specs.push_back(i % 2 == 0 ? Greedy(prompt, 120) : Sampled(prompt, 120, i));
  }
  LocalClusterOptions roomy = Roomy();
  roomy.int8 = GetParam();
  LocalClusterOptions options = Cramped();
  options.int8 = GetParam();
  options.slots = 360;
  const std::unique_ptr<LocalCluster> undisturbed = MakeCluster(roomy);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(undisturbed, nullptr);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(specs), undisturbed->GenerateMany(specs));

  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_GT(status.scheduler.spills.sequences_in, 0u);
  EXPECT_EQ(status.scheduler.spills.failures, 0u);
  EXPECT_GE(status.tokens_prefilled, prompt_tokens);
  EXPECT_LE(status.tokens_prefilled, prompt_tokens + status.scheduler.spills.sequences_in)
      << "more than a token of each";
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

INSTANTIATE_TEST_SUITE_P(Forms, OpenBlocksTest, ::testing::Bool(), [](const auto& tested) {
  return std::string(tested.param ? "int8" : "bf16");
});

// All of them are counted, and the log has one line until something goes well.
TEST(SpillTest, ADiskThatTakesNothingIsWarnedOfOnce) {
  LocalClusterOptions options = Cramped();
  options.spill_disk = [] {
    return std::make_unique<MemorySpillDisk>(
        [](bool write, uint64_t) { return MemorySpillDisk::Fault{.error = write ? ENOSPC : 0}; });
  };
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ::testing::internal::CaptureStderr();
  const std::vector<GenerateResult> results = cluster->GenerateMany(Requests());
  const absl::Status left = cluster->WaitForNoSlots();
  const std::string log = ::testing::internal::GetCapturedStderr();

  ExpectSame(results, Expected());
  EXPECT_TRUE(left.ok()) << left;
  EXPECT_GT(CountOf(*cluster).failures, 1u);
  const std::vector<std::string> parts = absl::StrSplit(log, ": sequences are recomputed");
  EXPECT_EQ(parts.size(), 2u) << log;
  EXPECT_THAT(parts[0], ::testing::HasSubstr("spill m0: cannot write"));
}

// A tier with room for few: others are recomputed.
TEST(SpillTest, AFullTierIsNoError) {
  LocalClusterOptions options = Cramped();
  const std::unique_ptr<LocalCluster> any = MakeCluster(Roomy());
  ASSERT_NE(any, nullptr);
  options.spill_bytes = 5 * 64 * coordinator::KvBytesPerToken(any->layers());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(Requests()), Expected());

  const core::SchedulerStats stats = cluster->engine().GetStatus().scheduler;
  EXPECT_GT(stats.spills.sequences_out, 0u);
  EXPECT_GT(stats.preemptions, stats.spills.sequences_out) << "none was recomputed";
  EXPECT_EQ(CountOf(*cluster).failures, 0u) << "the coordinator knows how much there is room for";
}

// Conversations that go on in turns, all of which have slots for twice what there are. Prompts end
// anywhere, so that parts of runs are read too.
std::vector<GenerateSpec> TurnOf(uint32_t number, std::vector<std::vector<TokenId>>& said) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < said.size(); ++i) {
    const std::vector<TokenId> words = RandomPrompt(40 + 7 * i + 3 * number, 1000 * number + i);
    said[i].insert(said[i].end(), words.begin(), words.end());
    specs.push_back(Greedy(said[i], 5));
  }
  return specs;
}

LocalClusterOptions WithConversations(uint32_t slots) {
  return {.model = SmallModel(),
          .slots = slots,
          .chunk_tokens = 32,
          .sequence_tokens_max = 420,
          .prefix_cache = true};
}

// One after the other, as people speak. What each answer found is added to `found`.
std::vector<GenerateResult> Converse(LocalCluster& cluster, uint64_t& found) {
  std::vector<std::vector<TokenId>> said(6);
  std::vector<GenerateResult> results;
  for (uint32_t number = 0; number < 5; ++number) {
    for (const GenerateSpec& spec : TurnOf(number, said)) {
      results.push_back(cluster.Generate(spec));
      found += results.back().choices[0].usage.cached_tokens;
    }
  }
  return results;
}

class ConversationsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ConversationsTest, BlocksThatWereReadBackAreAsUndisturbed) {
  LocalClusterOptions roomy = WithConversations(4000);
  LocalClusterOptions plain = WithConversations(900);
  LocalClusterOptions tier = WithConversations(900);
  for (LocalClusterOptions* options : {&roomy, &plain, &tier}) {
    const uint32_t slots = options->slots;
    Modes()[GetParam()].apply(*options);
    options->slots = slots / options->memory_nodes;
  }
  tier.spill_bytes = 64 << 20;
  uint64_t found[3] = {};
  std::vector<GenerateResult> results[3];
  telemetry::SpillCount count;
  for (size_t i = 0; const LocalClusterOptions& options : {roomy, plain, tier}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    results[i] = Converse(*cluster, found[i]);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    count = CountOf(*cluster);
    ++i;
  }

  ExpectSame(results[1], results[0]);
  ExpectSame(results[2], results[0]);
  EXPECT_LT(found[1], found[0] / 2) << "there was room for all";
  EXPECT_GT(found[2], found[1]) << "nothing was read back";
  EXPECT_GT(count.cached_tokens_out, 0u);
  EXPECT_GT(count.cached_tokens_in, 0u);
  EXPECT_EQ(count.failures, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, ConversationsTest, ::testing::ValuesIn(ModesThatConverse()),
                         [](const auto& tested) { return Modes()[tested.param].name; });

TEST_P(SpillFaultTest, ABadDiskChangesNoTokenOfAConversation) {
  const DiskFault& fault = DiskFaults()[GetParam()];
  LocalClusterOptions options = WithConversations(900);
  uint64_t found = 0;
  const std::unique_ptr<LocalCluster> roomy = MakeCluster(WithConversations(4000));
  ASSERT_NE(roomy, nullptr);
  const std::vector<GenerateResult> expected = Converse(*roomy, found);
  options.spill_bytes = 64 << 20;
  options.spill_disk = [&fault] { return std::make_unique<MemorySpillDisk>(fault.faults); };
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(Converse(*cluster, found), expected);

  EXPECT_EQ(CountOf(*cluster).failures > 0, fault.fails);
  EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u) << "the epoch goes on";
}

// Nobody looks for copies of an epoch that has ended, nor for those of a node that was lost.
TEST(SpillTest, CopiesOfBlocksGoWithTheirEpoch) {
  uint64_t found = 0;
  const std::unique_ptr<LocalCluster> roomy = MakeCluster(WithConversations(4000));
  ASSERT_NE(roomy, nullptr);
  const std::vector<GenerateResult> expected = Converse(*roomy, found);
  LocalClusterOptions options = WithConversations(450);
  options.memory_nodes = 2;
  options.spill_bytes = 64 << 20;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(Converse(*cluster, found), expected);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.spills.runs, 0u);

  cluster->Detach("m1");
  ASSERT_TRUE(cluster->WaitForEpoch(2).ok());
  EXPECT_EQ(cluster->engine().GetStatus().scheduler.spills.runs, 0u);
  ExpectSame(Converse(*cluster, found), expected);
  cluster->Attach("m1");
  ASSERT_TRUE(cluster->WaitForEpoch(3).ok());
  ExpectSame(Converse(*cluster, found), expected);

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_EQ(CountOf(*cluster).failures, 0u);
}

// What a node had spilled goes with its epoch.
TEST(SpillTest, SpilledSequencesOutliveAnEpoch) {
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "token_range" : "request");
    const uint32_t more_tokens = cut ? kMoreTokens : 0;
    LocalClusterOptions options = Cramped();
    options.memory_nodes = 2;
    options.slots = 260;
    if (cut) {
      CutIntoSpans(options);
      options.slots = 560;  // The node that stays has room for two spans, as a request needs.
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : Requests(more_tokens)) {
      requests.push_back(cluster->Start(spec));
    }
    requests[2]->WaitForTokens(60);
    EXPECT_GT(cluster->engine().GetStatus().scheduler.spills.sequences_out, 0u);
    cluster->Detach("m1");
    ASSERT_TRUE(cluster->WaitForEpoch(2).ok());
    cluster->Attach("m1");

    std::vector<GenerateResult> results;
    for (const auto& request : requests) {
      results.push_back(request->Wait());
    }

    ExpectSame(results, Expected(/*shards=*/1, /*int8=*/false, more_tokens));
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

}  // namespace
}  // namespace lamina::test_support
