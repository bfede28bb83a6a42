// SPDX-License-Identifier: Apache-2.0
//
// Chunks that are groups of KV heads, where rows are few: the same bits as in one piece.

#include <map>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

// Five KV heads: groups of two and of three, and two memory nodes that hold as many.
RandomModelSpec FiveHeads() {
  RandomModelSpec model = SmallModel();
  model.query_heads = 10;
  model.kv_heads = 5;
  model.head_dim = 16;
  return model;
}

LocalClusterOptions Plain(DType compute_type) {
  return {.model = FiveHeads(),
          .compute_type = compute_type,
          .slots = 4096,
          .sequence_tokens_max = 768};
}

// Few rows at a time leave in groups of KV heads, alone, and with prompts, which leave as a
// whole.
TEST(HeadChunksTest, FewRowsInGroupsOfHeadsAreAsWhole) {
  LocalClusterOptions plain = Plain(DType::kBF16);
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1u, 40u, 255u, 520u}) {
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 20));
  }
  std::map<uint32_t, std::vector<GenerateResult>> wanted;  // By shards.
  for (const auto& [partition, chunks, query_first, replicas, shards] :
       {std::tuple{Partition::kRequest, 5u, QueryFirst::kNever, 1u, 1u},
        {Partition::kRequest, 3u, QueryFirst::kAlways, 2u, 1u},
        {Partition::kHead, 16u, QueryFirst::kNever, 1u, 1u},
        {Partition::kHead, 3u, QueryFirst::kAlways, 2u, 1u},
        {Partition::kTokenRange, 4u, QueryFirst::kNever, 1u, 1u},
        {Partition::kTokenRange, 16u, QueryFirst::kAlways, 2u, 1u},
        {Partition::kRequest, 3u, QueryFirst::kNever, 1u, 2u},
        {Partition::kTokenRange, 4u, QueryFirst::kAlways, 1u, 2u}}) {
    SCOPED_TRACE(absl::StrCat("partition ", static_cast<int>(partition), ", ", chunks, " chunks, ",
                              query_first == QueryFirst::kAlways ? "queries first, " : "", replicas,
                              " replicas of ", shards, " shards"));
    LocalClusterOptions options = plain;
    options.shards = shards;
    options.compute_nodes = replicas * shards;
    if (wanted[shards].empty()) {
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
      for (const coordinator::GenerateSpec& spec : specs) {
        wanted[shards].push_back(cluster->Generate(spec));
      }
    }
    options.partition = partition;
    options.sub_batches = {.chunks = chunks, .query_first = query_first};
    options.memory_nodes = 2;
    options.lanes = 2;
    options.chunk_tokens = 64;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(specs), wanted[shards]);
    for (size_t i = 0; i < specs.size(); ++i) {
      ExpectSame({cluster->Generate(specs[i])}, {wanted[shards][i]});
    }
    const core::SubBatchCount choice = cluster->engine().GetStatus().scheduler.sub_batches;
    EXPECT_TRUE(choice.cut.by_heads) << choice.why;
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// A link that is slow compared with attention: the groups are chosen by what is measured. And one
// that delays and cuts chunks as it likes.
TEST(HeadChunksTest, SlowAndUnrulyLinksChangeNothing) {
  LocalClusterOptions options = Plain(DType::kF32);
  options.sequence_tokens_max = 1024;
  const std::vector<coordinator::GenerateSpec> specs = {Greedy(RandomPrompt(700, 1), 40),
                                                        Sampled(RandomPrompt(300, 2), 40, 3)};
  const std::vector<GenerateResult> wanted = MakeCluster(options)->GenerateMany(specs);
  const auto network = transport::FakeNetwork::Named(
      "unruly_heads", {.seed = 6, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 100});
  for (const std::string uri : {"throttle(bandwidth=2MB)+shm://", "fake://unruly_heads"}) {
    for (const core::SubBatchOptions sub_batches :
         {core::SubBatchOptions{.automatic = true, .query_first = QueryFirst::kAuto},
          core::SubBatchOptions{.chunks = 5, .query_first = QueryFirst::kAlways}}) {
      SCOPED_TRACE(absl::StrCat(uri, " ", sub_batches.chunks));
      options.transports = {uri};
      options.sub_batches = sub_batches;
      options.lanes = 2;
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
      ASSERT_NE(cluster, nullptr);
      ExpectSame(cluster->GenerateMany(specs), wanted);
    }
  }
}

// With more threads than a group has heads a memory node would be slower, not faster.
TEST(HeadChunksTest, AreNotCutWhereThreadsWouldBeWithoutWork) {
  LocalClusterOptions options = Plain(DType::kBF16);
  options.sub_batches = {.chunks = 5};
  for (const size_t threads : {2u, 3u}) {
    options.threads = threads;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(20, 1), 4)).status.ok());
    EXPECT_EQ(cluster->engine().GetStatus().scheduler.sub_batches.cut.by_heads, threads == 2);
  }
}

}  // namespace
}  // namespace lamina::test_support
