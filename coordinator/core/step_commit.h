// SPDX-License-Identifier: Apache-2.0
//
// StepCommit: what a step brings back goes to its sequences and is told. Tokens are appended to
// what a sequence has committed, or reported to the beam search whose member it is; scores are
// gathered until the last chunk of their text is done. Sequences that finish with it end.
//
// Results for sequences that have ended meanwhile are passed over: their rows ran in vain.
//
// Threading: one thread.   Determinism: same calls, same events.

#pragma once

#include <cstdint>

#include "coordinator/core/beam_groups.h"
#include "coordinator/core/planned_steps.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/sequence_request.h"
#include "plan/step_plan.h"

namespace lamina::core {

class StepCommit {
 public:
  StepCommit(SequenceLife& life, BeamGroups& beams) : life_(life), beams_(beams) {}

  // Requires: `result` is one of `planned` (PlannedSteps::Check()).
  void CommitTokens(const PlannedStep& planned, const plan::StepResult& result, Events& events);
  void CommitScores(const PlannedStep& planned, const plan::StepResult& result, Events& events);

  uint64_t tokens_committed() const { return tokens_committed_; }

 private:
  void Commit(Sequence* sequence, const plan::SampledToken& token, Events& events);

  SequenceLife& life_;
  BeamGroups& beams_;
  uint64_t tokens_committed_ = 0;
};

}  // namespace lamina::core
