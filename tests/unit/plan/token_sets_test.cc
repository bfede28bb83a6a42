// SPDX-License-Identifier: Apache-2.0
#include "plan/token_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "plan/epoch_topology.h"

namespace lamina::plan {
namespace {

using ::testing::HasSubstr;

EpochConfig Sparse() {
  return {.epoch = 4,
          .lanes = 2,
          .rows_max = 8,
          .sequence_tokens_max = 1000,
          .layers = {{.query_heads = 4, .kv_heads = 2, .head_dim = 16},
                     {.query_heads = 4, .kv_heads = 2, .head_dim = 16}},
          .compute_nodes = {"c0"},
          .attention_paths = {AttentionPath::kSparse},
          .fetch_bytes = 1 << 20,
          .sparse_ratio = 0.5,
          .memory_nodes = {"m0"},
          .slots = {4096}};
}

TEST(TokenSetsTest, SetsOfALayerFollowEachOtherAndAreAsWideAsTheLongest) {
  const std::vector<FetchRun> runs = {{.before = 64, .tokens = 1}, {.before = 65, .tokens = 3}};
  const TokenSets sets(3, runs);
  EXPECT_EQ(sets.words(), 2u);
  EXPECT_EQ(sets.bytes(), 3u * 2 * (2 + 1) * 8);
  EXPECT_EQ(sets.SetOf(0, 1), 3u);
  EXPECT_EQ(sets.KeptOf(0, 1), 5u);
  EXPECT_EQ(sets.SetOf(2, 1), 15u);
  const std::vector<FetchRun> first = {{.before = 0, .tokens = 1}};
  EXPECT_EQ(TokenSets(3, first).bytes(), 3u * 8);
  EXPECT_EQ(TokenSets().bytes(), 0u);
}

TEST(TokenSetsTest, KnowWhereTheyEnd) {
  std::vector<uint64_t> set = {uint64_t{1} << 63, 1};
  EXPECT_EQ(CountTokens(set), 2u);
  EXPECT_TRUE(EndsBefore(set, 65));
  EXPECT_FALSE(EndsBefore(set, 64));
  EXPECT_TRUE(EndsBefore(set, 128));
  set = {0, 0};
  EXPECT_TRUE(EndsBefore(set, 0));
}

TEST(TokenSetsTest, AreWholeWhereNoTokenIsLeftOut) {
  EXPECT_TRUE(IsWhole(std::vector<uint64_t>{~uint64_t{0}, 3}, 66));
  EXPECT_FALSE(IsWhole(std::vector<uint64_t>{~uint64_t{0}, 2}, 66));
  EXPECT_FALSE(IsWhole(std::vector<uint64_t>{~uint64_t{0}, 7}, 66));
  EXPECT_TRUE(IsWhole(std::vector<uint64_t>{0}, 0));
}

TEST(TokenSetsTest, WithInt8ARowHasTokensOfSomeBlocksAndOfTheOpenOne) {
  const std::vector<uint64_t> set = {5, 0, uint64_t{1} << 63, 7};
  const FetchRun row{.before = 200, .tokens = 1};
  const FetchRun plain = ChosenRun(row, set, /*kept=*/0, /*int8=*/false);
  EXPECT_EQ(plain.before, 6u);
  EXPECT_FALSE(plain.chosen);
  const FetchRun chosen = ChosenRun(row, set, /*kept=*/0, /*int8=*/true);
  EXPECT_TRUE(chosen.chosen);
  EXPECT_EQ(chosen.before, 6u);
  EXPECT_EQ(chosen.chosen_closed, 3u);
  EXPECT_EQ(chosen.chosen_blocks, 2u);
  EXPECT_EQ(chosen.tail_fetched(), 3u);
  // Consecutive rows have all tokens, and go block by block.
  const FetchRun rows = ChosenRun({.before = 200, .tokens = 3}, set, /*kept=*/0, /*int8=*/true);
  EXPECT_FALSE(rows.chosen);
  EXPECT_EQ(rows.int8_fetched(), 192u);
}

TEST(TokenSetsTest, TokensThatAreKeptDoNotCome) {
  const std::vector<uint64_t> set = {5, 1};
  const FetchRun run = ChosenRun({.before = 200, .tokens = 1}, set, /*kept=*/17, /*int8=*/false);
  EXPECT_EQ(run.before, 20u);
  EXPECT_EQ(run.fetched(), 3u);
  EXPECT_EQ(run.slots(), 16u);
  EXPECT_EQ(run.filled_slots(), 32u);
}

TEST(TokenSetsTest, WithInt8AWordSaysHowManyAreKeptOfWhichBlocks) {
  const FetchRun row{.before = 200, .tokens = 1};
  const std::vector<uint64_t> kept = {0, 3, ~uint64_t{0}, 7};
  const Int8Tokens tokens = Int8Tokens::Of(row, kept);
  EXPECT_EQ(tokens.closed, 66u);
  EXPECT_EQ(tokens.blocks, 2u);
  EXPECT_EQ(tokens.open, 3u);
  const Int8Tokens read = Int8Tokens::FromWord(tokens.word());
  EXPECT_EQ(read.closed, 66u);
  EXPECT_EQ(read.blocks, 2u);
  EXPECT_EQ(read.open, 3u);
  EXPECT_EQ(Int8Tokens().word(), 0u);

  const std::vector<uint64_t> set = {5, 0, 0, 0};
  const FetchRun run = ChosenRun(row, set, tokens.word(), /*int8=*/true);
  EXPECT_EQ(run.before, 71u);
  EXPECT_EQ(run.kept, 69u);
  EXPECT_EQ(run.fetched(), 2u);
  EXPECT_EQ(run.chosen_closed, 2u);
  EXPECT_EQ(run.chosen_blocks, 1u);
  EXPECT_EQ(run.kept_blocks, 2u);
  EXPECT_EQ(run.kept_open, 3u);
}

TEST(TokenSetsTest, TheFirstTokensAreAWholeSet) {
  for (const uint32_t tokens : {0u, 1u, 63u, 64u, 65u, 128u}) {
    std::vector<uint64_t> set(2, 5);
    TakeFirst(tokens, absl::MakeSpan(set));
    EXPECT_TRUE(IsWhole(set, tokens)) << tokens;
  }
  TakeFirst(0, {});
}

TEST(TokenSetsTest, AWindowHasRoomForASetOfTheLongestSequenceForEachThatHasRows) {
  const EpochConfig config = Sparse();
  EXPECT_EQ(TokenSetsBytesMax(config), 2u * 8 * (16 + 1) * 8);
  const WindowLayout layout(EpochTopology::Create(config).value().window_shape());
  const WindowGroup& group = layout.group(WindowKind::kTokenSets);
  EXPECT_GE(group.window_bytes, sizeof(WindowHeader) + TokenSetsBytesMax(config));
  EXPECT_EQ(layout.query_region_bytes(), group.bytes_end());
  const TokenSetWindows windows(layout);
  EXPECT_EQ(windows.Window(0, 1), windows.Window(0, 0) + group.window_bytes);
  EXPECT_GE(windows.Window(0, 0), layout.group(WindowKind::kQuery).bytes_end());
  EXPECT_EQ(windows.word(0, 1) + 1, layout.query_region_words());
  // Rows of a prompt share one: where a step has rows of fewer sequences, there are fewer sets.
  EpochConfig prompts = config;
  prompts.row_sequences_max = 3;
  EXPECT_EQ(TokenSetsBytesMax(prompts), 2u * 3 * (16 + 1) * 8);
  prompts.row_sequences_max = 100;
  EXPECT_EQ(TokenSetsBytesMax(prompts), TokenSetsBytesMax(config));
  // Each of four spans may have a set of its own, for as many tokens as it has.
  EpochConfig spans = config;
  spans.partition = Partition::kTokenRange;
  spans.span_tokens = 256;
  EXPECT_EQ(TokenSetRunsMax(config), 8u);
  EXPECT_EQ(TokenSetRunsMax(spans), 32u);
  EXPECT_EQ(TokenSetsBytesMax(spans), 2u * 32 * (4 + 1) * 8);
  EpochConfig fetch = config;
  fetch.attention_paths = {AttentionPath::kFetch};
  EXPECT_EQ(TokenSetsBytesMax(fetch), 0u);
}

std::string ErrorOf(const EpochConfig& config) {
  return std::string(EpochTopology::Create(config).status().message());
}

TEST(CheckSparseTest, NamesWhatIsWrong) {
  EXPECT_EQ(ErrorOf(Sparse()), "");
  for (const double ratio : {0.0, -0.5, 1.5}) {
    EpochConfig config = Sparse();
    config.sparse_ratio = ratio;
    EXPECT_THAT(ErrorOf(config), HasSubstr("which is not in (0, 1]"));
  }
  EpochConfig config = Sparse();
  config.attention_paths = {AttentionPath::kFetch};
  EXPECT_THAT(ErrorOf(config), HasSubstr("no path that attends to a part of the tokens"));
  config = Sparse();
  config.sparse_tokens = static_cast<SparseTokens>(3);
  EXPECT_THAT(ErrorOf(config), HasSubstr("chooses tokens by pattern 3"));
  config = Sparse();
  config.layers[1].window = 128;
  EXPECT_THAT(ErrorOf(config), HasSubstr("layers that attend to a window of tokens"));
  config = Sparse();
  config.partition = Partition::kHead;
  config.heads = {{.count = 2}};
  for (const SparseTokens tokens :
       {SparseTokens::kWindowSums, SparseTokens::kLocal, SparseTokens::kStrided}) {
    config.sparse_tokens = tokens;
    EXPECT_EQ(ErrorOf(config), "");
  }
  config = Sparse();
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  EXPECT_THAT(ErrorOf(config), HasSubstr("this version serves partition request or head"));
  config.sparse_ratio = 1;  // All are chosen, and weighed for the next row.
  EXPECT_THAT(ErrorOf(config), HasSubstr("this version serves partition request or head"));
  config.sparse_tokens = SparseTokens::kLocal;
  EXPECT_EQ(ErrorOf(config), "");
  config = Sparse();
  config.compute_nodes = {"c0", "c1"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("to 2 compute nodes"));
}

}  // namespace
}  // namespace lamina::plan
