// SPDX-License-Identifier: Apache-2.0
//
// BeamSearch: which beams of one search go on, and which answers are the best so far. The rules are
// those of transformers' generate() with num_beams.
//
// A step takes the most likely next tokens of each beam and ranks all continuations by the sum of
// their log-probabilities; of equal ones that of the earlier beam goes first, then the token that
// its row names first. The best `width` continuations that do not end become the beams. Of the best
// `width` continuations those that end become answers, of which the best `width` are kept.
//
// Determinism: pure; sums are in double.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/beam_params.h"
#include "common/sampling_params.h"
#include "plan/step_plan.h"

namespace lamina::core {

// What ends an answer. Lengths count the prompt.
struct BeamLimits {
  uint32_t prompt_tokens = 0;
  uint32_t tokens_max = 0;
  uint32_t tokens_min = 0;  // An end token before is one like any other.
  std::vector<TokenId> end_tokens;
  uint32_t top = 0;  // Alternatives to keep of each token of an answer.
};

// So many of each row's next tokens are enough, whichever of them end an answer.
uint32_t BeamCandidates(const BeamParams& params, size_t end_tokens);

class BeamSearch {
 public:
  struct BeamToken {
    TokenId token = 0;
    float logprob = 0;
    std::vector<plan::TokenLogprob> top;  // The first ones of its row.
  };
  struct Beam {
    double sum = 0;  // Log-probabilities added up.
    std::vector<BeamToken> tokens;
  };
  struct Answer {
    double score = 0;
    std::vector<BeamToken> tokens;
    plan::FinishReason reason = plan::FinishReason::kNone;
  };

  // Requires: 1 <= width; prompt_tokens < tokens_max.
  BeamSearch(const BeamParams& params, BeamLimits limits);

  // Those that go on: at first one without tokens. None once the search is over.
  const std::vector<Beam>& beams() const { return beams_; }

  // One step on: rows[i] are the most likely next tokens of beams()[i], best first. Returns for
  // each of the new beams which of the old ones it continues. Requires: a row for each beam.
  std::vector<uint32_t> Advance(absl::Span<const std::vector<plan::TokenLogprob>> rows);

  // Those that have ended, best first; at most `width`.
  const std::vector<Answer>& answers() const { return answers_; }

 private:
  struct Candidate {
    double sum = 0;
    uint32_t beam = 0;
    uint32_t place = 0;  // In the row.
    plan::FinishReason ends = plan::FinishReason::kNone;
  };
  std::vector<Candidate> Ranked(absl::Span<const std::vector<plan::TokenLogprob>> rows) const;
  double Score(double sum, uint32_t tokens) const;
  bool IsOver() const;

  const BeamParams params_;
  const BeamLimits limits_;
  uint32_t length_ = 0;  // Tokens of a beam without the prompt.
  std::vector<Beam> beams_{1};
  std::vector<Answer> answers_;
};

}  // namespace lamina::core
