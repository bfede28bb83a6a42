// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/planned_steps.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::core {
namespace {

absl::Status NodeBug(const plan::StepResult& result, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("result of lane ", result.lane, " step ", result.step, ": ", what));
}

// Whether the result's tokens are the planned ones in their order, save those of sequences that
// have ended. Where they are not, it may still be right.
bool IsAsPlanned(const PlannedStep& planned, const plan::StepResult& result,
                 const SequenceLife& life) {
  auto row = planned.tokens.begin();
  const auto end = planned.tokens.end();
  const auto passes_over = [&](const PlannedToken& token) {
    return life.Find(token.sequence, token.seat) == nullptr;
  };
  for (const plan::SampledToken& token : result.tokens) {
    while (row != end && row->sequence != token.sequence && passes_over(*row)) {
      ++row;
    }
    if (row == end || row->sequence != token.sequence || row->position != token.position) {
      return false;
    }
    ++row;
  }
  return std::all_of(row, end, passes_over);
}

absl::Status CheckTokens(const PlannedStep& planned, const plan::StepResult& result,
                         const SequenceLife& life) {
  if (IsAsPlanned(planned, result, life)) {
    return absl::OkStatus();
  }
  struct Expected {
    plan::SequenceId sequence = 0;
    uint32_t position = 0;
    bool sampled = false;
  };
  std::vector<Expected> expected;
  expected.reserve(planned.tokens.size());
  for (const PlannedToken& row : planned.tokens) {
    expected.push_back({.sequence = row.sequence, .position = row.position});
  }
  const auto by_id = [](const Expected& a, const Expected& b) { return a.sequence < b.sequence; };
  std::sort(expected.begin(), expected.end(), by_id);
  for (const plan::SampledToken& token : result.tokens) {
    const auto row = std::lower_bound(expected.begin(), expected.end(),
                                      Expected{.sequence = token.sequence}, by_id);
    if (row == expected.end() || row->sequence != token.sequence || row->sampled) {
      return NodeBug(result,
                     absl::StrCat("sequence ", token.sequence, " has no row there, or two tokens"));
    }
    if (row->position != token.position) {
      return NodeBug(result, absl::StrCat("sequence ", token.sequence, " samples position ",
                                          row->position, ", not ", token.position));
    }
    row->sampled = true;
  }
  for (const Expected& row : expected) {
    if (!row.sampled && life.Find(row.sequence) != nullptr) {
      return NodeBug(result,
                     absl::StrCat("no token for sequence ", row.sequence, " at ", row.position));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const PlannedStep& planned, const plan::StepResult& result,
                         const SequenceLife& life) {
  std::map<plan::SequenceId, size_t> scored;  // Log-probabilities so far, by sequence.
  for (const PlannedScore& chunk : planned.scores) {
    const Sequence* sequence = life.Find(chunk.sequence);
    scored.emplace(chunk.sequence, sequence == nullptr ? 0 : sequence->logprobs.size());
  }
  for (const plan::ScoredTokens& part : result.scores) {
    const auto so_far = scored.find(part.sequence);
    if (so_far == scored.end()) {
      return NodeBug(result, absl::StrCat("sequence ", part.sequence, " is not scored there"));
    }
    const Sequence* sequence = life.Find(part.sequence);
    if (sequence == nullptr) {
      continue;
    }
    if (part.first_token != so_far->second + 1) {
      return NodeBug(result,
                     absl::StrCat("sequence ", part.sequence, " is scored up to token ",
                                  so_far->second, ", its next part begins at ", part.first_token));
    }
    const bool ranked = sequence->request.sampling.logprobs >= 0;
    if (part.ranks.size() != (ranked ? part.logprobs.size() : 0)) {
      return NodeBug(result, absl::StrCat("sequence ", part.sequence, " has ", part.ranks.size(),
                                          " ranks for ", part.logprobs.size(), " tokens"));
    }
    so_far->second += part.logprobs.size();
    if (so_far->second >= sequence->request.prompt.size()) {
      return NodeBug(result, absl::StrCat("sequence ", part.sequence, " has fewer tokens"));
    }
  }
  for (const PlannedScore& chunk : planned.scores) {
    const Sequence* sequence = life.Find(chunk.sequence);
    if (sequence != nullptr && chunk.last &&
        scored[chunk.sequence] + 1 != sequence->request.prompt.size()) {
      return NodeBug(result, absl::StrCat("sequence ", chunk.sequence,
                                          " lacks log-probabilities after its last chunk"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool PlannedSteps::empty() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const LaneSteps& lane) { return lane.in_flight.empty(); });
}

void PlannedSteps::Add(uint32_t lane, PlannedStep step) {
  LAMINA_CHECK(step.step == lanes_[lane].planned + 1);
  lanes_[lane].planned = step.step;
  lanes_[lane].in_flight.push_back(std::move(step));
}

absl::Status PlannedSteps::Check(const plan::StepResult& result, const SequenceLife& life) const {
  if (result.lane >= lanes_.size()) {
    return NodeBug(result, "there is no such lane");
  }
  const LaneSteps& lane = lanes_[result.lane];
  if (lane.in_flight.empty() || lane.in_flight.front().step != result.step) {
    return NodeBug(result, absl::StrCat("step ", lane.done + 1, " is next, ", lane.in_flight.size(),
                                        " are planned"));
  }
  LAMINA_RETURN_IF_ERROR(CheckTokens(lane.in_flight.front(), result, life));
  return CheckScores(lane.in_flight.front(), result, life);
}

PlannedStep PlannedSteps::TakeOldest(uint32_t lane) {
  PlannedStep step = std::move(lanes_[lane].in_flight.front());
  lanes_[lane].in_flight.pop_front();
  lanes_[lane].done = step.step;
  return step;
}

absl::Status PlannedSteps::Audit(uint32_t plan_ahead) const {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneSteps& lane = lanes_[i];
    if (lane.in_flight.size() > plan_ahead || lane.planned - lane.done != lane.in_flight.size()) {
      return absl::InternalError(absl::StrCat("lane ", i, ": miscounts its steps"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
