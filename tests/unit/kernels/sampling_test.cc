// SPDX-License-Identifier: Apache-2.0
//
// Sample() against a second computation that sorts everything and knows no shortcuts, against
// committed results of transformers, and against the distributions it promises.

#include "kernels/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common/philox.h"
#include "tests/support/source_path.h"

namespace lamina::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(size_t size, uint64_t seed, double deviation = 3) {
  Prng prng(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = static_cast<float>(prng.Normal() * deviation);
  }
  return logits;
}

TokenId Pick(absl::Span<const float> logits, const SamplingParams& params, uint64_t position = 0,
             absl::Span<const TokenId> prompt = {}, absl::Span<const TokenId> output = {}) {
  SampleScratch scratch;
  return Sample(logits, params, prompt, output, position, scratch).token;
}

// The probabilities that the contract promises, by full sorts and libm.
std::vector<double> Expected(std::vector<float> logits, const SamplingParams& params,
                             const std::vector<TokenId>& prompt,
                             const std::vector<TokenId>& output) {
  for (const auto& [token, bias] : params.logit_bias) {
    logits[token] += bias;
  }
  std::map<TokenId, int> seen;
  std::map<TokenId, int> written;
  for (const TokenId token : prompt) {
    seen[token]++;
  }
  for (const TokenId token : output) {
    seen[token]++;
    written[token]++;
  }
  for (const auto& [token, count] : seen) {
    logits[token] *= logits[token] > 0 ? 1 / params.repetition_penalty : params.repetition_penalty;
  }
  for (const auto& [token, count] : written) {
    logits[token] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  std::vector<size_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i;
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k != 0 && params.top_k < ids.size()) {
    ids.resize(params.top_k);
  }
  std::vector<double> p(logits.size(), 0);
  double total = 0;
  for (const size_t id : ids) {
    p[id] = std::exp((double{logits[id]} - double{logits[ids[0]]}) / double{params.temperature});
    total += p[id];
  }
  double mass = 0;
  const double largest = p[ids[0]];
  for (const size_t id : ids) {
    const bool drop = mass >= double{params.top_p} * total || p[id] < params.min_p * largest;
    mass += p[id];
    p[id] = drop ? 0 : p[id];
  }
  double kept = 0;
  for (const double x : p) {
    kept += x;
  }
  for (double& x : p) {
    x /= kept;
  }
  return p;
}

// Pearson's statistic over cells of at least 5 expected draws; the rest is one cell.
void ExpectDistribution(const std::vector<double>& expected, const std::vector<int>& counts,
                        int draws) {
  double statistic = 0;
  double rest_expected = 0;
  int rest = 0;
  int cells = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      ASSERT_EQ(counts[i], 0) << "token " << i << " has no probability";
    }
    const double mean = expected[i] * draws;
    if (mean < 5) {
      rest_expected += mean;
      rest += counts[i];
      continue;
    }
    statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++cells;
  }
  if (rest_expected > 0) {
    statistic += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    ++cells;
  }
  // Mean `freedom`, deviation sqrt(2 freedom); the draws are fixed by their seeds, so this either
  // always passes or never.
  const double freedom = cells - 1;
  EXPECT_LT(statistic, freedom + 4 * std::sqrt(2 * freedom) + 1) << cells << " cells";
}

// The generator of tests/fidelity/make_sampling_goldens.py.
std::vector<float> GoldenLogits(uint32_t seed, size_t vocabulary) {
  std::vector<float> logits(vocabulary);
  uint32_t state = seed;
  for (float& logit : logits) {
    state = state * 1664525u + 1013904223u;
    logit = static_cast<float>(static_cast<double>(state >> 8) / 0x1p24 * 12 - 6);
  }
  return logits;
}

SamplingParams GoldenParams(const nlohmann::json& json) {
  SamplingParams params = {.temperature = json["temperature"],
                           .top_k = json["top_k"],
                           .top_p = json["top_p"],
                           .min_p = json["min_p"],
                           .repetition_penalty = json["repetition_penalty"],
                           .seed = json["seed"]};
  for (const auto& [token, bias] : json["bias"].get<std::vector<std::pair<TokenId, float>>>()) {
    params.logit_bias.emplace_back(token, bias);
  }
  return params;
}

TEST(SamplingGoldenTest, DrawsFromTheDistributionsOfTransformers) {
  std::ifstream file(test_support::SourcePath("tests/fidelity/goldens/sampling.json"));
  const nlohmann::json goldens = nlohmann::json::parse(file);
  constexpr int kDraws = 30000;
  ASSERT_FALSE(goldens["cases"].empty());
  for (const nlohmann::json& golden : goldens["cases"]) {
    const std::vector<float> logits = GoldenLogits(golden["seed"], goldens["vocabulary"]);
    const SamplingParams params = GoldenParams(golden);
    const std::vector<TokenId> prompt = golden["tokens"];
    std::vector<double> theirs(logits.size(), 0);
    for (const auto& [token, p] : golden["kept"].get<std::vector<std::pair<size_t, double>>>()) {
      theirs[token] = p;
    }
    const std::vector<double> ours = Expected(logits, params, prompt, {});
    std::vector<int> counts(logits.size(), 0);
    SampleScratch scratch;
    for (int i = 0; i < kDraws; ++i) {
      ++counts[Sample(logits, params, prompt, {}, i, scratch).token];
    }
    SCOPED_TRACE(golden.dump().substr(0, 200));
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i] == 0, theirs[i] == 0) << "token " << i;
      ASSERT_NEAR(ours[i], theirs[i], 2e-6) << "token " << i;
    }
    ExpectDistribution(theirs, counts, kDraws);
  }
}

struct Case {
  std::string name;
  SamplingParams params;
};

class SamplingDistributionTest : public testing::TestWithParam<Case> {};

TEST_P(SamplingDistributionTest, DrawsWhatTheContractPromises) {
  const std::vector<float> logits = RandomLogits(300, 5, 2);
  const std::vector<TokenId> prompt = {1, 2, 3, 3, 250};
  const std::vector<TokenId> output = {7, 7, 7, 9, 2};
  constexpr int kDraws = 40000;

  std::vector<int> counts(logits.size(), 0);
  SampleScratch scratch;
  for (int i = 0; i < kDraws; ++i) {
    const SampleResult result = Sample(logits, GetParam().params, prompt, output, i, scratch);
    ++counts[result.token];
  }

  ExpectDistribution(Expected(logits, GetParam().params, prompt, output), counts, kDraws);
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, SamplingDistributionTest,
    testing::Values(
        Case{"Temperature1", {.temperature = 1.0f, .seed = 11}},
        Case{"Temperature2", {.temperature = 2.5f, .seed = 12}},
        Case{"TemperatureLow", {.temperature = 0.3f, .seed = 13}},
        Case{"TopK5", {.temperature = 1.0f, .top_k = 5, .seed = 14}},
        Case{"TopK1", {.temperature = 1.0f, .top_k = 1, .seed = 14}},
        Case{"TopKAll", {.temperature = 1.0f, .top_k = 1000, .seed = 15}},
        Case{"TopP", {.temperature = 1.0f, .top_p = 0.7f, .seed = 16}},
        Case{"TopPTiny", {.temperature = 1.0f, .top_p = 1e-6f, .seed = 16}},
        Case{"TopPNearlyAll", {.temperature = 1.5f, .top_p = 0.999f, .seed = 17}},
        Case{"MinP", {.temperature = 1.0f, .min_p = 0.1f, .seed = 18}},
        Case{"MinPOne", {.temperature = 1.0f, .min_p = 1.0f, .seed = 18}},
        Case{"Repetition", {.temperature = 1.0f, .repetition_penalty = 1.8f, .seed = 19}},
        Case{"RepetitionBelowOne", {.temperature = 1.0f, .repetition_penalty = 0.5f, .seed = 20}},
        Case{"Presence", {.temperature = 1.0f, .presence_penalty = 1.5f, .seed = 21}},
        Case{"Frequency", {.temperature = 1.0f, .frequency_penalty = -1.2f, .seed = 22}},
        Case{"Bias", {.temperature = 1.0f, .logit_bias = {{4, 6.0f}, {5, -100.0f}}, .seed = 23}},
        Case{"Everything",
             {.temperature = 1.3f,
              .top_k = 60,
              .top_p = 0.9f,
              .min_p = 0.02f,
              .repetition_penalty = 1.2f,
              .presence_penalty = 0.5f,
              .frequency_penalty = 0.3f,
              .logit_bias = {{7, 5.0f}, {100, 4.0f}},
              .seed = 24}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(SamplingTest, GreedyTakesTheSmallestIdAmongTheLargest) {
  for (size_t size : {1, 15, 16, 17, 1000}) {
    for (size_t at : {size_t{0}, size / 2, size - 1}) {
      std::vector<float> logits(size, -1.0f);
      logits[at] = 2.0f;
      logits[size - 1] = 2.0f;
      EXPECT_EQ(Pick(logits, {}), static_cast<TokenId>(at)) << size;
    }
  }
  EXPECT_EQ(Pick(std::vector<float>{-0.0f, 0.0f}, {}), 0) << "both zeros are the same";
}

TEST(SamplingTest, SkipsNanAndMinusInfinity) {
  const std::vector<float> logits = {kNan, -kInf, 1.0f, kNan, 0.5f};
  EXPECT_EQ(Pick(logits, {}), 2);
  for (uint64_t position = 0; position < 200; ++position) {
    const TokenId token = Pick(logits, {.temperature = 5.0f, .top_p = 0.99f}, position);
    EXPECT_TRUE(token == 2 || token == 4) << token;
    EXPECT_EQ(Pick(logits, {.temperature = 1.0f, .top_k = 1}, position), 2);
  }
}

TEST(SamplingTest, ReturnsTokenZeroWhenNothingIsPossible) {
  for (const float worthless : {-kInf, kNan}) {
    const std::vector<float> logits(40, worthless);
    SampleScratch scratch;
    for (const float temperature : {0.0f, 1.0f}) {
      const SamplingParams params = {.temperature = temperature, .top_p = 0.5f, .logprobs = 2};
      const SampleResult result = Sample(logits, params, {}, {}, 0, scratch);
      EXPECT_EQ(result.token, 0);
      EXPECT_EQ(result.logprob, -kInf);
      EXPECT_EQ(result.top.size(), 2u);
    }
  }
}

TEST(SamplingTest, PlusInfinityTakesEverything) {
  const std::vector<float> logits = {1.0f, kInf, 3.0f, kInf};
  SampleScratch scratch;
  for (uint64_t position = 0; position < 100; ++position) {
    const SamplingParams params = {.temperature = 1.0f, .top_p = 0.9f, .logprobs = 1};
    const SampleResult result = Sample(logits, params, {}, {}, position, scratch);
    EXPECT_EQ(result.token % 2, 1);
    EXPECT_FLOAT_EQ(result.logprob, std::log(0.5f));
  }
}

TEST(SamplingTest, SurvivesExtremeTemperatures) {
  const std::vector<float> logits = {1.0f, 1.5f, 1.5f, -80.0f, 3e38f, -3e38f};
  EXPECT_EQ(Pick(logits, {.temperature = 1e-38f, .top_p = 0.5f}), 4);
  EXPECT_EQ(Pick(logits, {.temperature = std::numeric_limits<float>::denorm_min()}), 4);
  std::vector<int> counts(2, 0);
  const std::vector<float> pair = {-5.0f, 5.0f};
  for (uint64_t position = 0; position < 2000; ++position) {
    ++counts[Pick(pair, {.temperature = 1e30f}, position)];
  }
  EXPECT_NEAR(counts[0], 1000, 100) << "an endless temperature makes everything equal";
}

TEST(SamplingTest, TiesAtTheEdgeGoToTheSmallerId) {
  const std::vector<float> logits(100, 1.0f);
  for (uint64_t position = 0; position < 300; ++position) {
    EXPECT_LT(Pick(logits, {.temperature = 1.0f, .top_k = 3}, position), 3);
    EXPECT_LT(Pick(logits, {.temperature = 1.0f, .top_p = 0.045f}, position), 5);
  }
}

TEST(SamplingTest, SameSeedAndPositionSameTokenWhateverCameBefore) {
  const std::vector<float> logits = RandomLogits(5000, 3);
  const SamplingParams params = {.temperature = 1.0f, .top_p = 0.95f, .seed = 77};
  std::vector<TokenId> forward;
  SampleScratch scratch;
  for (uint64_t position = 0; position < 64; ++position) {
    forward.push_back(Sample(logits, params, {}, {}, position, scratch).token);
  }

  for (uint64_t position = 64; position-- > 0;) {
    const SamplingParams other = {.temperature = 1.0f, .frequency_penalty = 1.0f, .seed = 5};
    Sample(logits, other, {}, forward, position, scratch);
    EXPECT_EQ(Sample(logits, params, {}, {}, position, scratch).token, forward[position]);
  }
  EXPECT_THAT(scratch.counts, testing::Each(0u));
}

TEST(SamplingTest, SeedsAndPositionsGiveDifferentTokens) {
  const std::vector<float> logits(1000, 0.0f);
  std::map<TokenId, int> by_seed;
  std::map<TokenId, int> by_position;
  for (uint64_t i = 0; i < 100; ++i) {
    ++by_seed[Pick(logits, {.temperature = 1.0f, .seed = i})];
    ++by_position[Pick(logits, {.temperature = 1.0f}, i)];
  }
  EXPECT_GT(by_seed.size(), 80u);
  EXPECT_GT(by_position.size(), 80u);
}

TEST(SamplingTest, PenaltiesSteerGreedyToo) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.9f};
  const std::vector<TokenId> seen = {1};
  EXPECT_EQ(Pick(logits, {.repetition_penalty = 1.5f}, 1, seen), 2);
  EXPECT_EQ(Pick(logits, {.presence_penalty = 0.2f}, 1, {}, seen), 2);
  EXPECT_EQ(Pick(logits, {.presence_penalty = 0.2f}, 1, seen), 1) << "the prompt is exempt";
  EXPECT_EQ(Pick(logits, {.frequency_penalty = 0.2f}, 1, {}, seen), 2);
  EXPECT_EQ(Pick(logits, {.logit_bias = {{0, 5.0f}}}), 0);
}

TEST(SamplingTest, PassesOverIdsOutsideTheVocabulary) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  const std::vector<TokenId> strange = {-1, 3, 1 << 30};
  const SamplingParams params = {.repetition_penalty = 2.0f,
                                 .presence_penalty = 1.0f,
                                 .logit_bias = {{-1, 50.0f}, {3, 50.0f}}};
  EXPECT_EQ(Pick(logits, params, 1, strange, strange), 1);
}

TEST(SamplingTest, LogprobsAreThoseOfTheRawLogits) {
  const std::vector<float> logits = {1.0f, 2.0f, kNan, 2.0f, -kInf};
  SampleScratch scratch;
  const SamplingParams params = {.temperature = 0.5f, .logit_bias = {{0, 50.0f}}, .logprobs = 3};

  const SampleResult result = Sample(logits, params, {}, {}, 0, scratch);

  const double sum = std::exp(1.0) + 2 * std::exp(2.0);
  EXPECT_EQ(result.token, 0);
  EXPECT_FLOAT_EQ(result.logprob, static_cast<float>(1 - std::log(sum)));
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_EQ(result.top[1].token, 3);
  EXPECT_EQ(result.top[2].token, 0);
  EXPECT_FLOAT_EQ(result.top[0].logprob, static_cast<float>(2 - std::log(sum)));
  EXPECT_EQ(result.top[2].logprob, result.logprob);
  EXPECT_EQ(LogProbability(logits, 2), -kInf);
  EXPECT_EQ(LogProbability(logits, 4), -kInf);
}

TEST(SamplingTest, RanksAreThoseOfASortOfEverything) {
  std::vector<float> logits = RandomLogits(3000, 11);
  logits[7] = logits[2000];  // A tie.
  logits[8] = kNan;
  logits[9] = -kInf;
  std::vector<TokenId> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<TokenId>(i);
  }
  const auto key = [&](TokenId id) { return std::isnan(logits[id]) ? -kInf : logits[id]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return key(a) > key(b); });
  SampleScratch scratch;
  for (size_t place = 0; place < order.size(); place += place < 40 ? 1 : 97) {
    const TokenRank ranked = RankOf(logits, order[place], 5, scratch);
    ASSERT_EQ(ranked.rank, place + 1);
    ASSERT_EQ(ranked.top.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(ranked.top[i].token, order[i]);
      EXPECT_EQ(ranked.top[i].logprob, LogProbability(logits, order[i]));
    }
  }
  EXPECT_EQ(RankOf(logits, 2000, 0, scratch).rank, RankOf(logits, 7, 0, scratch).rank + 1);
  EXPECT_TRUE(RankOf(logits, 7, 0, scratch).top.empty());
}

TEST(SamplingTest, ZeroLogprobsReportsTheTokenAlone) {
  SampleScratch scratch;
  const SampleResult result = Sample(std::vector<float>{0, 0}, {.logprobs = 0}, {}, {}, 0, scratch);
  EXPECT_FLOAT_EQ(result.logprob, std::log(0.5f));
  EXPECT_TRUE(result.top.empty());
}

TEST(SamplingTest, LogProbabilitiesOfALargeVocabularySumToOne) {
  const std::vector<float> logits = RandomLogits(20000, 9, 4);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); i += 100) {
    double exact = 0;
    for (const float logit : logits) {
      exact += std::exp(double{logit} - double{logits[i]});
    }
    ASSERT_NEAR(LogProbability(logits, static_cast<TokenId>(i)), -std::log(exact), 2e-6);
    sum += 1;
  }
  EXPECT_EQ(sum, 200);
}

// Tokens that are not allowed are as if their logits were -inf, whatever the parameters.
TEST(AllowedTest, OnlyAllowedTokensAreSampled) {
  const std::vector<float> logits = RandomLogits(100, 5);
  const std::vector<uint32_t> allowed = {0x00000010, 0x80000001, 0, 0};  // 4, 32, 63.
  std::vector<float> only(logits.size(), -kInf);
  for (const size_t token : {4, 32, 63}) {
    only[token] = logits[token];
  }
  const std::vector<SamplingParams> all_params = {
      {},
      {.temperature = 1, .seed = 3},
      {.temperature = 2, .top_k = 2, .seed = 3},
      {.temperature = 1, .top_p = 0.6f, .presence_penalty = 2, .seed = 3},
      {.temperature = 1, .logit_bias = {{5, 100}, {32, 3}}, .seed = 3}};
  SampleScratch scratch;
  for (const SamplingParams& params : all_params) {
    for (uint64_t position = 0; position < 50; ++position) {
      const std::vector<TokenId> output = {63, 63};
      const TokenId token = Sample(logits, params, {}, output, position, scratch, allowed).token;
      EXPECT_EQ(token, Sample(only, params, {}, output, position, scratch).token);
    }
  }
}

// Penalties see the logits as they are: 3 of one that was seen becomes 1.5, below 2.
TEST(AllowedTest, AListOfTokensKeepsTheOthersOutAndTheirLogitsAsTheyAre) {
  const std::vector<float> logits = {9.0f, 3.0f, 2.0f, -1.0f, 8.0f};
  SamplingParams params = {.repetition_penalty = 2.0f, .allowed_tokens = {1, 2, 3, -1, 5}};
  EXPECT_EQ(Pick(logits, params), 1);
  EXPECT_EQ(Pick(logits, params, 1, std::vector<TokenId>{1}), 2);
  params.logit_bias = {{3, 9.0f}, {4, 100.0f}};
  EXPECT_EQ(Pick(logits, params), 3) << "a bias is added to the allowed ones";

  SampleScratch scratch;
  const std::vector<uint32_t> mask = {0b10110};
  EXPECT_EQ(Sample(logits, params, {}, {}, 0, scratch, mask).token, 1) << "of 1, 2 and 4";
  for (uint64_t position = 0; position < 50; ++position) {
    const TokenId token =
        Pick(logits, {.temperature = 5, .allowed_tokens = {1, 3}, .seed = 7}, position);
    EXPECT_TRUE(token == 1 || token == 3) << token;
  }
}

TEST(AllowedTest, LogprobsStayThoseOfTheRawLogits) {
  const std::vector<float> logits = RandomLogits(40, 6);
  const std::vector<uint32_t> allowed = {1u << 7};  // Behind its end nothing is allowed.
  SampleScratch scratch;

  const SampleResult result = Sample(logits, {.logprobs = 2}, {}, {}, 0, scratch, allowed);

  EXPECT_EQ(result.token, 7);
  EXPECT_EQ(result.logprob, LogProbability(logits, 7));
  const SampleResult free = Sample(logits, {.logprobs = 2}, {}, {}, 0, scratch);
  ASSERT_EQ(result.top.size(), free.top.size());
  for (size_t i = 0; i < free.top.size(); ++i) {
    EXPECT_EQ(result.top[i].token, free.top[i].token);
    EXPECT_EQ(result.top[i].logprob, free.top[i].logprob);
  }
}

}  // namespace
}  // namespace lamina::kernels
