// SPDX-License-Identifier: Apache-2.0
//
// SlotTables: which slots the tokens of each sequence have, as a node that holds KV learns it from
// plans: a memory node, or a compute node under policy local.
//
// Threading: one thread.   Allocation: when sequences join or get slots.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "plan/step_plan.h"
#include "plan/tails.h"

namespace lamina::plan {

// What a plan moves between slots and the spill tier.
struct SlotMove {
  enum class Kind : uint8_t { kOut, kIn, kDrop };
  Kind kind = Kind::kDrop;
  uint64_t spill = 0;
  bool of_blocks = false;     // kOut: of blocks of the prefix cache, and not of a sequence.
  uint32_t skip = 0;          // kIn: so many of the tokens that were written are passed over.
  std::vector<Extent> slots;  // Slots of consecutive tokens; with kDrop none.
  // kOut, kIn, where slots are INT8: those of bf16 that have the tokens behind these, in the
  // sequence's tail, which is kept for the move until SlotTables::EndMove(). Of 0 tokens: none.
  Extent tail = {};
};

class SlotTables {
 public:
  struct Options {
    uint32_t node = 0;   // Own index among the epoch's memory nodes.
    uint32_t slots = 0;  // How many the arena has.
    // Partition token_range: sequences are cut into spans of so many tokens. Else 0.
    uint32_t span_tokens = 0;
    // Every sequence has K and V here, all or some; else those whose join names this node.
    bool holds_all = false;
    // With spans: slots on other nodes are kept too, for who reads those of all.
    bool all_spans = false;
    // Where slots are INT8: sequences whose open block has a tail of its own. 0: none has.
    uint32_t tails = 0;
    // Path remote_int8: slots of an arena of its own; of the other paths no sequence has a tail.
    // 0: all have the same form.
    uint32_t int8_slots = 0;
    // Path hybrid next to others: slots of its own, which are numbered by themselves. 0: it has
    // those of all, or is not there.
    uint32_t hybrid_slots = 0;
  };
  // Tokens [index * span_tokens, + tokens) of a sequence.
  struct Span {
    uint32_t index = 0;
    std::vector<Extent> extents;
    uint32_t tokens = 0;
  };
  // Tokens whose slots are released are an extent of slot 0 at the front, which nothing reads: so
  // tokens keep their numbers.
  struct Sequence {
    std::vector<Extent> extents;
    uint32_t tokens = 0;                          // With spans those on other nodes too.
    uint32_t released = 0;                        // The first ones of these.
    AttentionPath path = AttentionPath::kRemote;  // By which its rows attend.
    uint32_t bare = 0;                            // SequenceJoin::bare_tokens
    ResidentTokens resident = {};                 // SequenceJoin::resident
    // With spans, in place of `extents`: those that lie here, or all of them, in order.
    std::vector<Span> spans;
    uint32_t tail = 0;  // Which of the tails is its own, if it has one.
  };

  // `kept`: tails that were there before, options.tails of them, of which no sequence has joined.
  // They outlive this; null: they are as new.
  explicit SlotTables(const Options& options, Tails* kept = nullptr);

  // All changes of the plan.
  // Errors: kInternal  slots that the arena does not have, or across the border of two spans; a
  //                    release of more tokens than there are, or of fewer than before; more
  //                    sequences than tails; a spill of more tokens than have slots.
  absl::Status Apply(const StepPlan& plan);

  // What plans have moved since the last call, in order. Those of sequences of other nodes, and of
  // those that have no span here, are left out, but for drops.
  std::vector<SlotMove> TakeMoves() { return std::exchange(moves_, {}); }

  // What a plan that is still to be applied reads from the spill tier to this node, which is not
  // among the plan's changes any more: these slots come with joins of the plan, and all steps that
  // used them are over, so that reading need not wait. A sequence has its tail from here on; while
  // there is none for it, or it is still to leave, its read stays in the plan.
  // Errors: kInternal  a sequence has no slots for what it reads.
  absl::StatusOr<std::vector<SlotMove>> TakeReads(StepPlan& plan);

  // The move of this number has ended: its tail, if it has one, may be another one's. Before plans
  // that were made after its report.
  void EndMove(uint64_t spill) { tails_.EndMove(spill); }

  // Own index among the epoch's memory nodes.
  uint32_t node() const { return options_.node; }

  // Null: it is not here. Stays where it is until it leaves.
  const Sequence* Find(SequenceId id) const;

  // The slots of tokens [first, first + tokens) of a sequence; with spans of those that lie here.
  // Errors: kInternal  it has no slots for them, or no more.
  absl::StatusOr<std::vector<Extent>> SlotsOf(const Sequence& sequence, uint32_t first,
                                              uint32_t tokens) const;

  // As above, for `held` tokens whose slots are `extents`.
  static absl::StatusOr<std::vector<Extent>> Part(absl::Span<const Extent> extents, uint32_t held,
                                                  uint32_t first, uint32_t tokens);

 private:
  absl::Status Apply(const SpillDrop& drop);
  absl::Status Apply(const SpillOut& spill);
  absl::Status Apply(const SpillIn& spill);
  absl::Status Apply(const SequenceLeave& leave);
  absl::Status Apply(const SlotRelease& release);
  absl::Status Apply(const SequenceJoin& join);
  absl::Status Apply(const SlotAllocation& allocation);
  absl::Status MoveOut(const SpillOut& spill);
  // Whether the sequence, which is to join, has a tail by now.
  bool TakeTailAhead(SequenceId id);
  // How many of a sequence's first `tokens` tokens are behind its last closed block, in its tail.
  uint32_t OpenOf(AttentionPath path, uint32_t tokens) const {
    return HasTail(path) ? tokens % kInt8BlockTokens : 0;
  }
  // Begins with the tail of a sequence that has joined, which has so many tokens there.
  Extent BeginTailMove(SequenceId id, uint64_t spill, uint32_t tail, uint32_t tokens);
  bool spans() const { return options_.span_tokens > 0; }
  // Whether slots of this path have a form of their own, next to those of the others.
  bool IsApart(AttentionPath path) const {
    return options_.int8_slots > 0 && path == AttentionPath::kRemoteInt8;
  }
  // How many there are for this path.
  uint32_t SlotsOfPath(AttentionPath path) const {
    if (path == AttentionPath::kHybrid && options_.hybrid_slots > 0) {
      return options_.hybrid_slots;
    }
    return IsApart(path) ? options_.int8_slots : options_.slots;
  }
  // Where spans lie on nodes: whether these slots are kept here.
  bool Keeps(const SlotAllocation& allocation) const {
    return options_.all_spans || allocation.memory_node == options_.node;
  }
  bool IsHere(const SequenceJoin& join) const {
    return options_.holds_all || join.memory_node == options_.node;
  }
  bool HasTail(AttentionPath path) const {
    return options_.tails > 0 && (options_.int8_slots == 0 || IsApart(path));
  }
  absl::Status CheckExtent(const Extent& extent, uint32_t slots) const;
  absl::Status AllocateToSpan(Sequence& sequence, const SlotAllocation& allocation) const;

  const Options options_;
  std::map<SequenceId, Sequence> sequences_;
  std::unique_ptr<Tails> own_tails_;
  Tails& tails_;
  std::map<SequenceId, uint32_t> tails_ahead_;  // By sequence whose join is still to be applied.
  std::vector<SlotMove> moves_;
};

}  // namespace lamina::plan
