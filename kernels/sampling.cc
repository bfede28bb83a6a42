// SPDX-License-Identifier: Apache-2.0
//
// Sampling without a sort of the vocabulary: greedy is a scan; top-k and top-p are a cut of the
// logits that halving finds (cpu/logit_cut.h); a draw looks for the block of tokens in which it
// falls, and at that block's tokens alone.
//
// The candidates are always walked in the order of their ids, so every sum has one order. Nothing
// here calls libm between the logits and the token, and no product is fused: the same logits give
// the same token on every processor.

#include "kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "common/philox.h"
#include "kernels/cpu/logit_cut.h"
#include "kernels/cpu/logit_passes.h"

namespace lamina::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.4426950408889634;

// What passes may write behind a list of candidates.
constexpr size_t kListSlack = 16;

// ln(x) for normal x, relative error below 1e-15: the exponent, and twice the area tangent of
// (m - 1) / (m + 1) for the fraction m in [sqrt(1/2), sqrt(2)).
double Ln(double x) {
  constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  constexpr double kLn2 = 0.6931471805599453;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kSqrtHalfBits) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (m - 1) / (m + 1);  // |s| < 0.1716
  const double square = s * s;
  double series = 1.0 / 21;
  for (int odd = 19; odd >= 1; odd -= 2) {
    series = series * square + 1.0 / odd;
  }
  return static_cast<double>(exponent) * kLn2 + 2 * s * series;
}

// The smallest id with the largest logit; 0 when there is nothing above -inf.
TokenId Greedy(absl::Span<const float> logits) {
  const float largest = cpu::LargestLogit(logits);
  if (largest == kLowest) {
    return 0;
  }
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

// Puts the ids of the `count` best logits into `order`, best first, ties to the smaller id.
void SelectBest(absl::Span<const float> logits, size_t count, std::vector<uint32_t>& order) {
  const auto key = [&](uint32_t id) { return std::isnan(logits[id]) ? kLowest : logits[id]; };
  const auto better = [&](uint32_t a, uint32_t b) {
    return key(a) > key(b) || (key(a) == key(b) && a < b);
  };
  order.clear();
  count = std::min(count, logits.size());
  if (count == 0) {
    return;
  }
  for (uint32_t id = 0; id < count; ++id) {
    order.push_back(id);
  }
  std::make_heap(order.begin(), order.end(), better);  // The worst of the best is in front.
  float worst = key(order.front());
  // An equal one has a larger id: it loses.
  for (size_t id = cpu::NextAbove(logits, count, worst); id < logits.size();
       id = cpu::NextAbove(logits, id + 1, worst)) {
    std::pop_heap(order.begin(), order.end(), better);
    order.back() = static_cast<uint32_t>(id);
    std::push_heap(order.begin(), order.end(), better);
    worst = key(order.front());
  }
  std::sort_heap(order.begin(), order.end(), better);
}

bool ChangesLogits(const SamplingParams& params) {
  return !params.logit_bias.empty() || !params.allowed_tokens.empty() ||
         params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

void AddBias(const SamplingParams& params, std::vector<float>& logits) {
  for (const auto& [token, bias] : params.logit_bias) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) {
      logits[token] += bias;
    }
  }
}

void PenaliseRepetition(float penalty, absl::Span<const TokenId> prompt,
                        absl::Span<const TokenId> output, std::vector<float>& logits,
                        std::vector<uint32_t>& seen) {
  for (const absl::Span<const TokenId> tokens : {prompt, output}) {
    for (const TokenId token : tokens) {
      if (static_cast<size_t>(token) < logits.size() && seen[token]++ == 0) {
        logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
      }
    }
  }
  for (const absl::Span<const TokenId> tokens : {prompt, output}) {
    for (const TokenId token : tokens) {
      if (static_cast<size_t>(token) < logits.size()) {
        seen[token] = 0;
      }
    }
  }
}

void PenalisePresenceAndFrequency(const SamplingParams& params, absl::Span<const TokenId> output,
                                  std::vector<float>& logits, std::vector<uint32_t>& counts) {
  for (const TokenId token : output) {
    if (static_cast<size_t>(token) < logits.size()) {
      ++counts[token];
    }
  }
  for (const TokenId token : output) {
    if (static_cast<size_t>(token) < logits.size() && counts[token] != 0) {
      logits[token] -=
          params.presence_penalty + params.frequency_penalty * static_cast<float>(counts[token]);
      counts[token] = 0;
    }
  }
}

void KeepAllowed(absl::Span<const uint32_t> allowed, absl::Span<float> logits) {
  for (size_t first = 0; first < logits.size(); first += 32) {
    const size_t word = first / 32;
    const uint32_t bits = word < allowed.size() ? allowed[word] : 0;
    const absl::Span<float> tokens = logits.subspan(first, 32);
    if (bits == 0) {
      std::fill(tokens.begin(), tokens.end(), kLowest);
    } else if (~bits != 0) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = ((bits >> i) & 1) != 0 ? tokens[i] : kLowest;
      }
    }
  }
}

// Copies the logits of `tokens` alone; all others become -inf.
void CopyListed(absl::Span<const float> logits, absl::Span<const TokenId> tokens,
                std::vector<float>& listed) {
  listed.assign(logits.size(), kLowest);
  for (const TokenId token : tokens) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) {
      listed[token] = logits[token];
    }
  }
}

// Copies the logits into the scratch and applies what is allowed, bias and penalties.
absl::Span<const float> Adjusted(absl::Span<const float> logits, const SamplingParams& params,
                                 absl::Span<const TokenId> prompt, absl::Span<const TokenId> output,
                                 absl::Span<const uint32_t> allowed, SampleScratch& scratch) {
  if (allowed.empty() && !ChangesLogits(params)) {
    return logits;
  }
  if (params.allowed_tokens.empty()) {
    scratch.logits.assign(logits.begin(), logits.end());
  } else {
    CopyListed(logits, params.allowed_tokens, scratch.logits);
  }
  if (!allowed.empty()) {
    KeepAllowed(allowed, absl::MakeSpan(scratch.logits));
  }
  if (scratch.counts.size() < logits.size()) {
    scratch.counts.resize(logits.size(), 0);
  }
  AddBias(params, scratch.logits);
  if (params.repetition_penalty != 1.0f) {
    PenaliseRepetition(params.repetition_penalty, prompt, output, scratch.logits, scratch.counts);
  }
  if (params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
    PenalisePresenceAndFrequency(params, output, scratch.logits, scratch.counts);
  }
  return scratch.logits;
}

// Candidates of a draw: all tokens, or those in `order`, ascending.
struct Candidates {
  absl::Span<const float> logits;
  bool all = true;
};

Candidates ListCandidates(absl::Span<const float> logits, uint32_t top_k, SampleScratch& scratch) {
  if (top_k == 0 || top_k >= logits.size()) {
    return {.logits = logits};
  }
  const cpu::LogitCut cut = cpu::CutByCount(logits, top_k, scratch.cut);
  scratch.order.resize(top_k + kListSlack);
  scratch.order.resize(cpu::ListKept(logits, cut, scratch.order.data()));
  scratch.candidates.clear();
  for (const uint32_t id : scratch.order) {
    scratch.candidates.push_back(logits[id]);
  }
  return {.logits = scratch.candidates, .all = false};
}

double Total(absl::Span<const double> sums) {
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

// What top-p and min-p leave of the candidates.
struct Likely {
  cpu::LogitCut cut;
  float smallest = 0;  // Weight; the most likely token's is 1, so it compares with min_p itself.

  bool Has(float logit, float weight, size_t index) const {
    return weight > 0 && weight >= smallest && cpu::InCut(cut, logit, index);
  }
};

// The index of a likely candidate, drawn with probability weight / sum. The last one with weight
// catches what rounding lets through, in its block and in the row.
size_t Draw(absl::Span<const float> logits, const Likely& likely, double uniform,
            const SampleScratch& scratch) {
  const double wanted = uniform * Total(scratch.sums);
  size_t block = 0;
  double before = 0;
  double sum = 0;
  for (size_t b = 0; b < scratch.sums.size() && sum <= wanted; ++b) {
    if (scratch.sums[b] > 0) {
      block = b;
      before = sum;
      sum += scratch.sums[b];
    }
  }
  const size_t first = block * cpu::kWeightBlock;
  const size_t end = std::min(first + cpu::kWeightBlock, logits.size());
  size_t last = first;
  for (size_t i = first; i < end && before <= wanted; ++i) {
    if (likely.Has(logits[i], scratch.weights[i], i)) {
      last = i;
      before += double{scratch.weights[i]};
    }
  }
  return last;
}

// Cuts the candidates by top-p and min-p, and sums what is left.
Likely KeepLikely(absl::Span<const float> logits, const SamplingParams& params,
                  SampleScratch& scratch) {
  Likely likely = {.cut = {.bound = kLowest, .ties_end = logits.size()}, .smallest = params.min_p};
  if (params.top_p >= 1.0f && params.min_p <= 0.0f) {
    return likely;
  }
  if (params.top_p < 1.0f) {
    likely.cut = cpu::CutByWeight(logits, scratch.weights, Total(scratch.sums),
                                  double{params.top_p}, scratch.cut);
  }
  cpu::SumKept({.logits = logits,
                .cut = likely.cut,
                .smallest = likely.smallest,
                .weights = scratch.weights.data(),
                .sums = scratch.sums.data()});
  return likely;
}

TokenId DrawToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t position,
                  SampleScratch& scratch) {
  const float largest = cpu::LargestLogit(logits);
  if (largest == kLowest) {
    return 0;
  }
  const Candidates candidates = ListCandidates(logits, params.top_k, scratch);
  scratch.weights.resize(candidates.logits.size());
  scratch.sums.resize(cpu::WeightBlocks(candidates.logits.size()));
  constexpr double kScaleMax = std::numeric_limits<float>::max();
  const double scale = std::min(kLog2E / double{params.temperature}, kScaleMax);
  cpu::WeighLogits({.logits = candidates.logits,
                    .largest = largest,
                    .scale = static_cast<float>(scale),
                    .weights = scratch.weights.data(),
                    .sums = scratch.sums.data()});
  const Likely likely = KeepLikely(candidates.logits, params, scratch);
  const size_t drawn =
      Draw(candidates.logits, likely, PhiloxUniform(params.seed, position, 0), scratch);
  return static_cast<TokenId>(candidates.all ? drawn : scratch.order[drawn]);
}

// ln of the sum of exp(logits), split so that it survives a largest logit of +inf.
class LogNormaliser {
 public:
  explicit LogNormaliser(absl::Span<const float> logits)
      : largest_(cpu::LargestLogit(logits)), log_sum_(largest_ == kLowest ? 0 : LnSum(logits)) {}

  float Of(float logit) const {
    if (logit == largest_) {
      return largest_ == kLowest ? kLowest : static_cast<float>(-log_sum_);
    }
    const double below = double{logit} - double{largest_};
    return below < 0 ? static_cast<float>(below - log_sum_) : kLowest;  // NaN is not.
  }

 private:
  // ln sum exp(logit - largest)
  double LnSum(absl::Span<const float> logits) const {
    constexpr size_t kBlocks = 64;
    double sums[kBlocks];
    double sum = 0;
    for (size_t first = 0; first < logits.size(); first += kBlocks * cpu::kWeightBlock) {
      const auto some = logits.subspan(first, kBlocks * cpu::kWeightBlock);
      cpu::WeighLogits(
          {.logits = some, .largest = largest_, .scale = static_cast<float>(kLog2E), .sums = sums});
      for (size_t block = 0; block < cpu::WeightBlocks(some.size()); ++block) {
        sum += sums[block];
      }
    }
    return Ln(sum);
  }

  const float largest_;
  const double log_sum_;
};

std::vector<TokenLogprob> MostLikely(absl::Span<const float> logits,
                                     const LogNormaliser& normaliser, size_t count,
                                     SampleScratch& scratch) {
  std::vector<TokenLogprob> top;
  SelectBest(logits, count, scratch.order);
  for (const uint32_t id : scratch.order) {
    top.push_back({static_cast<TokenId>(id), normaliser.Of(logits[id])});
  }
  return top;
}

void ReportLogprobs(absl::Span<const float> logits, int32_t count, SampleScratch& scratch,
                    SampleResult& result) {
  const LogNormaliser normaliser(logits);
  result.logprob = normaliser.Of(logits[result.token]);
  result.top = MostLikely(logits, normaliser, static_cast<size_t>(count), scratch);
}

}  // namespace

SampleResult Sample(absl::Span<const float> logits, const SamplingParams& params,
                    absl::Span<const TokenId> prompt, absl::Span<const TokenId> output,
                    uint64_t position, SampleScratch& scratch, absl::Span<const uint32_t> allowed) {
  LAMINA_CHECK(!logits.empty());
  const absl::Span<const float> adjusted =
      Adjusted(logits, params, prompt, output, allowed, scratch);
  SampleResult result;
  result.token = params.temperature == 0.0f ? Greedy(adjusted)
                                            : DrawToken(adjusted, params, position, scratch);
  if (params.logprobs >= 0) {
    ReportLogprobs(logits, params.logprobs, scratch, result);
  }
  return result;
}

float LogProbability(absl::Span<const float> logits, TokenId token) {
  LAMINA_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  return LogNormaliser(logits).Of(logits[token]);
}

TokenRank RankOf(absl::Span<const float> logits, TokenId token, uint32_t alternatives,
                 SampleScratch& scratch) {
  LAMINA_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const auto id = static_cast<size_t>(token);
  size_t better = 0;
  if (logits[id] > kLowest) {
    better = cpu::CountAtLeast(logits, logits[id], id);
  } else {
    // All that are above -inf, and of the others, NaN among them, those of smaller ids.
    better = cpu::CountAtLeast(logits, kLowest, 0) + id -
             cpu::CountAtLeast(logits.first(id), kLowest, 0);
  }
  return {.rank = static_cast<uint32_t>(better + 1),
          .top = MostLikely(logits, LogNormaliser(logits), alternatives, scratch)};
}

}  // namespace lamina::kernels
