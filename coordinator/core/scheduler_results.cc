// SPDX-License-Identifier: Apache-2.0
//
// What comes back from a step: checked as a whole first, then committed.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/core/scheduler_internal.h"

namespace lamina::core {
namespace {

absl::Status NodeBug(const plan::StepResult& result, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("result of lane ", result.lane, " step ", result.step, ": ", what));
}

// The node judges by the same rule; a row that it did not judge is judged here.
plan::FinishReason Judge(const Sequence& sequence, const plan::SampledToken& token) {
  if (token.finish != plan::FinishReason::kNone) {
    return token.finish;
  }
  const SequenceRequest& request = sequence.request;
  const uint32_t tokens = token.position + 1;
  const auto& ends = request.end_tokens;
  if (tokens >= request.tokens_min &&
      std::find(ends.begin(), ends.end(), token.token) != ends.end()) {
    return plan::FinishReason::kStop;
  }
  return tokens >= request.tokens_max ? plan::FinishReason::kLength : plan::FinishReason::kNone;
}

}  // namespace

absl::Status Scheduler::OnStepDone(const plan::StepResult& result, Events& events) {
  if (result.epoch != impl_->epoch) {
    return absl::OkStatus();
  }
  if (result.lane >= impl_->lanes.size()) {
    return NodeBug(result, "there is no such lane");
  }
  Lane& lane = impl_->lanes[result.lane];
  if (lane.in_flight.empty() || lane.in_flight.front().step != result.step) {
    return NodeBug(result, absl::StrCat("step ", lane.step_done + 1, " is next, ",
                                        lane.in_flight.size(), " are planned"));
  }
  LAMINA_RETURN_IF_ERROR(impl_->CheckResult(lane.in_flight.front(), result));

  const PlannedStep planned = std::move(lane.in_flight.front());
  lane.in_flight.pop_front();
  lane.step_done = result.step;
  for (const PlannedToken& row : planned.tokens) {
    impl_->counters.rows_dead += impl_->Find(row.sequence) == nullptr;
  }
  for (const plan::SampledToken& token : result.tokens) {
    impl_->Commit(token, events);
  }
  impl_->CommitScores(planned, result, events);
  impl_->PassBorder(result.lane, planned.border);
  for (const plan::SequenceId id : std::exchange(impl_->preempted, {})) {
    if (impl_->Find(id) != nullptr) {
      events.preempted.push_back(id);
    }
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::CheckResult(const PlannedStep& planned,
                                          const plan::StepResult& result) {
  LAMINA_RETURN_IF_ERROR(CheckTokens(planned, result));
  return CheckScores(planned, result);
}

absl::Status Scheduler::Impl::CheckTokens(const PlannedStep& planned,
                                          const plan::StepResult& result) {
  std::map<plan::SequenceId, uint32_t> expected;  // Position by sequence; one row for each at most.
  for (const PlannedToken& row : planned.tokens) {
    expected.emplace(row.sequence, row.position);
  }
  for (const plan::SampledToken& token : result.tokens) {
    const auto row = expected.find(token.sequence);
    if (row == expected.end()) {
      return NodeBug(result,
                     absl::StrCat("sequence ", token.sequence, " has no row there, or two tokens"));
    }
    if (row->second != token.position) {
      return NodeBug(result, absl::StrCat("sequence ", token.sequence, " samples position ",
                                          row->second, ", not ", token.position));
    }
    expected.erase(row);
  }
  for (const auto& [id, position] : expected) {
    if (Find(id) != nullptr) {
      return NodeBug(result, absl::StrCat("no token for sequence ", id, " at ", position));
    }
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::CheckScores(const PlannedStep& planned,
                                          const plan::StepResult& result) {
  std::map<plan::SequenceId, size_t> scored;  // Log-probabilities so far, by sequence.
  for (const PlannedScore& chunk : planned.scores) {
    const Sequence* sequence = Find(chunk.sequence);
    scored.emplace(chunk.sequence, sequence == nullptr ? 0 : sequence->logprobs.size());
  }
  for (const plan::ScoredTokens& part : result.scores) {
    const auto so_far = scored.find(part.sequence);
    if (so_far == scored.end()) {
      return NodeBug(result, absl::StrCat("sequence ", part.sequence, " is not scored there"));
    }
    const Sequence* sequence = Find(part.sequence);
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
    const Sequence* sequence = Find(chunk.sequence);
    if (sequence != nullptr && chunk.last &&
        scored[chunk.sequence] + 1 != sequence->request.prompt.size()) {
      return NodeBug(result, absl::StrCat("sequence ", chunk.sequence,
                                          " lacks log-probabilities after its last chunk"));
    }
  }
  return absl::OkStatus();
}

void Scheduler::Impl::Commit(const plan::SampledToken& token, Events& events) {
  Sequence* sequence = Find(token.sequence);
  if (sequence == nullptr) {
    return;  // A dead row.
  }
  events.tokens.push_back({.sequence = token.sequence,
                           .index = static_cast<uint32_t>(sequence->committed.size()),
                           .token = token});
  sequence->committed.push_back(token.token);
  sequence->losses.Forget();
  ++counters.tokens_committed;
  if (sequence->state == SequenceState::kPrefilling) {
    sequence->state = SequenceState::kDecoding;
    Detach(*sequence);
  }
  const plan::FinishReason reason = Judge(*sequence, token);
  if (reason == plan::FinishReason::kNone) {
    return;
  }
  FinishEvent& finish = events.finished.emplace_back();
  finish.sequence = token.sequence;
  finish.reason = reason;
  if (reason == plan::FinishReason::kError) {
    finish.status = absl::InternalError(
        absl::StrCat("the compute node could not sample position ", token.position));
  }
  End(*sequence);
}

void Scheduler::Impl::CommitScores(const PlannedStep& planned, const plan::StepResult& result,
                                   Events& events) {
  for (const plan::ScoredTokens& part : result.scores) {
    if (Sequence* sequence = Find(part.sequence); sequence != nullptr) {
      sequence->logprobs.insert(sequence->logprobs.end(), part.logprobs.begin(),
                                part.logprobs.end());
      sequence->ranks.insert(sequence->ranks.end(), part.ranks.begin(), part.ranks.end());
    }
  }
  for (const PlannedScore& chunk : planned.scores) {
    Sequence* sequence = Find(chunk.sequence);
    if (sequence == nullptr || !chunk.last) {
      continue;
    }
    events.scores.push_back({.sequence = chunk.sequence,
                             .logprobs = std::move(sequence->logprobs),
                             .ranks = std::move(sequence->ranks)});
    events.finished.push_back({.sequence = chunk.sequence, .reason = plan::FinishReason::kLength});
    End(*sequence);
  }
}

void Scheduler::Impl::PassBorder(uint32_t lane, const StepBorder& border) {
  if (border.ticket != 0) {
    kv->Recycle(border.ticket);
  }
  for (const uint32_t offset : border.scratch) {
    ScratchOf(lane).Free(offset);
  }
  for (const plan::SequenceId id : border.draining) {
    Sequence* sequence = Find(id);
    if (sequence != nullptr) {  // Neither finished by a last result nor cancelled.
      draining.erase(sequence);
      sequence->state = SequenceState::kWaiting;
      waiting.insert(sequence);
    }
  }
}

}  // namespace lamina::core
