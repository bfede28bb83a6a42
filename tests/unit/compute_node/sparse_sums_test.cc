// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "absl/types/span.h"

namespace lamina::compute_node {
namespace {

plan::EpochConfig Config() {
  return {.lanes = 2,
          .rows_max = 4,
          .sequence_tokens_max = 100,
          .layers = std::vector(3, AttentionDescriptor{.query_heads = 2, .kv_heads = 1}),
          .attention_paths = {plan::AttentionPath::kSparse},
          .sparse_ratio = 0.5,
          .slots = {150, 60}};
}

Sequence Joined(plan::SequenceId id, uint32_t tokens, plan::SequenceId parent = 0) {
  return {.join = {.id = id, .tokens = std::vector<TokenId>(tokens), .parent = parent}};
}

class SparseSumsTest : public ::testing::Test {
 protected:
  // A row that gives all it has to token 0.
  void Add(plan::SequenceId id, uint32_t position) {
    const uint32_t tokens[] = {0, position};
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      sums_.Of(id, layer).Add(position, tokens, {2.0f, 0.0f});
    }
  }

  plan::EpochConfig config_ = Config();
  SparseSums sums_{config_};
};

TEST_F(SparseSumsTest, LastRowsOfAPromptAreWeighed) {
  const Sequence prompt = Joined(1, 40);
  // k of a row with 40 tokens before it is 10: rows 30 to 39 make its sums.
  EXPECT_EQ(sums_.Weighed(prompt, {.first_token = 0, .tokens = 16}), 0u);
  EXPECT_EQ(sums_.Weighed(prompt, {.first_token = 16, .tokens = 16}), 2u);
  EXPECT_EQ(sums_.Weighed(prompt, {.first_token = 32, .tokens = 8}), 8u);
  EXPECT_EQ(sums_.Weighed(prompt, {.first_token = 40, .tokens = 1}), 1u);
  Sequence given = Joined(2, 40);
  given.join.decode_from = 20;
  EXPECT_EQ(sums_.Weighed(given, {.first_token = 0, .tokens = 20}), 5u);
  EXPECT_TRUE(SparseSums::IsDense(given, {.first_token = 19, .tokens = 1}));
  EXPECT_FALSE(SparseSums::IsDense(given, {.first_token = 20, .tokens = 1}));
  EXPECT_FALSE(SparseSums::IsDense(prompt, {.first_token = 40, .tokens = 1}));
}

TEST_F(SparseSumsTest, FixedPatternsWeighNothing) {
  config_.sparse_tokens = SparseTokens::kLocal;
  const SparseSums fixed(config_);
  EXPECT_EQ(fixed.Weighed(Joined(1, 40), {.first_token = 32, .tokens = 8}), 0u);
  EXPECT_EQ(SparseSums::BytesMax(config_), 0u);
}

TEST_F(SparseSumsTest, WhoLeavesTakesItsSumsAlong) {
  Add(1, 7);
  Add(2, 7);
  const uint64_t both = sums_.bytes();
  EXPECT_GT(both, 0u);
  sums_.Apply({.leaves = {{.id = 1}}});
  EXPECT_EQ(sums_.sequences(), 1u);
  EXPECT_EQ(sums_.bytes(), both / 2);
  // It joins again under its own id, and begins anew.
  sums_.Apply({.joins = {{.id = 2}}});
  EXPECT_EQ(sums_.bytes(), 0u);
  sums_.BeginRun(Joined(2, 8), 8);
  EXPECT_EQ(sums_.Of(2, 0).rows(), 0u);
}

TEST_F(SparseSumsTest, AForkHasWhatItsParentKnowsOfTheCommonPrompt) {
  Add(1, 7);
  Add(1, 8);
  Add(1, 9);  // The parent's own token.
  sums_.BeginRun(Joined(5, 9, /*parent=*/1), 9);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(sums_.Of(5, layer).rows(), 2u);
    EXPECT_EQ(sums_.Of(5, layer).end(), 9u);
    EXPECT_EQ(sums_.Of(5, layer).sums()[0], 2u * 65535);
    EXPECT_EQ(sums_.Of(1, layer).rows(), 3u);
  }
  sums_.BeginRun(Joined(6, 9, /*parent=*/99), 9);
  EXPECT_EQ(sums_.Of(6, 0).rows(), 0u);
}

// Eight sequences of 100 tokens have windows of 25 rows each. With more sequences, each row has one
// of 210 slots.
TEST_F(SparseSumsTest, TheMostThatTheyTakeFollowsFromSequencesAndSlots) {
  EXPECT_EQ(SparseSums::BytesMax(config_), 8u * 3 * policy::WindowSumsBytesMax(100, 0.5));
  config_.row_sequences_max = 1;
  EXPECT_EQ(SparseSums::BytesMax(config_), 2u * 3 * policy::WindowSumsBytesMax(100, 0.5));
  config_.row_sequences_max = 0;
  config_.rows_max = 200;
  EXPECT_EQ(SparseSums::BytesMax(config_), 3 * (210 * policy::WindowRowBytesMax(100) +
                                                210 * policy::WindowSumsOwnBytesMax(100, 0.5)));
  // Where heads are spread over both nodes, a row has one slot on each.
  const uint64_t by_request = SparseSums::BytesMax(config_);
  config_.partition = Partition::kHead;
  config_.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 1}};
  config_.slots = {210, 210};
  EXPECT_EQ(SparseSums::BytesMax(config_), by_request);
}

// Ten sequences of 950 tokens in 1,400 slots: the windows of all are in the 50 tokens of their own.
TEST_F(SparseSumsTest, ForksOfALongPromptTakeNoMore) {
  config_.rows_max = 8;
  config_.sequence_tokens_max = 1000;
  config_.sparse_ratio = 0.1;
  config_.slots = {1400};
  SparseSums sums(config_);
  std::vector<uint32_t> tokens(950);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<float> weights(tokens.size(), 1.0f);
  for (plan::SequenceId id = 1; id <= 10; ++id) {
    for (uint32_t position = 900; position < 950; ++position) {
      for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
        sums.Of(id, layer).Add(position, absl::MakeConstSpan(tokens).first(position + 1),
                               absl::MakeConstSpan(weights).first(position + 1));
      }
    }
  }
  const uint64_t two_of_the_longest = 2 * 3 * policy::WindowSumsBytesMax(1000, 0.1);
  EXPECT_GT(sums.bytes(), two_of_the_longest);
  EXPECT_LE(sums.bytes(), SparseSums::BytesMax(config_));
}

}  // namespace
}  // namespace lamina::compute_node
