// SPDX-License-Identifier: Apache-2.0
//
// SequenceTable: what a compute node knows of each sequence: its tokens, how to sample, when it
// ends. Changed by plans (joins, leaves) and by sampling.
//
// Threading: the data thread.

#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/thread_beat.h"
#include "kernels/sampling.h"
#include "model/grammar/grammar_cache.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

struct Sequence {
  plan::SequenceJoin join;
  std::vector<TokenId> tokens;             // Prompt, committed and sampled.
  std::vector<plan::SequenceId> children;  // Sample their first token with this one's last chunk.
  bool finished = false;                   // Further rows are discarded.
  std::unique_ptr<model::GrammarState> grammar;  // Grammar of its form, once it has sampled.
  size_t in_grammar = 0;                         // Tokens up to here are in it.
  std::vector<uint32_t> without_ends;            // A bit for each token that does not end it.
  std::vector<uint32_t> going_on;                // Those of them that its form allows.
  std::vector<uint32_t> spans;  // Partition token_range: the memory node of each span.
  uint32_t slots = 0;           // Partition token_range: tokens that have slots.
  uint32_t released = 0;        // The first ones, whose slots are released.

  // Whether the next token is not to end it, since it would have too few.
  bool may_not_end() const {
    return tokens.size() + 1 < join.tokens_min && !join.end_tokens.empty();
  }
};

class SequenceTable {
 public:
  // Errors: kInternal  a join of a known id, an empty one, or a token outside the vocabulary.
  // With `span_tokens` (partition token_range) allocations are kept too.
  absl::Status Apply(const plan::StepPlan& plan, uint32_t vocabulary, uint32_t span_tokens = 0);

  Sequence* Find(plan::SequenceId id);

  void Erase(plan::SequenceId id) { sequences_.erase(id); }

  void Clear() { sequences_.clear(); }

 private:
  struct Limits {
    uint32_t vocabulary = 0;
    uint32_t span_tokens = 0;
  };
  static absl::Status ApplyChange(const plan::SpillDrop& drop, const Limits& limits);
  static absl::Status ApplyChange(const plan::SpillOut& spill, const Limits& limits);
  static absl::Status ApplyChange(const plan::SpillIn& spill, const Limits& limits);
  absl::Status ApplyChange(const plan::SequenceLeave& leave, const Limits& limits);
  absl::Status ApplyChange(const plan::SlotRelease& release, const Limits& limits);
  absl::Status ApplyChange(const plan::SequenceJoin& join, const Limits& limits);
  absl::Status ApplyChange(const plan::SlotAllocation& allocation, const Limits& limits);

  std::unordered_map<plan::SequenceId, Sequence> sequences_;
};

// Brings the grammar of a sequence that has a form up to its tokens: they may have been sampled
// elsewhere, or before a preemption. Raises `beat`, if there is one, at each. False when one does
// not fit, or without a grammar.
bool FollowGrammar(Sequence& sequence, model::GrammarCache& grammars, ThreadBeat* beat = nullptr);

// Samples the next token of `sequence` from `logits`, appends it, and judges whether it is the
// last. A sequence with a form takes its grammar from `grammars`: the first waits until it is
// compiled.
plan::SampledToken SampleNext(absl::Span<const float> logits, Sequence& sequence,
                              model::GrammarCache& grammars, kernels::SampleScratch& scratch);

// Appends a token that was sampled elsewhere, and judges it so. Requires: no form, no
// log-probabilities.
plan::SampledToken AppendSampled(TokenId token, Sequence& sequence);

// Rank of a scored token, with as many alternatives as the sequence asks for; rank 0 if it does
// not.
plan::TokenRank RankOf(absl::Span<const float> logits, TokenId token, const Sequence& sequence,
                       kernels::SampleScratch& scratch);

}  // namespace lamina::compute_node
