// SPDX-License-Identifier: Apache-2.0
//
// Sampling: from a row of logits to a token, as a function of (logits, params, tokens so far,
// position).
//
// Order: tokens that are not allowed leave, by the mask and by allowed_tokens, logit bias,
// repetition penalty, presence and frequency penalties, [greedy stops here], temperature, top-k,
// softmax, top-p, min-p, one draw Philox(seed, position). Log-probabilities are those of the raw
// logits (before any of this), natural logarithm.
//
// Determinism: weights in f32, within 1e-6 of themselves, their sums in f32 over 256 tokens and f64
// above, in a fixed order and without fused operations: the same draws on every processor. Ties go
// to the smaller token id.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/sampling_params.h"
#include "kernels/cpu/logit_cut.h"

namespace lamina::kernels {

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

// A row that is to be sampled: what Sample() takes besides its logits. All of it in host memory.
struct SampleRequest {
  const SamplingParams* params = nullptr;
  absl::Span<const TokenId> prompt;
  absl::Span<const TokenId> output;
  uint64_t position = 0;
};

struct SampleResult {
  TokenId token = 0;
  float logprob = 0;              // Log-probability of `token`; set when params.logprobs >= 0.
  std::vector<TokenLogprob> top;  // The params.logprobs most likely, best first.
};

// Working memory, reused over calls.
struct SampleScratch {
  std::vector<float> logits;
  std::vector<uint32_t> order;
  std::vector<uint32_t> counts;   // [vocabulary]; all zero between calls.
  std::vector<float> candidates;  // Logits of the candidates that top-k keeps.
  std::vector<float> weights;     // Weights of the candidates.
  std::vector<double> sums;       // Sums of these weights by blocks.
  cpu::CutScratch cut;
};

// `prompt` and `output` are the tokens so far; `position` is the index of the new token in the
// whole sequence (prompt.size() + output.size()). NaN logits count as -inf; if every logit is -inf
// or NaN the result is token 0. `allowed` has a bit for each token, the lowest of the first word
// for token 0; empty, it allows all, and what lies behind its end is not allowed. Ids outside the
// vocabulary in `prompt`, `output`, logit_bias and allowed_tokens are passed over. Requires: at
// least one logit.
// Cost: a pass over the logits for the largest, one for the weights; top-k and top-p copy and halve
// what is in question, a few passes of which most see little.
SampleResult Sample(absl::Span<const float> logits, const SamplingParams& params,
                    absl::Span<const TokenId> prompt, absl::Span<const TokenId> output,
                    uint64_t position, SampleScratch& scratch,
                    absl::Span<const uint32_t> allowed = {});

// ln softmax(logits)[token].
float LogProbability(absl::Span<const float> logits, TokenId token);

// A given token among all of a row.
struct TokenRank {
  uint32_t rank = 0;              // 1 for the most likely; of equal ones the smaller id goes first.
  std::vector<TokenLogprob> top;  // The `alternatives` most likely, best first.
};

// NaN logits count as -inf. Requires: a token of the vocabulary.
// Cost: three passes over the logits.
TokenRank RankOf(absl::Span<const float> logits, TokenId token, uint32_t alternatives,
                 SampleScratch& scratch);

}  // namespace lamina::kernels
