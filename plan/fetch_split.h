// SPDX-License-Identifier: Apache-2.0
//
// FetchSplit: which of the tokens before a run of rows come as activations, from which the compute
// node makes K and V again, which do not come, since it has their activations, and which come as K
// and V. Both sides compute the same.
//
// - Path recompute of activations: memory nodes keep both, but of bare tokens
//   (SequenceJoin::bare_tokens) K and V alone. The step's plan says of how many of those that have
//   slots K and V are made again: first of those whose activations the compute node keeps
//   (SequenceJoin::resident), then of the first ones that have some at the memory node.
// - Path hybrid: a slot holds one of them, and the token's slot says which. Of
//   activations that the compute node keeps nothing comes.
// - Path recompute where K and V are made from token numbers (EpochConfig::made_tokens_max): memory
//   nodes keep K and V alone. The step's plan says of how many tokens, of each run alike. Nothing
//   of these comes.
//
// Tokens that the windows of all layers have left behind have no slots, and no row sees them:
// nothing of them comes, and they are neither counted nor made again.
//
// Where sequences are cut into spans, what of a run is of a span is a run of its own, with tokens
// counted from the span's first one: those of the other spans come from elsewhere. How many are
// made again is settled for the whole run. The first tokens of it are made from their numbers, and
// those that have activations on the compute node come first as ever; but what comes as activations
// is spread over the spans, so that each memory node sends its part of it.
//
// Threading: plain values.   Allocation: the lists.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "plan/attention_paths.h"
#include "plan/epoch_config.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::plan {

// Consecutive tokens that come alike, or do not come.
struct FetchStretch {
  uint32_t tokens = 0;
  bool activations = false;  // K and V are made again from these.
  // The compute node has these, or of tokens without any makes K and V from their numbers: nothing
  // of such tokens comes.
  bool here = false;
  bool hidden = false;  // Nothing comes of these either, which have no slots.
  friend bool operator==(const FetchStretch&, const FetchStretch&) = default;
};

struct FetchSplit {
  FetchRun run;
  std::vector<FetchStretch> stretches;  // Cover the tokens before the run, in order.
};

// K and V of `share` kRecomputeUnit-ths of the tokens that have slots (StepPlan::recomputed) are
// made again, in whole tiles: of those that are `resident`, and as far as these are fewer, of the
// first others behind `bare` that have no activations, as far as there are so many. All of them,
// where none is bare, are not cut to tiles, since a tile of K and V less comes then. The first
// `released` tokens have no slots.
FetchSplit SplitByShare(uint32_t before, uint32_t tokens, uint32_t share, uint32_t bare = 0,
                        uint32_t released = 0, const ResidentTokens& resident = {});

// By the slots of the sequence: of those that hold activations, the ones of its resident tokens do
// not come.   Requires: it has had slots for `before` tokens at least.
FetchSplit SplitBySlots(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                        SlotKinds kinds);

// Tokens [first, first + tokens) of a sequence.
struct TokenSpan {
  uint32_t first = 0;
  uint32_t tokens = 0;
};
// Requires: partition token_range.
inline TokenSpan SpanAt(const EpochConfig& config, uint32_t index) {
  return {.first = index * config.span_tokens, .tokens = config.span_tokens};
}

// What of the tokens before a run, and of the run's own, is of the span. The first `released`
// tokens of the sequence have no slots. K and V of `share` kRecomputeUnit-ths of the others are
// made again, as with SplitByShare(): of those that are `resident`, wherever they lie, and as far
// as these are fewer, of as large a part of the others behind `bare` in each span, in whole tiles.
// All before the run that a span has are not cut to tiles.
FetchSplit SplitBySpan(uint32_t before, uint32_t tokens, uint32_t released, const TokenSpan& span,
                       uint32_t share = 0, uint32_t bare = 0, const ResidentTokens& resident = {});

// As SplitBySlots(), of the tokens of the span, whose slots are `extents`.
FetchSplit SplitSlotsBySpan(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                            SlotKinds kinds, const TokenSpan& span,
                            absl::Span<const Extent> extents);

// How many of the first `before` tokens have K and V made from token numbers: `share`
// kRecomputeUnit-ths of them, in whole tiles, or where K and V are INT8 in whole closed blocks.
// None where some are `released`: all behind them depend on these.
uint32_t MadeFromTokens(uint32_t before, uint32_t share, uint32_t released,
                        KvForm form = KvForm::kBF16);

// K and V of the first MadeFromTokens() are made, and kept for the step (FetchRun::kept).
FetchSplit SplitByTokens(uint32_t before, uint32_t tokens, uint32_t share, uint32_t released,
                         KvForm form = KvForm::kBF16);
// K and V of the tokens from `kept` on are kept (FetchRun::kept), and of the others they come; of
// those that lie in the span.
FetchSplit SplitKeptBySpan(uint32_t before, uint32_t tokens, uint32_t kept, const TokenSpan& span);

// SplitByTokens() for those tokens that lie in the span.
FetchSplit SplitTokensBySpan(uint32_t before, uint32_t tokens, uint32_t share, uint32_t released,
                             const TokenSpan& span);

// How many of a sequence's first tokens do not come by the path, where `released` of them have no
// slots. Tokens that are chosen, heads that stream and INT8 have rules of their own: 0 there.
inline uint32_t HiddenOf(const EpochConfig& config, AttentionPath path, uint32_t released) {
  const bool split = path == AttentionPath::kFetch || path == AttentionPath::kRecompute ||
                     path == AttentionPath::kHybrid;
  return split && config.KvFormOf(path) == KvForm::kBF16 ? released : 0;
}

// Where a memory node has what comes: the slots of the tokens of each kind, in order; none of those
// that do not come. `kinds` numbers the slots of a kind among themselves.
struct FetchSlots {
  std::vector<Extent> kv;
  std::vector<Extent> activations;
};
FetchSlots SlotsOf(const FetchSplit& split, absl::Span<const Extent> extents, SlotKinds kinds);

}  // namespace lamina::plan
