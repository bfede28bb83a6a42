// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_sparse: answers are others than those of whole attention, and the same however the
// cluster runs them: chunks, lanes, threads, memory nodes with whole sequences or with some heads
// of each, windows, and who is batched with it. So are those of K and V as INT8. Tokens that stay
// on the compute node change none, of fetch_heads either.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/run_variations.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

LocalClusterOptions Sparse(double ratio, bool int8 = false) {
  RandomModelSpec model = SmallModel();
  model.layers = 4;
  return {.model = model,
          .fetch_bytes = 8 << 20,
          .sparse_ratio = ratio,
          .memory_nodes = 2,
          .slots = 8192,
          .int8 = int8,
          .sequence_tokens_max = 512};
}

// Bytes of 16 tokens.
uint64_t TileBytes(const RandomModelSpec& model) {
  return uint64_t{16} * model.layers * model.kv_heads * model.head_dim * 4;
}

uint64_t BytesCome(LocalCluster& cluster) { return cluster.handler("c0").Counters().kv_bytes_read; }

class SparseFormTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Forms, SparseFormTest, ::testing::Bool(), [](const auto& tested) {
  return std::string(tested.param ? "int8" : "bf16");
});

TEST_P(SparseFormTest, AnswersDoNotDependOnHowTheyAreRun) {
  const std::unique_ptr<LocalCluster> plain = MakeCluster(Sparse(0.3, GetParam()));
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> expected = plain->GenerateMany(MixedLengths());
  for (uint32_t variation = 0; variation < 8; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    const LocalClusterOptions options = VariedWithHeads(Sparse(0.3, GetParam()), variation);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths()), expected);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
  }
}

// Bytes of so many tiles of bf16 for what stays, and what share of the bytes without come at most.
struct Room {
  uint32_t tiles = 0;
  double most = 1;
};

// Runs the cluster in each variation with one of three rooms: what stays shows in what comes, and
// not in answers.
void ExpectResidentShowsInBytesAlone(const LocalClusterOptions& base,
                                     const std::vector<Room>& rooms, const std::string& policy,
                                     const std::string& lossy) {
  const std::unique_ptr<LocalCluster> plain = MakeCluster(base);
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> expected = plain->GenerateMany(MixedLengths());
  const auto all = static_cast<double>(BytesCome(*plain));
  for (uint32_t variation = 0; variation < 7; ++variation) {
    SCOPED_TRACE(absl::StrCat("variation ", variation));
    const Room& room = rooms[variation % rooms.size()];
    LocalClusterOptions options = VariedWithHeads(base, variation);
    options.resident_bytes = TileBytes(options.model) * room.tiles;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths()), expected);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    EXPECT_EQ(cluster->engine().GetStatus().policy, policy);
    EXPECT_EQ(cluster->engine().lossy(), lossy);
    EXPECT_LE(static_cast<double>(BytesCome(*cluster)), room.most * all);
  }
}

// Pieces come in whole tiles, so that one that stays may save none.
TEST(SparseClusterTest, TokensThatStayComeNoMoreAndChangeNoAnswer) {
  ExpectResidentShowsInBytesAlone(Sparse(0.3), {{100, 0.5}, {13, 0.9}, {1, 1.0}}, "fetch_sparse",
                                  "fetch_sparse-0.3-window_sums");
}

// Policy fetch_heads is exact, whatever stays.
TEST(SparseClusterTest, FetchHeadsHasItsAnswersWithTokensThatStay) {
  ExpectResidentShowsInBytesAlone(Sparse(0), {{400, 0.5}, {13, 0.95}, {1, 1.0}}, "fetch_heads", "");
}

// Closed blocks of INT8 and the open one of each sequence: of all, of most and of a few.
const std::vector<Room> kInt8Rooms = {{400, 0.5}, {60, 0.9}, {16, 1.0}};

TEST(SparseClusterTest, BlocksOfInt8ThatStayComeNoMoreAndChangeNoAnswer) {
  ExpectResidentShowsInBytesAlone(Sparse(0.3, /*int8=*/true), kInt8Rooms, "fetch_sparse",
                                  "fetch_sparse-0.3-window_sums-kv_int8");
}

TEST(SparseClusterTest, FetchHeadsHasItsAnswersWithBlocksOfInt8ThatStay) {
  ExpectResidentShowsInBytesAlone(Sparse(0, /*int8=*/true), kInt8Rooms, "fetch_heads", "kv_int8");
}

// Sequences that are cut have them too: the recent tokens of one may be of two spans.
TEST(SparseClusterTest, FetchHeadsHasItsAnswersWithTokensOfSpansThatStay) {
  LocalClusterOptions options = Sparse(0);
  options.partition = Partition::kTokenRange;
  const std::unique_ptr<LocalCluster> plain = MakeCluster(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> expected = plain->GenerateMany(MixedLengths());
  const auto all = static_cast<double>(BytesCome(*plain));
  for (const auto& [tiles, most] : {std::pair{400u, 0.5}, {13u, 0.95}}) {
    SCOPED_TRACE(absl::StrCat(tiles, " tiles"));
    options.resident_bytes = TileBytes(options.model) * tiles;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedLengths()), expected);
    EXPECT_EQ(cluster->engine().GetStatus().policy, "fetch_heads");
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);
    EXPECT_LE(static_cast<double>(BytesCome(*cluster)), most * all);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

// INT8 and chosen tokens each make answers others, and these say both.
TEST(SparseClusterTest, AnswersSayBothWhatIsChosenAndTheFormOfKAndV) {
  std::vector<std::vector<float>> logprobs;
  for (const bool int8 : {false, true}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Sparse(0.3, int8));
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(cluster->engine().lossy(),
              int8 ? "fetch_sparse-0.3-window_sums-kv_int8" : "fetch_sparse-0.3-window_sums");
    logprobs.push_back(
        cluster->GenerateMany({Greedy(RandomPrompt(200, 3), 40)})[0].choices[0].logprobs);
  }
  EXPECT_NE(Bits(logprobs[0]), Bits(logprobs[1]));
  EXPECT_NEAR(logprobs[0][0], logprobs[1][0], 0.05);
}

TEST(SparseClusterTest, WithFewerTokensAnswersAreOthers) {
  std::vector<std::vector<TokenId>> tokens;
  for (const double ratio : {1.0, 0.1}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Sparse(ratio));
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(cluster->engine().GetStatus().policy, "fetch_sparse");
    EXPECT_EQ(cluster->engine().lossy(), absl::StrCat("fetch_sparse-", ratio, "-window_sums"));
    tokens.push_back(
        cluster->GenerateMany({Greedy(RandomPrompt(200, 3), 100)})[0].choices[0].tokens);
  }
  EXPECT_EQ(tokens[0].size(), tokens[1].size());
  EXPECT_NE(tokens[0], tokens[1]);
}

// Slots run out: requests are preempted, begin anew, and all end. What stays of them goes.
TEST_P(SparseFormTest, PreemptedRequestsEnd) {
  LocalClusterOptions options = Sparse(0.5, GetParam());
  options.resident_bytes = TileBytes(options.model) * 40;
  options.slots = options.sequence_tokens_max;
  options.memory_nodes = 1;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  for (const GenerateResult& result : cluster->GenerateMany(LongRequests(8))) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Each choice of one prompt goes on with what the prompt's last rows were worth to it.
TEST_P(SparseFormTest, ChoicesOfOnePromptAreThoseOfRequestsOfTheirOwn) {
  GenerateSpec both = Sampled(RandomPrompt(120, 9), 30, 5);
  both.choices = 3;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Sparse(0.3, GetParam()));
  ASSERT_NE(cluster, nullptr);
  const GenerateResult shared = cluster->GenerateMany({both})[0];
  ASSERT_EQ(shared.choices.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    GenerateSpec alone = both;
    alone.choices = 1;
    alone.sampling.seed = both.sampling.seed + i;
    EXPECT_EQ(shared.choices[i].tokens, cluster->GenerateMany({alone})[0].choices[0].tokens) << i;
  }
}

}  // namespace
}  // namespace lamina::test_support
