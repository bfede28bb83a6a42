// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/step_commit.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lamina::core {
namespace {

// The node judges by the same rule; a row that it did not judge is judged here.
plan::FinishReason Judge(const Sequence& sequence, const plan::SampledToken& token) {
  if (token.finish != plan::FinishReason::kNone) {
    return token.finish;
  }
  const SequenceRequest& request = sequence.request;
  const uint32_t tokens = token.position + 1;
  if (tokens >= request.tokens_min && absl::c_linear_search(request.end_tokens, token.token)) {
    return plan::FinishReason::kStop;
  }
  return tokens >= request.tokens_max ? plan::FinishReason::kLength : plan::FinishReason::kNone;
}

}  // namespace

// Each token's sequence is looked for where the plan has it next.
void StepCommit::CommitTokens(const PlannedStep& planned, const plan::StepResult& result,
                              Events& events) {
  const size_t tokens = events.tokens.size() + result.tokens.size();
  if (tokens > events.tokens.capacity()) {
    events.tokens.reserve(std::max(tokens, 2 * events.tokens.capacity()));
  }
  constexpr ptrdiff_t kAhead = 12;  // Sequences whose memory is fetched meanwhile.
  auto row = planned.tokens.begin();
  for (const plan::SampledToken& token : result.tokens) {
    while (row != planned.tokens.end() && row->sequence != token.sequence) {
      ++row;
    }
    const bool in_order = row != planned.tokens.end();
    if (planned.tokens.end() - row > 2 * kAhead) {
      life_.Prefetch(row[2 * kAhead].seat);
      if (const Sequence* next = life_.Find(row[kAhead].sequence, row[kAhead].seat)) {
        next->PrefetchCommitted();
      }
    }
    Commit(in_order ? life_.Find(row->sequence, row->seat) : life_.Find(token.sequence), token,
           events);
  }
}

void StepCommit::Commit(Sequence* sequence, const plan::SampledToken& token, Events& events) {
  if (sequence == nullptr) {
    return;  // A discarded row.
  }
  if (beams_.Owns(token.sequence)) {
    tokens_committed_ += beams_.Report(*sequence, token, events);
    return;
  }
  events.tokens.push_back({.sequence = token.sequence,
                           .index = static_cast<uint32_t>(sequence->committed.size()),
                           .cached_tokens = sequence->cached_at_first,
                           .token = token});
  sequence->committed.push_back(token.token);
  sequence->losses.Forget();
  ++tokens_committed_;
  if (sequence->state == SequenceState::kPrefilling) {
    life_.Decode(*sequence);
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
  life_.End(*sequence);
}

void StepCommit::CommitScores(const PlannedStep& planned, const plan::StepResult& result,
                              Events& events) {
  for (const plan::ScoredTokens& part : result.scores) {
    if (Sequence* sequence = life_.Find(part.sequence); sequence != nullptr) {
      sequence->logprobs.insert(sequence->logprobs.end(), part.logprobs.begin(),
                                part.logprobs.end());
      sequence->ranks.insert(sequence->ranks.end(), part.ranks.begin(), part.ranks.end());
    }
  }
  for (const PlannedScore& chunk : planned.scores) {
    Sequence* sequence = life_.Find(chunk.sequence);
    if (sequence == nullptr || !chunk.last) {
      continue;
    }
    events.scores.push_back({.sequence = chunk.sequence,
                             .logprobs = std::move(sequence->logprobs),
                             .ranks = std::move(sequence->ranks)});
    events.finished.push_back({.sequence = chunk.sequence, .reason = plan::FinishReason::kLength});
    life_.End(*sequence);
  }
}

}  // namespace lamina::core
