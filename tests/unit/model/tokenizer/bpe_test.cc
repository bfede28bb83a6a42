// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TokenId> Encode(BpeOptions options, absl::string_view piece) {
  const auto model = BpeModel::Create(std::move(options));
  EXPECT_TRUE(model.ok()) << model.status();
  BpeModel::Scratch scratch;
  std::vector<TokenId> out;
  model->Encode(piece, &scratch, &out);
  return out;
}

BpeOptions Letters() {
  return {.vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}},
          .merges = {{"b", "c"}, {"a", "b"}}};
}

TEST(BpeTest, MergesTheEarliestPairFirst) {
  EXPECT_THAT(Encode(Letters(), "abc"), ElementsAre(0, 4));
  EXPECT_THAT(Encode(Letters(), "abab"), ElementsAre(3, 3));
  EXPECT_THAT(Encode(Letters(), ""), ElementsAre());
}

TEST(BpeTest, AWholeEntryMayGoBeforeItsMerges) {
  BpeOptions options = Letters();
  options.ignore_merges = true;

  EXPECT_THAT(Encode(std::move(options), "abc"), ElementsAre(5));
}

TEST(BpeTest, DropsCharactersWithoutEntryWhenThereIsNoUnknown) {
  EXPECT_THAT(Encode(Letters(), "axb"), ElementsAre(3));
}

TEST(BpeTest, UnknownStandsForEachCharacterOrForARun) {
  BpeOptions options = Letters();
  options.unknown = 9;
  EXPECT_THAT(Encode(options, "xya"), ElementsAre(9, 9, 0));

  options.fuse_unknown = true;
  EXPECT_THAT(Encode(options, "xya"), ElementsAre(9, 0));
}

TEST(BpeTest, TellsHowMuchATokenStandsForUnlessSomethingIsDropped) {
  const auto most = [](BpeOptions options) {
    return BpeModel::Create(std::move(options))
        ->piece_bound(/*spelled=*/false)
        .bytes_per_token_max();
  };
  BpeOptions options = Letters();
  EXPECT_EQ(most(options), 0u) << "characters without entry are dropped";
  options.unknown = 9;
  EXPECT_EQ(most(options), 4u) << "an unknown character, which is longer than any entry";
  options.vocabulary.emplace("abcde", 6);
  EXPECT_EQ(most(options), 5u);
  options.fuse_unknown = true;
  EXPECT_EQ(most(options), 0u) << "unknown characters share a token";
}

TEST(BpeTest, FallsBackToBytesWhenItHasThemAll) {
  BpeOptions options = Letters();
  options.unknown = 9;
  options.byte_fallback = true;
  options.vocabulary["<0xC3>"] = 10;
  options.vocabulary["<0xA9>"] = 11;

  EXPECT_THAT(Encode(options, "\u00e9\u00e8"), ElementsAre(10, 11, 9));
}

TEST(BpeTest, RefusesAMergeOutsideTheVocabulary) {
  BpeOptions options = Letters();
  options.merges.emplace_back("c", "a");

  const absl::Status status = BpeModel::Create(std::move(options)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("merge 2"));
}

}  // namespace
}  // namespace lamina::model
