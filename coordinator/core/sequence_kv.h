// SPDX-License-Identifier: Apache-2.0
//
// SequenceKv: the slots of sequences, and of other holders of their kind of K and V, that may be
// cut into spans on different memory nodes.
//
// Uncut, a holder is one span on one node. Cut, span i holds tokens [i * span_tokens, (i + 1) *
// span_tokens), and each span lies on a node of its own choice.
//
// A holder's first tokens may be bare: their slots have K and V without the activations that these
// were made from, since rows of another path than recompute stored them. Who shares slots, or forks
// from a holder, has those that were bare there.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/slot_holder.h"

namespace lamina::core {

// Slots that a holder got, on the node of its span.
struct HeldExtent {
  Extent extent;
  uint32_t memory_node = 0;
};

// What a holder has, for who keeps it at hand.
struct HeldSpans {
  absl::InlinedVector<uint32_t, 2> nodes;  // By span.
  uint32_t tokens = 0;
  uint32_t released = 0;  // The first ones of these, which have no slots any more.
  uint32_t bare = 0;      // So many of its first tokens, of those to come too, are bare.
  OpenSpan* last = nullptr;

  // How many of `count` tokens from `first` on are bare, the first ones.
  uint32_t BareIn(uint32_t first, uint32_t count) const {
    return bare > first ? std::min(count, bare - first) : 0;
  }
  // The first `count` of its next tokens are bare, and so those before them count as bare.
  void AddBare(uint32_t count) {
    if (count > 0) {
      bare = std::max(bare, tokens + count);
    }
  }
};

class SequenceKv {
 public:
  // Spans of one holder at most.
  static constexpr uint32_t kSpansMax = 16;

  // Without memory nodes, until Reset().
  SequenceKv() : SequenceKv({}, 0) {}
  // `span_tokens` 0 cuts nothing.
  SequenceKv(const KvDirectoryOptions& options, uint32_t span_tokens) {
    Reset(options, span_tokens);
  }
  // Nothing is held.
  void Reset(const KvDirectoryOptions& options, uint32_t span_tokens);

  // All tokens of a holder, for Open().
  static constexpr uint32_t kAllBare = UINT32_MAX;

  // Starts a holder without spans, whose own first tokens will be bare. Requires: not open.
  void Open(SlotHolder holder, uint32_t bare = 0);
  // Stays where it is until Release(). Requires: open.
  HeldSpans* Get(SlotHolder holder) { return &spans_.at(holder); }
  // The next tokens go to `node`. Requires: RoomInSpan(holder) == 0.
  void BeginSpan(SlotHolder holder, uint32_t node);
  // Requires: tokens <= RoomInSpan(holder).
  // Errors: those of KvDirectory::Append; nothing changed.
  absl::StatusOr<std::vector<HeldExtent>> Append(SlotHolder holder, uint32_t tokens);
  // Takes one slot for a decode row; nothing when none is free.
  std::optional<HeldExtent> AppendOne(HeldSpans& held);
  // As KvDirectory::Fork, span by span. The two may be of different kinds.
  std::vector<HeldExtent> Fork(SlotHolder parent, SlotHolder child, uint32_t tokens);
  // As KvDirectory::Share. Requires: nothing is cut; both are open, with a span on one node.
  std::vector<HeldExtent> Share(SlotHolder from, uint32_t first, uint32_t tokens, SlotHolder to);

  // Spans of a holder's tokens that are kept without a holder, as those of KvDirectory are.
  // Requires: what is shared from or with is open, its last span on the same node. Keep(): `held`
  // is what the holder has; cut, none of them is in two of its spans.
  void Keep(SlotHolder holder, const HeldSpans& held, uint32_t first, uint32_t tokens,
            absl::Span<OpenSpan*> kept);
  OpenSpan* ClaimKept(uint32_t node, const std::vector<Extent>& slots);
  void ReleaseKept(OpenSpan* kept) { directory_->ReleaseKept(kept); }
  // The holder shares all slots of the kept span, as its next tokens', the first of them `bare`.
  std::vector<HeldExtent> ShareKept(const OpenSpan& kept, SlotHolder to, uint32_t bare = 0);

  void Release(SlotHolder holder, uint64_t ticket);
  // This does what KvDirectory::ReleaseFirst does, span by span.
  void ReleaseFirst(SlotHolder holder, uint32_t tokens, uint64_t ticket);
  void Recycle(uint64_t ticket) { directory_->Recycle(ticket); }

  bool IsOpen(SlotHolder holder) const { return spans_.contains(holder); }
  uint32_t TokensOf(SlotHolder holder) const;
  // How many of the tokens that it has are bare, the first ones.
  uint32_t BareOf(SlotHolder holder) const;
  uint32_t SlotsOn(SlotHolder holder, uint32_t node) const;
  // Tokens that the last span still takes; 0 before the first.
  uint32_t RoomInSpan(const HeldSpans& held) const;
  uint32_t RoomInSpan(SlotHolder holder) const { return RoomInSpan(spans_.at(holder)); }
  // Tokens of a holder on one node.
  struct Span {
    uint32_t node = 0;
    uint32_t first = 0;
    uint32_t tokens = 0;
    uint32_t slots = 0;  // Taken by the tokens that have some.
  };
  // Calls `visit` with each span, in order.
  void VisitSpans(SlotHolder holder, absl::FunctionRef<void(const Span&)> visit) const;
  uint32_t holders() const { return static_cast<uint32_t>(spans_.size()); }  // With a key.

  const KvDirectory& directory() const { return *directory_; }
  absl::Status Audit() const;

 private:
  static HeldSpan At(SlotHolder holder, size_t span) {
    return {holder, static_cast<uint32_t>(span)};
  }

  std::unique_ptr<KvDirectory> directory_;
  uint32_t span_tokens_ = 0;
  std::map<SlotHolder, HeldSpans> spans_;
};

// Tokens of a span, for sequences of at most `sequence_tokens_max`: a power of two of attention
// blocks, so that a whole span is one node of the merge tree, and at most half of kSpansMax of
// them.
uint32_t SpanTokensFor(uint32_t sequence_tokens_max);

// Whether sequences of `tokens_least` can be cut into spans over these nodes.
// Errors: kFailedPrecondition  a node without room for one span, or all without room for the
//         longest
//                              sequence; says what there is and what it takes.
absl::Status CheckSpans(const std::vector<MemoryNodeShare>& nodes, uint32_t span_tokens,
                        uint32_t tokens_least);

}  // namespace lamina::core
