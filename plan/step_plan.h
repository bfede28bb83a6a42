// SPDX-License-Identifier: Apache-2.0
//
// StepPlan and StepResult: what the coordinator tells the nodes about one step of one lane, and
// what it hears back. Plans carry changes to tables that nodes keep; rows are listed in full.
//
// A lane is one batch in flight. Steps of a lane count from 1 in every epoch and run in order. A
// node applies a plan's changes (kind by kind: table_changes.h) when it starts that step. A plan
// may consist of leaves and releases alone; it is a step like any other: every node that has a part
// in it reports it done.
//
// Life in the tables:
// - A sequence joins with allocations for joins.tokens and its first chunk in one plan. Where
//   every layer has a window the allocations may be for the first tokens alone; those behind come
//   with the steps that need them, and tokens that no query reaches any more give their slots up.
//   Its other chunks follow in order in later steps of the lane, one per step, not always in
//   consecutive ones. Tokens that no chunk has are either there already (a prefix that another one
//   has stored, or with spans any of its own from an epoch before), or come as prompt rows, behind
//   the chunks: several in a step, in order. They attend over all tokens before them where these
//   lie, so that no scratch holds them. A step with prompt rows does not send queries first: tokens
//   of full blocks may come with the same rows.
// - Decode rows of a sequence begin after the step of its last chunk is done everywhere. Row by row
//   the positions are tokens.size(), tokens.size() + 1, ...; the slot of a row's token is allocated
//   in the row's own plan. A sequence may sit out a step.
// - A leaving sequence has no row and no chunk in the plan that carries its leave, nor later. Steps
//   planned before may still have rows of it (discarded rows, if the sequence has ended): nodes may
//   compute them or not, and the coordinator discards what comes back.
// - Slots and scratch of a sequence are given to nobody else until every node has reported the step
//   that carries its leave or release (scratch: or its last chunk). A preempted sequence joins
//   again under its own id, on any lane, and only after that too.
// - A sequence that leaves may go out to the spill tiers of its memory nodes in the same plan. Its
//   slots are given to nobody else before all of these have reported that they wrote it, either. It
//   joins again with slots for all tokens, a spill in, and no work; its first row, the token behind
//   those that were spilled, comes once all have reported that they read them.
// - Forks join in their parent's plan, behind it. The prefix's slots are shared and never written
//   again by either; the first token of each goes to slots of its own. A fork may leave before the
//   parent's last chunk; then that chunk samples nothing for it. If the parent leaves before its
//   last chunk is planned, its forks leave in the same plan.
//
// Order of rows in a step: the decode rows sorted by memory node, in the order of `rows`; then the
// tokens of the chunks, in the order of `chunks`. Rows for one memory node keep this order in its
// window.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/extent.h"
#include "common/sampling_params.h"
#include "plan/attention_paths.h"
#include "plan/row_pieces.h"

namespace lamina::plan {

using SequenceId = uint64_t;  // Never used twice in the life of a coordinator; 0 is none.

// A sequence leaves the tables of all nodes.
struct SequenceLeave {
  SequenceId id = 0;
  friend bool operator==(const SequenceLeave&, const SequenceLeave&) = default;
};

// What lies in the spill tier under this number is forgotten.
struct SpillDrop {
  uint64_t spill = 0;
  friend bool operator==(const SpillDrop&, const SpillDrop&) = default;
};

// K and V of a sequence's first `tokens` tokens, or of slots that outlive sequences, go to the tier
// of each memory node that holds some, under a number that is never used twice in an epoch. Where
// slots are INT8, those behind its last closed block come out of its tail. Nodes report when they
// have written them, or that they could not (SpillReport).
struct SpillOut {
  uint64_t spill = 0;
  SequenceId sequence = 0;  // It leaves in the same plan. 0: none, but `slots` of a memory node.
  uint32_t tokens = 0;
  uint32_t memory_node = 0;   // Whose slots these are.
  std::vector<Extent> slots;  // Nobody writes them before all nodes have reported.
  friend bool operator==(const SpillOut&, const SpillOut&) = default;
};

// They are read back into the slots that the sequence has now, and into its tail: as soon as a node
// has the plan, since no step before this one uses them; with spans, when it begins the step. What
// the tier has stays there until it is dropped.
struct SpillIn {
  uint64_t spill = 0;
  SequenceId sequence = 0;  // It joins in the same plan.
  uint32_t tokens = 0;      // Perhaps not all of those that were written.
  uint32_t first = 0;       // The first of the sequence's tokens that is read,
  uint32_t skip = 0;        // and how many of those that were written are passed over.
  friend bool operator==(const SpillIn&, const SpillIn&) = default;
};

// The first `tokens` tokens of a sequence have no slots any more: all layers have windows, and no
// row of this step or a later one reaches them. Whole blocks of attention, so that what is summed
// stays the same.
struct SlotRelease {
  SequenceId sequence = 0;
  uint32_t tokens = 0;  // From token 0 on; more than with the release before.
  friend bool operator==(const SlotRelease&, const SlotRelease&) = default;
};

// Tokens of a sequence whose activations stay on the compute node that makes them, in consecutive
// places of EpochConfig::resident_tokens, which are nobody else's until every node has reported the
// step with the leave. Where slots are of kinds (slot_kinds.h), those alone are read there whose
// slots hold activations.
struct ResidentTokens {
  uint32_t first = 0;   // The first one; it and those behind it are computed after the join.
  uint32_t tokens = 0;  // So many at most. 0: none.
  uint32_t place = 0;   // That of the first one.
  friend bool operator==(const ResidentTokens&, const ResidentTokens&) = default;
};

// A sequence enters the tables of the lane's nodes.
struct SequenceJoin {
  SequenceId id = 0;
  // The prompt, and after a preemption the tokens already committed behind it.
  std::vector<TokenId> tokens;
  uint32_t prompt_tokens = 0;
  // When set: no prefill of its own. It shares the K and V of the parent's first tokens.size()
  // tokens (its slots come as allocations), and its first token is sampled, with its own sampling,
  // from the parent's last chunk. Parent and child join in the same plan, the parent first.
  SequenceId parent = 0;
  SamplingParams sampling;
  // The sequence ends when it has this many tokens in all, the prompt included.
  uint32_t tokens_max = 0;
  // Sampling one of these ends it, once it has `tokens_min` tokens in all. Empty ends it by length
  // only.
  std::vector<TokenId> end_tokens;
  uint32_t tokens_min = 0;
  uint32_t memory_node = 0;                     // Index into the epoch's memory nodes.
  AttentionPath path = AttentionPath::kRemote;  // By which its rows attend; one of the epoch's.
  // Prompt tokens from this one on come as rows, one a step, as if they had been sampled: what a
  // path with other arithmetic for decode rows makes of given tokens. 0: prompt tokens are prompt
  // tokens.
  uint32_t decode_from = 0;
  // Path recompute: the first so many tokens are bare, K and V that are there without activations,
  // since rows of other paths stored them. Each token behind them has its own.
  uint32_t bare_tokens = 0;
  ResidentTokens resident = {};  // Path recompute, and path hybrid.
  // Report the log-probability of every token given those before it (Score), and its rank if
  // sampling.logprobs is not negative; nothing is sampled.
  bool score = false;
  // What logs call the request that the sequence is of. Nothing depends on it.
  std::string request_id;
  // How many of its first tokens were found computed. Each counts once: 0 if it has joined before,
  // or continues a beam, and for a fork, whose tokens are its parent's. No message has it.
  uint32_t cached_tokens = 0;

  // Those of its tokens that are computed for a prompt's sake, or once more. The one sampled last
  // was never an input: computing it is part of the answer.
  uint32_t input_tokens() const {
    return static_cast<uint32_t>(tokens.size()) - (tokens.size() > prompt_tokens ? 1 : 0);
  }
  friend bool operator==(const SequenceJoin&, const SequenceJoin&) = default;
};

// Slots for the next tokens of a sequence, appended to those it has. With spans (partition
// token_range) no extent crosses the border of two.
struct SlotAllocation {
  SequenceId sequence = 0;
  Extent extent;
  uint32_t memory_node = 0;  // Index into the epoch's memory nodes.
  friend bool operator==(const SlotAllocation&, const SlotAllocation&) = default;
};

// One token that attends where the K and V of its sequence lie. A decode row's is the token sampled
// last, whose id the compute node knows; it samples the next one. A prompt row's is one that the
// sequence joined with, whose slot came with the join; the last of these samples the first token.
struct DecodeRow {
  SequenceId sequence = 0;
  uint32_t position = 0;  // Position of the token that is the input of this step.
  friend bool operator==(const DecodeRow&, const DecodeRow&) = default;
};

// Consecutive prompt tokens of a sequence; attended locally on the compute node over its scratch
// KV.
struct PrefillChunk {
  SequenceId sequence = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  // Where token 0 of the sequence lies in the compute node's scratch KV; the same for all its
  // chunks.
  uint32_t scratch_offset = 0;
  bool last = false;  // Samples a token (for its forks too).
  friend bool operator==(const PrefillChunk&, const PrefillChunk&) = default;
};

// What StepPlan::recomputed counts in.
inline constexpr uint32_t kRecomputeUnit = 1024;

struct StepPlan {
  uint64_t epoch = 0;
  uint32_t lane = 0;
  uint64_t step = 0;
  // Changes of the nodes' tables, a list for each kind (table_changes.h).
  std::vector<SpillDrop> spill_drops;
  std::vector<SpillOut> spills_out;
  std::vector<SequenceLeave> leaves;
  std::vector<SlotRelease> releases;
  std::vector<SequenceJoin> joins;
  std::vector<SlotAllocation> allocations;
  std::vector<SpillIn> spills_in;
  // Work.
  std::vector<DecodeRow> rows;
  std::vector<PrefillChunk> chunks;
  Chunking chunking;  // In which chunks the rows go to a memory node.
  // Path recompute: of the tokens before each run of rows that have slots so many
  // kRecomputeUnit-ths have their K and V made again by the compute node, from activations that it
  // has or that come, or with EpochConfig::made_tokens_max from token numbers (fetch_split.h).
  uint32_t recomputed = 0;
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct SampledToken {
  SequenceId sequence = 0;
  uint32_t position = 0;  // Position of this token in the sequence.
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  // The node's own judgement (end token, length); later rows of the sequence are discarded.
  FinishReason finish = FinishReason::kNone;
  // Nothing that the form of the output allows could come, so that this ends the sequence, and is
  // no part of the answer.
  bool outside = false;
};

// A prompt token among all of the vocabulary.
struct TokenRank {
  uint32_t rank = 0;              // 1 for the most likely.
  std::vector<TokenLogprob> top;  // The sampling.logprobs most likely, best first.
};

// Log-probabilities of prompt tokens [first_token, first_token + logprobs.size()). The parts of a
// sequence follow each other without gap from token 1; once its last chunk is done they reach its
// last token.
struct ScoredTokens {
  SequenceId sequence = 0;
  uint32_t first_token = 0;
  std::vector<float> logprobs;
  std::vector<TokenRank> ranks;  // One a log-probability if sampling.logprobs >= 0, else none.
};

struct StepResult {
  uint64_t epoch = 0;
  uint32_t lane = 0;
  uint64_t step = 0;
  std::vector<SampledToken> tokens;
  std::vector<ScoredTokens> scores;
};

// A memory node has done what a SpillOut or SpillIn asked for.
struct SpillReport {
  uint64_t epoch = 0;
  uint64_t spill = 0;
  bool ok = false;  // Else nothing of it can be used: K and V are to be recomputed.
};

}  // namespace lamina::plan
