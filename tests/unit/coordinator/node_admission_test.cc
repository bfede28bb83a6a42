// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/version.h"
#include "plan/policy_times.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

// Two layers of two KV heads, 512 bytes a token; a request has at most 64 tokens: 32 KiB.
EngineOptions Options() {
  return {.layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 32},
                     {.query_heads = 2, .kv_heads = 2, .head_dim = 32}},
          .model_fingerprint = "model",
          .scheduler = {.sequence_tokens_max = 64}};
}

NodeHello Memory(uint64_t capacity_bytes) {
  return {.identity = {.name = "m0", .is_memory = true, .capacity_bytes = capacity_bytes},
          .version = std::string(kVersion)};
}

NodeHello Compute() {
  return {.identity = {.name = "c0", .model_fingerprint = "model"},
          .version = std::string(kVersion)};
}

void ExpectRefused(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(NodeAdmissionTest, NodesOfTheClusterAreTaken) {
  const EngineOptions options = Options();
  const NodeAdmission admission(options);
  EXPECT_TRUE(admission.Check(Compute(), /*holds_kv=*/false).ok());
  EXPECT_TRUE(admission.Check(Memory(64 * 512), /*holds_kv=*/true).ok());
  EXPECT_EQ(admission.SlotsOf(Memory(64 * 512 + 511)), 64u);
  EXPECT_EQ(admission.SlotsOf(Memory(uint64_t{1} << 60)), uint32_t{1} << 31);
}

// Policy fetch_hybrid: slots are whole blocks of 16, so that 100 tokens take seven.
TEST(NodeAdmissionTest, SlotsOfTwoKindsAreWholeBlocks) {
  EngineOptions options = Options();
  options.scheduler.sequence_tokens_max = 100;
  options.fetch.hybrid = HybridOptions{.share = 10};
  const NodeAdmission admission(options);
  ExpectRefused(admission.Check(Memory(111 * 512), /*holds_kv=*/true),
                "room for 96 tokens, but one request may have 100");
  ExpectRefused(admission.Check(Memory(111 * 512), /*holds_kv=*/true), "to 56.0 KiB");
  EXPECT_TRUE(admission.Check(Memory(112 * 512), /*holds_kv=*/true).ok());
}

// Half of the bytes each, of which a request has to have room in either.
TEST(NodeAdmissionTest, SlotsOfHybridAndThoseOfOthersHaveRoomForARequestEach) {
  EngineOptions options = Options();
  options.fetch.hybrid = HybridOptions{.share = 10, .percent = 50};
  const NodeAdmission admission(options);
  ExpectRefused(admission.Check(Memory(65'599), /*holds_kv=*/true),
                "room for 48 tokens of fetch_hybrid, and of the other policies, but one request "
                "may have 64");
  ExpectRefused(admission.Check(Memory(65'599), /*holds_kv=*/true), "to 64.1 KiB");
  EXPECT_TRUE(admission.Check(Memory(65'600), /*holds_kv=*/true).ok());

  // One of two heads, and half of an activation, which takes less.
  options.partition = Partition::kHead;
  options.fetch.activation_width = 32;
  EXPECT_TRUE(NodeAdmission(options).Check(Memory(32'832), /*holds_kv=*/true).ok());
  ExpectRefused(NodeAdmission(options).Check(Memory(32'831), /*holds_kv=*/true),
                "one KV head of one request of 64 tokens");
}

// An activation has 33 elements in a layer, of which one head's part is 17 at most.
TEST(NodeAdmissionTest, AHeadsPartOfActivationsComesWithItsKAndV) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.fetch = {.bytes = 1 << 20, .activation_width = 33};
  const uint64_t least = 64 * 2 * (128 + 2 * 17);
  EXPECT_TRUE(NodeAdmission(options).Check(Memory(least), /*holds_kv=*/true).ok());
  ExpectRefused(NodeAdmission(options).Check(Memory(least - 1), /*holds_kv=*/true),
                "one KV head of one request of 64 tokens");
  options.fetch.hybrid = HybridOptions{.share = 10};  // They take less than K and V.
  EXPECT_TRUE(NodeAdmission(options).Check(Memory(64 * 256), /*holds_kv=*/true).ok());
  ExpectRefused(NodeAdmission(options).Check(Memory(64 * 256 - 1), /*holds_kv=*/true),
                "one KV head of one request of 64 tokens");
}

TEST(NodeAdmissionTest, ASpillTierThatTheCoordinatorsFileDoesNotHaveIsRefused) {
  EngineOptions options = Options();
  NodeHello hello = Memory(64 * 512);
  hello.identity.spill.capacity_bytes = 1 << 20;
  ExpectRefused(
      NodeAdmission(options).Check(hello, /*holds_kv=*/true),
      "m0 has a spill tier, and no memory node has one in the coordinator's cluster file");
  options.spills = true;
  EXPECT_TRUE(NodeAdmission(options).Check(hello, /*holds_kv=*/true).ok());
}

TEST(NodeAdmissionTest, WherePartitionHeadSpillsAMemoryNodeHasATier) {
  EngineOptions options = Options();
  options.spills = true;
  NodeHello hello = Memory(64 * 512);
  EXPECT_TRUE(NodeAdmission(options).Check(hello, /*holds_kv=*/true).ok());
  options.partition = Partition::kHead;
  ExpectRefused(NodeAdmission(options).Check(hello, /*holds_kv=*/true), "m0 has no spill tier");
  hello.identity.spill.capacity_bytes = 1 << 20;
  EXPECT_TRUE(NodeAdmission(options).Check(hello, /*holds_kv=*/true).ok());
}

// INT8: 2 * 32 + 8 bytes a head, 288 a token, and 3 open blocks of bf16.
TEST(NodeAdmissionTest, TailsComeWithTheSlotsOfInt8) {
  EngineOptions options = Options();
  options.kv = {.form = KvForm::kInt8, .tails = 3};
  const uint64_t tails = 3 * 64 * 512;
  const NodeAdmission admission(options);
  EXPECT_EQ(admission.SlotsOf(Memory(tails - 1)), 0u);
  EXPECT_EQ(admission.SlotsOf(Memory(tails + 64 * 288 + 287)), 64u);
  EXPECT_TRUE(admission.Check(Memory(tails + 64 * 288), /*holds_kv=*/true).ok());
  ExpectRefused(admission.Check(Memory(tails + 63 * 288), /*holds_kv=*/true),
                "room for 63 tokens and 96.0 KiB for the open blocks of 3 sequences (kv int8, "
                "limits.running_max), but one request may have 64");
  options.partition = Partition::kHead;
  EXPECT_TRUE(admission.Check(Memory((tails + 64 * 288) / 2), /*holds_kv=*/true).ok());
  ExpectRefused(admission.Check(Memory((tails + 64 * 288) / 2 - 1), /*holds_kv=*/true),
                "one KV head of one request of 64 tokens");
}

// Both forms: 512 bytes a token of bf16, 288 of INT8, each with half of what the tails leave.
TEST(NodeAdmissionTest, SlotsOfBothFormsHaveRoomForALongestRequestEach) {
  EngineOptions options = Options();
  options.kv = {.tails = 3, .int8_percent = 50};
  const uint64_t tails = 3 * 64 * 512;
  const uint64_t least = options.kv.CapacityFor(64, options.layers);
  EXPECT_EQ(least, tails + 65'600) << "64 slots of bf16, doubled, in whole hundreds";
  for (const uint64_t capacity : {least, least + 123'456}) {
    const KvSlots both = options.kv.BothIn(capacity, options.layers);
    EXPECT_LE(both.bf16 * 512 + both.int8 * 288, capacity - tails);
    EXPECT_GT((both.bf16 + 1) * 512 + both.int8 * 288, capacity - tails) << "no slot is left";
    EXPECT_GE(both.bf16, 64u);
    EXPECT_GE(both.int8, 64u);
  }
  const NodeAdmission admission(options);
  EXPECT_EQ(admission.SlotsOf(Memory(tails - 1)), 0u);
  EXPECT_TRUE(admission.Check(Memory(least), /*holds_kv=*/true).ok());
  ExpectRefused(admission.Check(Memory(least - 1000), /*holds_kv=*/true),
                "room for 63 tokens of each form and 96.0 KiB for the open blocks of 3 sequences "
                "(kv int8, limits.running_max), but one request may have 64");
  options.partition = Partition::kHead;
  EXPECT_TRUE(admission.Check(Memory(least / 2), /*holds_kv=*/true).ok());
  ExpectRefused(admission.Check(Memory(least / 2 - 1), /*holds_kv=*/true),
                "one KV head of one request of 64 tokens");
}

TEST(NodeAdmissionTest, AnotherVersionIsRefused) {
  const EngineOptions options = Options();
  NodeHello hello = Compute();
  hello.version = "0.0";
  ExpectRefused(NodeAdmission(options).Check(hello, false), "node c0 is of version 0.0");
}

TEST(NodeAdmissionTest, AnotherModelIsRefused) {
  const EngineOptions options = Options();
  NodeHello hello = Compute();
  hello.identity.model_fingerprint = "other";
  ExpectRefused(NodeAdmission(options).Check(hello, false), "the model of c0");
}

TEST(NodeAdmissionTest, AMemoryNodeOnADeviceIsRefusedWhereKvIsInt8OrFetched) {
  NodeHello hello = Memory(uint64_t{1} << 20);
  hello.identity.device = "cuda:0";
  const EngineOptions plain = Options();
  EXPECT_TRUE(NodeAdmission(plain).Check(hello, /*holds_kv=*/true).ok());
  EngineOptions fetching = Options();
  fetching.fetch.bytes = uint64_t{1} << 20;
  ExpectRefused(NodeAdmission(fetching).Check(hello, /*holds_kv=*/true),
                "memory node m0 is on cuda:0, from which nobody fetches K and V");
  EngineOptions int8 = Options();
  int8.kv = {.form = KvForm::kInt8, .tails = 3};
  ExpectRefused(NodeAdmission(int8).Check(hello, /*holds_kv=*/true),
                "memory node m0 is on cuda:0, which keeps no K and V as INT8");
  int8.kv = {.tails = 3, .int8_percent = 50};
  ExpectRefused(NodeAdmission(int8).Check(hello, /*holds_kv=*/true), "no K and V as INT8");
}

TEST(NodeAdmissionTest, AMemoryNodeWithoutRoomForALongestRequestIsRefused) {
  const EngineOptions options = Options();
  ExpectRefused(NodeAdmission(options).Check(Memory(63 * 512), true),
                "room for 63 tokens, but one request may have 64");
}

TEST(NodeAdmissionTest, AMemoryNodeWithoutRoomForAHeadIsRefused) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  EXPECT_TRUE(NodeAdmission(options).Check(Memory(64 * 256), true).ok());
  ExpectRefused(NodeAdmission(options).Check(Memory(64 * 256 - 1), true),
                "one KV head of one request of 64 tokens");
}

TEST(NodeAdmissionTest, AMemoryNodeWithoutRoomForASpanIsRefused) {
  EngineOptions options = Options();
  options.partition = Partition::kTokenRange;
  options.scheduler.span_tokens = 16;
  EXPECT_TRUE(NodeAdmission(options).Check(Memory(16 * 512), true).ok());
  ExpectRefused(NodeAdmission(options).Check(Memory(15 * 512), true), "a span of 16");
}

TEST(NodeAdmissionTest, AComputeNodeThatIsToHoldKvWithoutCapacityIsRefused) {
  const EngineOptions options = Options();
  ExpectRefused(NodeAdmission(options).Check(Compute(), /*holds_kv=*/true),
                "compute node c0 has no capacity for KV");
}

TEST(NodeAdmissionTest, AComputeNodeThatIsToHoldKvWithoutRoomIsRefused) {
  const EngineOptions options = Options();
  NodeHello hello = Compute();
  hello.identity.capacity_bytes = 512;
  ExpectRefused(NodeAdmission(options).Check(hello, /*holds_kv=*/true), "room for 1 tokens");
}

// Policy auto leaves local out, and says why (policy_auto_test).
TEST(NodeAdmissionTest, UnderPolicyAutoAComputeNodeWithoutRoomIsTaken) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  NodeHello hello = Compute();
  hello.identity.capacity_bytes = 512;
  const std::vector<plan::SliceTimes> slices = {
      {.rows = 1, .slice_seconds = 1e-3, .tail_seconds = 1e-3}};
  hello.identity.policy_times = {.local = slices, .pools = slices, .attention_local = 1e9};
  const absl::Status taken = NodeAdmission(options).Check(hello, /*holds_kv=*/true);
  EXPECT_TRUE(taken.ok()) << taken;
  ExpectRefused(NodeAdmission(options).Check(Memory(63 * 512), true), "room for 63 tokens");
}

TEST(NodeAdmissionTest, AComputeNodeThatHasMeasuredNothingIsRefusedUnderPolicyAuto) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  ExpectRefused(NodeAdmission(options).Check(Compute(), false),
                "c0 has measured nothing for policy auto");
}

TEST(NodeAdmissionTest, TimesThatCannotBeAreRefusedUnderPolicyAuto) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  NodeHello hello = Compute();
  hello.identity.policy_times.local = {{.rows = 1, .slice_seconds = -1, .tail_seconds = 1}};
  EXPECT_EQ(NodeAdmission(options).Check(hello, false).code(), absl::StatusCode::kInvalidArgument);
}

// Each of them alone, in times that are taken without it.
TEST(NodeAdmissionTest, NoTimeOrRateMayBeWhatNothingHas) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  const NodeAdmission admission(options);
  const std::vector<plan::SliceTimes> slices = {
      {.rows = 1, .slice_seconds = 1e-3, .tail_seconds = 1e-3}};
  NodeHello sound = Compute();
  sound.identity.policy_times = {.local = slices, .pools = slices, .attention_local = 1e9};
  ASSERT_TRUE(admission.Check(sound, /*holds_kv=*/false).ok());
  const plan::PolicyTimes end = sound.identity.policy_times;
  sound.identity.policy_times.ends = {end, end};
  ASSERT_TRUE(admission.Check(sound, /*holds_kv=*/false).ok());
  using Field = double& (*)(plan::PolicyTimes&);
  const std::vector<Field> fields = {
      [](plan::PolicyTimes& times) -> double& { return times.local[0].slice_seconds; },
      [](plan::PolicyTimes& times) -> double& { return times.local[0].tail_seconds; },
      [](plan::PolicyTimes& times) -> double& { return times.pools[0].slice_seconds; },
      [](plan::PolicyTimes& times) -> double& { return times.pools[0].tail_seconds; },
      [](plan::PolicyTimes& times) -> double& { return times.attention_local; },
      [](plan::PolicyTimes& times) -> double& { return times.attention_shared; },
      [](plan::PolicyTimes& times) -> double& { return times.attention_pools; },
      [](plan::PolicyTimes& times) -> double& { return times.read_bandwidth; },
      [](plan::PolicyTimes& times) -> double& { return times.reads_low; },
      [](plan::PolicyTimes& times) -> double& { return times.reads_high; },
      [](plan::PolicyTimes& times) -> double& { return times.ends[1].local[0].slice_seconds; },
      [](plan::PolicyTimes& times) -> double& { return times.ends[0].attention_local; },
      [](plan::PolicyTimes& times) -> double& { return times.make_seconds; }};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity, -1e-9}) {
    for (size_t i = 0; i < fields.size(); ++i) {
      NodeHello hello = sound;
      fields[i](hello.identity.policy_times) = value;
      EXPECT_EQ(admission.Check(hello, /*holds_kv=*/false).code(),
                absl::StatusCode::kInvalidArgument)
          << "field " << i << " is " << value;
    }
  }
  sound.identity.policy_times.local[0].slice_seconds = 0;
  EXPECT_EQ(admission.Check(sound, /*holds_kv=*/false).code(), absl::StatusCode::kInvalidArgument);
}

// A policy that can be predicted from all that was measured can be at both ends.
TEST(NodeAdmissionTest, EndsOfReadsAreTwoAndHaveAllThatWasMeasured) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  const NodeAdmission admission(options);
  const std::vector<plan::SliceTimes> slices = {
      {.rows = 1, .slice_seconds = 1e-3, .tail_seconds = 1e-3}};
  const plan::PolicyTimes whole = {.local = slices,
                                   .pools = slices,
                                   .attention_local = 1e9,
                                   .attention_shared = 1e9,
                                   .attention_pools = 1e9,
                                   .make_seconds = 1e-6};
  const auto admits = [&](const std::vector<plan::PolicyTimes>& ends) {
    NodeHello hello = Compute();
    hello.identity.policy_times = whole;
    hello.identity.policy_times.ends = ends;
    return admission.Check(hello, /*holds_kv=*/false).ok();
  };
  EXPECT_TRUE(admits({whole, whole}));
  EXPECT_FALSE(admits({whole}));
  EXPECT_FALSE(admits({whole, whole, whole}));
  plan::PolicyTimes nested = whole;
  nested.ends = {whole, whole};
  EXPECT_FALSE(admits({whole, nested}));
  for (const auto& remove : std::vector<std::function<void(plan::PolicyTimes&)>>{
           [](plan::PolicyTimes& times) { times.local.clear(); },
           [](plan::PolicyTimes& times) { times.pools.clear(); },
           [](plan::PolicyTimes& times) { times.attention_local = 0; },
           [](plan::PolicyTimes& times) { times.attention_shared = 0; },
           [](plan::PolicyTimes& times) { times.attention_pools = 0; },
           [](plan::PolicyTimes& times) { times.make_seconds = 0; }}) {
    plan::PolicyTimes end = whole;
    remove(end);
    EXPECT_FALSE(admits({end, whole}));
  }
}

TEST(NodeAdmissionTest, ARateThatCannotBeIsRefusedOfAMemoryNode) {
  const EngineOptions options = Options();
  NodeHello hello = Memory(64 * 512);
  hello.identity.policy_times.attention_local = 1e9;
  EXPECT_TRUE(NodeAdmission(options).Check(hello, /*holds_kv=*/true).ok());
  hello.identity.policy_times.attention_local = -1;
  EXPECT_EQ(NodeAdmission(options).Check(hello, /*holds_kv=*/true).code(),
            absl::StatusCode::kInvalidArgument);
}

// Replica r of two stages: shards c0 and c1 of the first, c2 and c3 of the second.
EngineOptions InShards() {
  EngineOptions options = Options();
  options.replicas = {{.name = "r", .nodes = {"c0", "c1", "c2", "c3"}, .shards = 2}};
  return options;
}

NodeHello Shard(const std::string& name, const std::string& kernels) {
  NodeHello hello = Compute();
  hello.identity.name = name;
  hello.identity.kernels = kernels;
  return hello;
}

TEST(NodeAdmissionTest, AShardOfExpertsOnAProcessorOfAnotherClassIsRefused) {
  EngineOptions options = InShards();
  options.has_experts = true;
  const NodeAdmission admission(options);
  AttachedNodes attached({}, 0);
  EXPECT_TRUE(admission.CheckShards(Shard("c0", "loop A"), attached).ok());
  attached.Add({.hello = Shard("c0", "loop A, weights 1 MiB of bf16"), .port = nullptr});
  const absl::Status refused = admission.CheckShards(Shard("c1", "loop B"), attached);
  ExpectRefused(refused, "compute node c1 has the kernels 'loop B', and c0");
  ExpectRefused(refused, "'loop A': shards of a mixture of experts need processors of one class");

  EXPECT_TRUE(admission.CheckShards(Shard("c1", "loop A, weights packed"), attached).ok())
      << "how weights are held changes no bits";
  EXPECT_TRUE(admission.CheckShards(Shard("c2", "loop B"), attached).ok()) << "another stage";
  EXPECT_TRUE(admission.CheckShards(Shard("c0", "loop B"), attached).ok()) << "in its own place";
  EXPECT_TRUE(admission.CheckShards(Memory(64 * 512), attached).ok());
}

TEST(NodeAdmissionTest, ShardsOfADenseModelMayBeOnProcessorsOfSeveralClasses) {
  const EngineOptions options = InShards();
  AttachedNodes attached({}, 0);
  attached.Add({.hello = Shard("c0", "loop A"), .port = nullptr});
  EXPECT_TRUE(NodeAdmission(options).CheckShards(Shard("c1", "loop B"), attached).ok());
}

}  // namespace
}  // namespace lamina::coordinator
