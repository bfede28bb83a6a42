// SPDX-License-Identifier: Apache-2.0
//
// Sampling without a sort of the vocabulary: greedy is a scan; top-k a heap of k; top-p a histogram
// that finds the bucket in which the mass is reached, and a sort of that bucket alone.
//
// The candidates are always walked in the order of their ids, so every sum has one order. Nothing
// here calls libm between the logits and the token: Exp() below is plain IEEE arithmetic, so the
// same logits give the same token on every processor.

#include "kernels/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "common/philox.h"

namespace lamina::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Buckets of top-p: 64 to a unit of logit over temperature. The last one takes everything below
// -64, where a whole vocabulary weighs less than 1e-22 of the most likely token.
constexpr size_t kBuckets = 4096;
constexpr double kBucketsPerUnit = 64;

// exp(x) for x <= 0 with a relative error below 1e-15; 0 below -708. Without branches or calls, so
// that a loop over it becomes vector code.
double Exp(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fefa3800p-1;  // 42 bits: times n < 1024 it is exact.
  constexpr double kLn2Low = 0x1.ef35793c76730p-45;
  constexpr double kShift = 0x1.8p52;  // Adding it rounds to an integer, kept in the low bits.
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * kLog2E + kShift;
  const double n = shifted - kShift;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  double p = 1.0 / 6227020800;                              // Taylor to r^13: the rest is 4e-18.
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const double power =
      std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + uint64_t{1023}) << 52);
  return x < -708.0 ? 0.0 : p * power;
}

// The largest element, NaN counting as -inf. Sixteen running maxima, because one would wait for
// itself.
float Largest(absl::Span<const float> logits) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> lanes;
  lanes.fill(kLowest);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  float best = kLowest;
  for (const float lane : lanes) {
    best = lane > best ? lane : best;
  }
  for (; i < logits.size(); ++i) {
    best = logits[i] > best ? logits[i] : best;
  }
  return best;
}

// The smallest id with the largest logit; 0 when there is nothing above -inf.
TokenId Greedy(absl::Span<const float> logits) {
  const float largest = Largest(logits);
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
  for (uint32_t id = static_cast<uint32_t>(count); id < logits.size(); ++id) {
    if (logits[id] > worst) {  // An equal one has a larger id: it loses.
      std::pop_heap(order.begin(), order.end(), better);
      order.back() = id;
      std::push_heap(order.begin(), order.end(), better);
      worst = key(order.front());
    }
  }
  std::sort_heap(order.begin(), order.end(), better);
}

bool ChangesLogits(const SamplingParams& params) {
  return !params.logit_bias.empty() || params.repetition_penalty != 1.0f ||
         params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
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

void KeepAllowed(absl::Span<const uint32_t> allowed, std::vector<float>& logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t word = i / 32;
    if (word >= allowed.size() || ((allowed[word] >> (i % 32)) & 1) == 0) {
      logits[i] = kLowest;
    }
  }
}

// Copies the logits into the scratch and applies `allowed`, bias and penalties.
absl::Span<const float> Adjusted(absl::Span<const float> logits, const SamplingParams& params,
                                 absl::Span<const TokenId> prompt, absl::Span<const TokenId> output,
                                 absl::Span<const uint32_t> allowed, SampleScratch& scratch) {
  if (allowed.empty() && !ChangesLogits(params)) {
    return logits;
  }
  scratch.logits.assign(logits.begin(), logits.end());
  if (!allowed.empty()) {
    KeepAllowed(allowed, scratch.logits);
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

// (logit - largest) / temperature; the largest gives 0 even at +inf, NaN gives -inf. Monotone in
// the logit, as subtraction and division round monotonically; and finite for the largest however
// small the temperature.
double Exponent(float logit, float largest, double temperature) {
  if (logit == largest) {
    return 0;
  }
  const double x = (double{logit} - double{largest}) / temperature;
  return x < 0 ? x : -std::numeric_limits<double>::infinity();
}

size_t BucketOf(double exponent) {
  const double bucket = -exponent * kBucketsPerUnit;
  return bucket < kBuckets - 1 ? static_cast<size_t>(bucket) : kBuckets - 1;
}

// Where top-p cuts: candidates of better buckets stay, those of `bucket` when they are in `kept`.
struct TopPCut {
  size_t bucket = 0;
  double mass_before = 0;  // Of the better buckets.
};

TopPCut FindBucket(absl::Span<const double> exponents, absl::Span<const double> weights,
                   double wanted) {
  std::array<double, kBuckets> mass{};
  for (size_t j = 0; j < weights.size(); ++j) {
    mass[BucketOf(exponents[j])] += weights[j];
  }
  TopPCut cut;
  while (cut.bucket + 1 < kBuckets && cut.mass_before + mass[cut.bucket] < wanted) {
    cut.mass_before += mass[cut.bucket];
    ++cut.bucket;
  }
  return cut;
}

// Zeroes the weights outside the smallest set with at least `wanted` mass.
void KeepMass(absl::Span<const double> exponents, double wanted, absl::Span<double> weights,
              std::vector<uint32_t>& edge) {
  const TopPCut cut = FindBucket(exponents, weights, wanted);
  edge.clear();
  for (size_t j = 0; j < weights.size(); ++j) {
    const size_t bucket = BucketOf(exponents[j]);
    if (bucket == cut.bucket) {
      edge.push_back(static_cast<uint32_t>(j));
    } else if (bucket > cut.bucket) {
      weights[j] = 0;
    }
  }
  std::sort(edge.begin(), edge.end(), [&](uint32_t a, uint32_t b) {
    return exponents[a] > exponents[b] || (exponents[a] == exponents[b] && a < b);
  });
  double mass = cut.mass_before;
  for (const uint32_t j : edge) {
    // The first of the best bucket always stays, whatever rounding did to `wanted`.
    const bool enough = mass >= wanted && mass > 0;
    mass += weights[j];
    weights[j] = enough ? 0 : weights[j];
  }
}

void ListCandidates(absl::Span<const float> logits, uint32_t top_k, std::vector<uint32_t>& order) {
  if (top_k != 0 && top_k < logits.size()) {
    SelectBest(logits, top_k, order);
    std::sort(order.begin(), order.end());
    return;
  }
  order.resize(logits.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<uint32_t>(i);
  }
}

// Draws one of order[] with probability weights[j] / sum. The last one with weight catches what
// rounding lets through.
TokenId Draw(absl::Span<const uint32_t> order, absl::Span<const double> weights, double uniform) {
  double total = 0;
  for (const double weight : weights) {
    total += weight;
  }
  const double wanted = uniform * total;
  double sum = 0;
  uint32_t last = 0;
  for (size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] > 0) {
      last = order[j];
      sum += weights[j];
      if (sum > wanted) {
        break;
      }
    }
  }
  return static_cast<TokenId>(last);
}

TokenId DrawToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t position,
                  SampleScratch& scratch) {
  const float largest = Largest(logits);
  if (largest == kLowest) {
    return 0;
  }
  ListCandidates(logits, params.top_k, scratch.order);
  const size_t count = scratch.order.size();
  scratch.weights.resize(2 * count);
  const absl::Span<double> exponents(scratch.weights.data(), count);
  const absl::Span<double> weights(scratch.weights.data() + count, count);
  double total = 0;
  for (size_t j = 0; j < count; ++j) {
    exponents[j] = Exponent(logits[scratch.order[j]], largest, double{params.temperature});
  }
  for (size_t j = 0; j < count; ++j) {
    weights[j] = Exp(exponents[j]);
  }
  for (size_t j = 0; j < count; ++j) {
    total += weights[j];
  }
  if (params.top_p < 1.0f) {
    KeepMass(exponents, double{params.top_p} * total, weights, scratch.edge);
  }
  if (params.min_p > 0.0f) {
    // The most likely token weighs 1, so weights compare with min_p itself.
    for (double& weight : weights) {
      weight = weight < double{params.min_p} ? 0 : weight;
    }
  }
  return Draw(scratch.order, weights, PhiloxUniform(params.seed, position, 0));
}

// ln of the sum of exp(logits), split so that it survives a largest logit of +inf.
struct LogNormaliser {
  float largest;
  double log_sum;  // ln sum exp(logit - largest)

  explicit LogNormaliser(absl::Span<const float> logits) : largest(Largest(logits)), log_sum(0) {
    double sum = 0;
    for (const float logit : logits) {
      sum += Exp(Exponent(logit, largest, 1.0));
    }
    log_sum = std::log(sum);
  }

  float Of(float logit) const {
    return largest == kLowest ? kLowest
                              : static_cast<float>(Exponent(logit, largest, 1.0) - log_sum);
  }
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
  const auto key = [&](size_t id) { return std::isnan(logits[id]) ? kLowest : logits[id]; };
  const float own = key(static_cast<size_t>(token));
  TokenRank result{.rank = 1};
  for (size_t id = 0; id < logits.size(); ++id) {
    const float other = key(id);
    result.rank += other > own || (other == own && id < static_cast<size_t>(token)) ? 1 : 0;
  }
  result.top = MostLikely(logits, LogNormaliser(logits), alternatives, scratch);
  return result;
}

}  // namespace lamina::kernels
