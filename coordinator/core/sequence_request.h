// SPDX-License-Identifier: Apache-2.0
//
// SequenceRequest and Events: what a scheduler is asked, and what it tells those who asked.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/beam_params.h"
#include "common/clock.h"
#include "common/sampling_params.h"
#include "plan/attention_paths.h"
#include "plan/step_plan.h"

namespace lamina::core {

// One sequence to generate (or score). A request for n choices is n of these with one `group`.
struct SequenceRequest {
  plan::SequenceId id = 0;
  // The first sequence of the same request, whose prompt's K and V it may share. They do share if
  // this one is submitted before the first one joins, and there is room for its row.
  plan::SequenceId fork_of = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  uint32_t tokens_max = 0;  // In all, the prompt included. Not used when scoring.
  uint32_t tokens_min = 0;
  std::vector<TokenId> end_tokens;
  int32_t priority = 0;  // Higher is sooner, under the priority policy.
  bool score = false;
  uint32_t decode_from = 0;  // For a score: SequenceJoin::decode_from.
  // With a width: the request is a beam search, and this its only sequence.
  BeamParams beams;
  bool is_beam = false;  // One of a beam search, whose slots others share as it goes on.
  // For a beam search: who gets its answers, the best one first; `id` is the first.
  std::vector<plan::SequenceId> answers;
  // K and V are shared with requests of the same salt only, so that others cannot probe by latency
  // what was asked.
  std::string cache_salt;
  // The path by which its rows attend; nothing: the epoch's own (Scheduler::SetAttentionPath).
  std::optional<plan::AttentionPath> path;
  // Its K and V are not those of whole attention. The prefix cache neither keeps nor finds them.
  bool lossy = false;
  bool accepted_before = false;  // By another coordinator: a full queue takes it nonetheless.
  Nanos submitted = 0;           // For metrics; not used in decisions.
  // Tokens that it has generated before it was submitted, fewer than tokens_max has room for: it
  // goes on behind them.
  std::vector<TokenId> generated = {};
};

struct TokenEvent {
  plan::SequenceId sequence = 0;
  uint32_t index = 0;  // 0 for the first generated token. Each index comes exactly once.
  uint32_t cached_tokens =
      0;  // Tokens of the prompt whose K and V were there when the sequence came.
  plan::SampledToken token;
};
struct FinishEvent {
  plan::SequenceId sequence = 0;
  plan::FinishReason reason = plan::FinishReason::kNone;
  absl::Status status;  // Why, for kError.
};
// A FinishEvent with kLength follows in the same Events.
struct ScoreEvent {
  plan::SequenceId sequence = 0;
  std::vector<float> logprobs;         // [prompt - 1]: of tokens 1, 2, ...
  std::vector<plan::TokenRank> ranks;  // One for each of these, or none.
};
// In the order in which they are to be shown: per sequence tokens or score, then its end.
struct Events {
  std::vector<TokenEvent> tokens;
  std::vector<ScoreEvent> scores;
  std::vector<FinishEvent> finished;
  std::vector<plan::SequenceId> preempted;  // Since the last call that took Events.
};

}  // namespace lamina::core
