// SPDX-License-Identifier: Apache-2.0
//
// The search against a plain one that looks at all of a small vocabulary.

#include "coordinator/core/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "common/philox.h"

namespace lamina::core {
namespace {

using Tokens = std::vector<TokenId>;

// Log-probabilities that a sequence of tokens decides.
class Table {
 public:
  Table(uint64_t seed, int vocabulary) : seed_(seed), vocabulary_(vocabulary) {}
  std::vector<plan::TokenLogprob> All(const Tokens& before) const {
    uint64_t state = seed_;
    for (const TokenId token : before) {
      state =
          state * 6364136223846793005ULL + static_cast<uint64_t>(token) + 1442695040888963407ULL;
    }
    Prng random(state);
    std::vector<double> weights(static_cast<size_t>(vocabulary_));
    for (double& weight : weights) {
      weight = std::exp(3 * random.Uniform());
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<plan::TokenLogprob> all;
    for (int token = 0; token < vocabulary_; ++token) {
      all.push_back(
          {token, static_cast<float>(std::log(weights[static_cast<size_t>(token)] / sum))});
    }
    return all;
  }
  std::vector<plan::TokenLogprob> Best(const Tokens& before, uint32_t count) const {
    std::vector<plan::TokenLogprob> all = All(before);
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
    all.resize(std::min<size_t>(all.size(), count));
    return all;
  }

 private:
  const uint64_t seed_;
  const int vocabulary_;
};

struct Found {
  Tokens tokens;
  double score = 0;
};

// As transformers writes it down: two lists, of what runs and of what has ended.
std::vector<Found> PlainSearch(const Table& table, const BeamParams& params,
                               const BeamLimits& limits) {
  std::vector<Found> running = {{}};
  std::vector<Found> ended;
  const auto worth = [&](double sum, size_t tokens) {
    return sum / std::pow(static_cast<double>(tokens), params.length_penalty);
  };
  const auto better = [](const Found& a, const Found& b) { return a.score > b.score; };
  for (size_t length = 1; limits.prompt_tokens + length <= limits.tokens_max; ++length) {
    std::vector<Found> all;
    for (const Found& beam : running) {
      for (const plan::TokenLogprob& next : table.All(beam.tokens)) {
        Found longer = {beam.tokens, beam.score + next.logprob};
        longer.tokens.push_back(next.token);
        all.push_back(longer);
      }
    }
    std::stable_sort(all.begin(), all.end(), better);
    running.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const size_t tokens = limits.prompt_tokens + length;
      const bool ends = tokens == limits.tokens_max ||
                        (tokens >= limits.tokens_min &&
                         std::count(limits.end_tokens.begin(), limits.end_tokens.end(),
                                    all[rank].tokens.back()) > 0);
      if (ends && rank < params.width) {
        ended.push_back({all[rank].tokens, worth(all[rank].score, length)});
      } else if (!ends && running.size() < params.width) {
        running.push_back(all[rank]);
      }
    }
    std::stable_sort(ended.begin(), ended.end(), better);
    ended.resize(std::min<size_t>(ended.size(), params.width));
    if (ended.size() < params.width || running.empty()) {
      continue;
    }
    const bool never = params.early_stopping == BeamStop::kNever && params.length_penalty > 0;
    const size_t reach = never ? limits.tokens_max - limits.prompt_tokens : length;
    if (params.early_stopping == BeamStop::kFull ||
        worth(running[0].score, reach) <= ended.back().score) {
      break;
    }
  }
  return ended;
}

Tokens TokensOf(const std::vector<BeamSearch::BeamToken>& tokens) {
  Tokens ids;
  for (const BeamSearch::BeamToken& token : tokens) {
    ids.push_back(token.token);
  }
  return ids;
}

using Case = std::tuple<uint32_t, double, BeamStop>;
class BeamSearchTest : public testing::TestWithParam<Case> {};

TEST_P(BeamSearchTest, FindsWhatAPlainSearchOverTheWholeVocabularyFinds) {
  const auto [width, penalty, stop] = GetParam();
  const BeamParams params{.width = width, .length_penalty = penalty, .early_stopping = stop};
  size_t stopped = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Table table(seed, 23);
    BeamLimits limits{.prompt_tokens = 3, .tokens_max = static_cast<uint32_t>(4 + seed % 12)};
    limits.tokens_min = seed % 3 == 0 ? 6 : 0;
    for (uint64_t end = 0; end < seed % 5; ++end) {
      limits.end_tokens.push_back(static_cast<TokenId>(end * 5));
    }
    BeamSearch search(params, limits);
    const uint32_t candidates = BeamCandidates(params, limits.end_tokens.size());
    while (!search.beams().empty()) {
      std::vector<std::vector<plan::TokenLogprob>> rows;
      std::vector<Tokens> before;
      for (const BeamSearch::Beam& beam : search.beams()) {
        before.push_back(TokensOf(beam.tokens));
        rows.push_back(table.Best(before.back(), candidates));
      }
      const std::vector<uint32_t> parents = search.Advance(rows);
      ASSERT_EQ(parents.size(), search.beams().size());
      for (size_t i = 0; i < parents.size(); ++i) {
        Tokens tokens = TokensOf(search.beams()[i].tokens);
        tokens.pop_back();
        EXPECT_EQ(tokens, before.at(parents[i]));
      }
    }
    const std::vector<Found> plain = PlainSearch(table, params, limits);
    ASSERT_EQ(search.answers().size(), plain.size()) << "seed " << seed;
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(TokensOf(search.answers()[i].tokens), plain[i].tokens) << "seed " << seed;
      EXPECT_NEAR(search.answers()[i].score, plain[i].score, 1e-12);
      stopped += search.answers()[i].reason == plan::FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GT(stopped, 0u) << "answers must end by tokens too";
}

INSTANTIATE_TEST_SUITE_P(
    All, BeamSearchTest,
    testing::Combine(testing::Values(1u, 2u, 3u, 5u), testing::Values(-1.0, 0.0, 1.0, 2.5),
                     testing::Values(BeamStop::kHeuristic, BeamStop::kFull, BeamStop::kNever)));

TEST(BeamSearchRowsTest, WhatHasNoFiniteLogProbabilityIsNoCandidate) {
  BeamSearch search({.width = 2}, {.prompt_tokens = 1, .tokens_max = 4});
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(search.Advance({{{{7, -1.0f}, {8, -infinity}, {9, nan}}}}), std::vector<uint32_t>{0});
  EXPECT_EQ(search.beams().size(), 1u);
  EXPECT_TRUE(search.Advance({{{{7, nan}}}}).empty());
  EXPECT_TRUE(search.beams().empty() && search.answers().empty());
}

TEST(BeamSearchRowsTest, AlternativesOfTokensAreTheFirstOfTheirRow) {
  BeamSearch search({.width = 1}, {.prompt_tokens = 1, .tokens_max = 2, .top = 1});
  search.Advance({{{{7, -1.0f}, {8, -2.0f}}}});
  ASSERT_EQ(search.answers().size(), 1u);
  const BeamSearch::BeamToken& token = search.answers()[0].tokens[0];
  EXPECT_EQ(token.token, 7);
  ASSERT_EQ(token.top.size(), 1u);
  EXPECT_EQ(token.top[0].token, 7);
}

TEST(BeamParamsTest, WidthAndLengthPenaltyHaveBounds) {
  EXPECT_TRUE((BeamParams{.width = 10, .length_penalty = -3}).Validate().ok());
  EXPECT_EQ((BeamParams{.width = 11}).Validate().message(),
            "beam_width is 11; it must be in [1, 10]");
  EXPECT_FALSE((BeamParams{.width = 1, .length_penalty = std::nan("")}).Validate().ok());
  EXPECT_FALSE((BeamParams{.width = 1, .length_penalty = 101}).Validate().ok());
}

}  // namespace
}  // namespace lamina::core
