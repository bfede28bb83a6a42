// SPDX-License-Identifier: Apache-2.0
#include "plan/streaming_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace lamina::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Whether a row at `position` sees the token, as the definition says it.
bool Sees(const StreamingHeads& streaming, int64_t position, int64_t token) {
  return token <= position && (token < streaming.sink || token > position - streaming.window);
}

class StreamingTokensTest : public ::testing::TestWithParam<StreamingHeads> {};

TEST_P(StreamingTokensTest, ARowSeesTheFirstAndTheLastTokens) {
  for (uint32_t position = 0; position < 200; ++position) {
    const SeenTokens seen = SeenAt(GetParam(), position);
    for (uint32_t token = 0; token <= position + 3; ++token) {
      const bool is_seen = token < seen.sink || (token >= seen.first && token <= position);
      ASSERT_EQ(is_seen, Sees(GetParam(), position, token)) << position << " sees " << token;
    }
  }
}

// There come all tokens before a run that any of its rows sees, and at most two tiles more.
TEST_P(StreamingTokensTest, WhatComesIsWhatRowsSeeInWholeTiles) {
  for (uint32_t before = 0; before < 200; ++before) {
    const TokenGap gap = GapBefore(GetParam(), before);
    EXPECT_EQ(gap.first % kFetchTile, 0u);
    EXPECT_EQ(gap.end % kFetchTile, 0u);
    EXPECT_LE(gap.end, before);
    uint32_t come = 0;
    uint32_t needed = 0;
    for (uint32_t token = 0; token < before; ++token) {
      const bool comes = token < gap.first || token >= gap.end;
      come += comes;
      needed += Sees(GetParam(), before, token);
      for (uint32_t row = 0; row < 40; ++row) {
        ASSERT_TRUE(comes || !Sees(GetParam(), before + row, token))
            << "row " << before + row << " sees token " << token << ", which does not come";
      }
    }
    EXPECT_LT(come, needed + 2 * kFetchTile);
    EXPECT_EQ(WithoutGap({.before = before, .tokens = 7}, gap).before, come);
    EXPECT_EQ(WithoutGap({.before = before, .tokens = 7}, gap).tokens, 7u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StreamingTokensTest,
                         ::testing::Values(StreamingHeads{.sink = 0, .window = 1},
                                           StreamingHeads{.sink = 16, .window = 64},
                                           StreamingHeads{.sink = 5, .window = 37},
                                           StreamingHeads{.sink = 100, .window = 3},
                                           StreamingHeads{.sink = 33, .window = 300},
                                           StreamingHeads{.sink = kStreamingTokensMax,
                                                          .window = kStreamingTokensMax}));

TEST(AlikeHeadsTest, HeadsThatFollowEachOtherAndAreAlikeAreOneRange) {
  const StreamingHeads streaming{.window = 1, .layers = {{0, 3, 4}, {}, {0, 1}}};
  EXPECT_THAT(AlikeHeadsOf(streaming, 0, {.first = 0, .count = 6}),
              ElementsAre(AlikeHeads{{0, 1}, true}, AlikeHeads{{1, 2}, false},
                          AlikeHeads{{3, 2}, true}, AlikeHeads{{5, 1}, false}));
  // A part is counted from its first head.
  EXPECT_THAT(AlikeHeadsOf(streaming, 0, {.first = 2, .count = 2}),
              ElementsAre(AlikeHeads{{0, 1}, false}, AlikeHeads{{1, 1}, true}));
  EXPECT_THAT(AlikeHeadsOf(streaming, 1, {.first = 0, .count = 6}),
              ElementsAre(AlikeHeads{{0, 6}, false}));
  EXPECT_THAT(AlikeHeadsOf(streaming, 2, {.first = 0, .count = 2}),
              ElementsAre(AlikeHeads{{0, 2}, true}));
  EXPECT_THAT(AlikeHeadsOf(streaming, 2, {}), ElementsAre());
}

TEST(StreamingHeadsTest, TheWordTellsHeadsSinkAndWindowApart) {
  const StreamingHeads one{.sink = 4, .window = 8, .layers = {{0}, {}}};
  std::vector<StreamingHeads> others(5, one);
  others[0].sink = 5;
  others[1].window = 9;
  others[2].layers = {{}, {0}};
  others[3].layers = {{1}, {}};
  others[4].layers = {{0}};
  std::set<std::string> words = {one.Word()};
  for (const StreamingHeads& other : others) {
    words.insert(other.Word());
  }
  EXPECT_EQ(words.size(), 6u);
  EXPECT_EQ(StreamingHeads(one).Word(), one.Word());
  EXPECT_THAT(one.Word(), HasSubstr("1_heads-sink_4-window_8-"));
}

class CheckStreamingTest : public ::testing::Test {
 protected:
  std::string Error() const { return std::string(CheckStreaming(config_).message()); }
  const AttentionDescriptor layer_{.query_heads = 4, .kv_heads = 2, .head_dim = 16};
  EpochConfig config_{.layers = {layer_, layer_},
                      .attention_paths = {AttentionPath::kStreaming},
                      .streaming = {.sink = 4, .window = 8, .layers = {{1}, {}}}};
};

TEST_F(CheckStreamingTest, HeadsOfTheModelAreServed) {
  EXPECT_TRUE(CheckStreaming(config_).ok()) << CheckStreaming(config_);
  EXPECT_TRUE(CheckStreaming(EpochConfig()).ok());
}

TEST_F(CheckStreamingTest, HeadsWithoutThePathAndThePathWithoutHeadsAreRefused) {
  config_.attention_paths = {AttentionPath::kFetch};
  EXPECT_THAT(Error(), HasSubstr("has heads that stream and no path on which they do"));
  config_.attention_paths = {AttentionPath::kStreaming};
  config_.streaming.layers = {{}, {}};
  EXPECT_THAT(Error(), HasSubstr("names 0 heads that stream"));
}

TEST_F(CheckStreamingTest, HeadsThatTheModelDoesNotHaveAreRefused) {
  config_.streaming.layers = {{1}};
  EXPECT_THAT(Error(), HasSubstr("in 1 layers, of 2"));
  config_.streaming.layers = {{1}, {2}};
  EXPECT_THAT(Error(), HasSubstr("names KV heads of layer 1"));
  config_.streaming.layers = {{1, 0}, {}};
  EXPECT_THAT(Error(), HasSubstr("names KV heads of layer 0"));
  config_.streaming.layers = {{1, 1}, {}};
  EXPECT_THAT(Error(), HasSubstr("names KV heads of layer 0"));
}

TEST_F(CheckStreamingTest, AWindowOfNoTokensAndTooManyAreRefused) {
  config_.streaming.window = 0;
  EXPECT_THAT(Error(), HasSubstr("a window of 0 tokens"));
  config_.streaming.window = kStreamingTokensMax + 1;
  EXPECT_THAT(Error(), HasSubstr("are not in [0, "));
  config_.streaming.window = 8;
  config_.streaming.sink = kStreamingTokensMax + 1;
  EXPECT_THAT(Error(), HasSubstr("are not in [0, "));
}

TEST_F(CheckStreamingTest, WhatIsNotServedWithItIsRefused) {
  EpochConfig windows = config_;
  windows.layers[1].window = 32;
  EXPECT_THAT(std::string(CheckStreaming(windows).message()),
              HasSubstr("a layer 1 that attends to a window of 32 tokens"));
  EpochConfig int8 = config_;
  int8.int8_tails = 4;
  EXPECT_THAT(std::string(CheckStreaming(int8).message()), HasSubstr("INT8 or activations"));
  EpochConfig activations = config_;
  activations.activation_width = 4;
  EXPECT_THAT(std::string(CheckStreaming(activations).message()), HasSubstr("INT8 or activations"));
}

}  // namespace
}  // namespace lamina::plan
