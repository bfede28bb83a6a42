// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace lamina::core {

uint32_t BeamCandidates(const BeamParams& params, size_t end_tokens) {
  // The best `width` of all, and as many that go on, whatever ends.
  return params.width + std::max(params.width, static_cast<uint32_t>(end_tokens));
}

BeamSearch::BeamSearch(const BeamParams& params, BeamLimits limits)
    : params_(params), limits_(std::move(limits)) {
  LAMINA_CHECK(params_.width > 0 && limits_.prompt_tokens < limits_.tokens_max);
}

double BeamSearch::Score(double sum, uint32_t tokens) const {
  return sum / std::pow(static_cast<double>(tokens), params_.length_penalty);
}

// All continuations, best first. What has no finite log-probability is none.
std::vector<BeamSearch::Candidate> BeamSearch::Ranked(
    absl::Span<const std::vector<plan::TokenLogprob>> rows) const {
  const uint32_t tokens = limits_.prompt_tokens + length_ + 1;
  std::vector<Candidate> ranked;
  for (uint32_t beam = 0; beam < rows.size(); ++beam) {
    for (uint32_t place = 0; place < rows[beam].size(); ++place) {
      const plan::TokenLogprob& next = rows[beam][place];
      if (!std::isfinite(next.logprob)) {
        continue;
      }
      const auto& ends = limits_.end_tokens;
      const bool stops = tokens >= limits_.tokens_min &&
                         std::find(ends.begin(), ends.end(), next.token) != ends.end();
      ranked.push_back({.sum = beams_[beam].sum + next.logprob,
                        .beam = beam,
                        .place = place,
                        .ends = stops                          ? plan::FinishReason::kStop
                                : tokens >= limits_.tokens_max ? plan::FinishReason::kLength
                                                               : plan::FinishReason::kNone});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Candidate& a, const Candidate& b) { return a.sum > b.sum; });
  return ranked;
}

bool BeamSearch::IsOver() const {
  if (answers_.size() < params_.width) {
    return false;
  }
  if (params_.early_stopping == BeamStop::kFull) {
    return true;
  }
  const bool as_longest = params_.early_stopping == BeamStop::kNever && params_.length_penalty > 0;
  const uint32_t length = as_longest ? limits_.tokens_max - limits_.prompt_tokens : length_;
  return Score(beams_[0].sum, length) <= answers_.back().score;
}

std::vector<uint32_t> BeamSearch::Advance(absl::Span<const std::vector<plan::TokenLogprob>> rows) {
  LAMINA_CHECK(rows.size() == beams_.size());
  const std::vector<Candidate> ranked = Ranked(rows);
  ++length_;
  const auto continued = [&](const Candidate& candidate) {
    std::vector<BeamToken> tokens = beams_[candidate.beam].tokens;
    const std::vector<plan::TokenLogprob>& row = rows[candidate.beam];
    const plan::TokenLogprob& next = row[candidate.place];
    const auto top = row.begin() + std::min<size_t>(row.size(), limits_.top);
    tokens.push_back({.token = next.token, .logprob = next.logprob, .top = {row.begin(), top}});
    return tokens;
  };
  std::vector<Beam> beams;
  std::vector<uint32_t> parents;
  for (uint32_t rank = 0; rank < ranked.size(); ++rank) {
    const Candidate& candidate = ranked[rank];
    if (candidate.ends == plan::FinishReason::kNone) {
      if (beams.size() < params_.width) {
        beams.push_back({.sum = candidate.sum, .tokens = continued(candidate)});
        parents.push_back(candidate.beam);
      }
    } else if (rank < params_.width) {
      answers_.push_back({.score = Score(candidate.sum, length_),
                          .tokens = continued(candidate),
                          .reason = candidate.ends});
    }
  }
  std::stable_sort(answers_.begin(), answers_.end(),
                   [](const Answer& a, const Answer& b) { return a.score > b.score; });
  answers_.resize(std::min<size_t>(answers_.size(), params_.width));
  beams_ = std::move(beams);
  if (beams_.empty() || IsOver()) {
    beams_.clear();
    parents.clear();
  }
  return parents;
}

}  // namespace lamina::core
