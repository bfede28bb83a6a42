// SPDX-License-Identifier: Apache-2.0
//
// KeptSequences: K and V of sequences that outlive the epoch in which these ran, besides the prefix
// cache.
//
// Where sequences are cut into spans (partition token_range), a lost memory node takes its spans;
// the others stay where they are, and only tokens without K and V are computed again. Kept are the
// first tokens of each span, as far as they are known to be stored: a part. What lies between the
// parts of a sequence is missing. K and V of a token follow from the tokens before it alone, so
// that parts behind missing tokens are as good as those before them.
//
// A sequence that is not cut leaves its whole blocks to the prefix cache. Kept here is one part,
// its open block: the stored tokens behind the last whole one, which only this sequence finds. It
// joins with them where the cache has all blocks before them.
//
//   prefilling, decoding --(epoch ends: Save)--> waiting; the parts hold slots (SequenceKv::Keep)
//        ^                                          |        |
//        +-----(Join; then what is missing)---------+        +--(node lost, or MakeRoom)--> fewer
//
// Parts of those that wait give way to whoever needs the slots, those of the last in service order
// first. Beams and scores keep nothing: beams share slots with each other, and scores need the
// log-probabilities of all their tokens.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: O(parts) for a sequence; MakeRoom() looks at those that keep something.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

class KeptSequences {
 public:
  // Tokens [first, first + tokens) of a sequence, the first ones of a span or of a cached block.
  struct Part {
    uint32_t first = 0;
    uint32_t tokens = 0;
    uint32_t node = 0;
    uint32_t bare = 0;               // SequenceKv::BareOf()
    std::vector<Extent> slots = {};  // While its sequence waits: where K and V lie,
    OpenSpan* kept = nullptr;        // and what holds them.
    uint32_t end() const { return first + tokens; }
  };

  KeptSequences(ServiceBefore before, SequenceKv& kv) : kv_(kv), entries_(before) {}
  KeptSequences(const KeptSequences&) = delete;
  KeptSequences& operator=(const KeptSequences&) = delete;

  // SequenceKv has been reset: no part has slots before Restore(). With `span_tokens` 0 nothing is
  // kept from now on. Kept are whole blocks of `block_tokens`: where K and V are INT8, slots hold
  // nothing of one that is open.
  void Reset(uint32_t memory_nodes, uint32_t span_tokens, uint32_t block_tokens = 1);
  // As above, of sequences that are not cut: memory node i has cached blocks of block_tokens[i]
  // tokens; 0: no open blocks are kept there.
  void ResetOpenBlocks(std::vector<uint32_t> block_tokens);
  // Whether Stored() has to be told.
  bool keeps() const { return keeps_; }

  // K and V of so many tokens of a sequence in prefill, from `first` on, are stored. Requires: it
  // runs; those of its span before them are. Its stored_tokens are then those without a hole.
  void Stored(Sequence& sequence, uint32_t first, uint32_t tokens);
  // The epoch of a sequence ends. Call before SequenceKv is reset.
  void Save(const Sequence& sequence);
  // Directly after Reset(): parts lie where they did, on the nodes that have taken the place of
  // theirs. Those without one are gone.
  void Restore(const std::vector<std::optional<uint32_t>>& nodes);
  // Slots of the node hold nothing. Requires: no sequence runs.
  void Forget(uint32_t node);
  // It decodes, gives up its slots or ends: nothing of it is kept, or has to be remembered.
  void Drop(const Sequence& sequence);

  // What is kept of a sequence, in order.
  absl::Span<const Part> PartsOf(const Sequence& sequence) const;
  // The first token from this one on that is in no part,
  uint32_t NextMissing(const Sequence& sequence, uint32_t from) const;
  // and from there the first one that is in a part, or the number of its tokens.
  uint32_t EndOfMissing(const Sequence& sequence, uint32_t from) const;

  // Whether the open block of the sequence is kept there, right behind its first `tokens` tokens.
  bool HasOpenBlockBehind(const Sequence& sequence, uint32_t node, uint32_t tokens) const;
  // The sequence joins, and has begun a span: it shares what is kept of it, which nobody else holds
  // for it any more. Returns the slots; empty: nothing is kept.
  std::vector<HeldExtent> JoinSpan(const Sequence& sequence);

  // Drops parts on the node until so many of its slots are free, or in quarantine, or none is left
  // but those of `keeper`.
  void MakeRoom(uint32_t node, uint64_t slots, const Sequence* keeper = nullptr);
  // Slots that parts of waiting sequences hold there. Those that forks have in common count for
  // each.
  uint32_t SlotsOn(uint32_t node) const { return slots_on_[node]; }

  // Tokens of cut sequences that joined with parts, and those of parts that any joined with.
  uint64_t tokens_asked() const { return tokens_asked_; }
  uint64_t tokens_found() const { return tokens_found_; }

  uint32_t parts_with_slots() const;
  // Recounts. Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  using Parts = std::vector<Part>;
  bool Keeps(const Sequence& sequence) const;
  bool cuts() const { return span_tokens_ > 0; }
  // Parts begin where spans or cached blocks do, and are not longer.
  uint32_t UnitOn(uint32_t node) const { return cuts() ? span_tokens_ : block_tokens_[node]; }
  void LeaveOpenBlocks(Parts& parts) const;
  Parts SpansOf(const Sequence& sequence, uint32_t stored) const;
  Parts OpenBlockOf(const Sequence& sequence, uint32_t stored) const;
  void ForgetSlots();
  void Release(Part& part);

  SequenceKv& kv_;
  bool keeps_ = false;
  uint32_t span_tokens_ = 0;            // 0: not cut.
  uint32_t part_block_tokens_ = 1;      // Cut, a part is a multiple of it.
  std::vector<uint32_t> block_tokens_;  // [memory nodes], where sequences are not cut.
  absl::btree_map<const Sequence*, Parts, ServiceBefore> entries_;
  std::vector<uint32_t> slots_on_;  // [memory nodes]
  uint64_t tokens_asked_ = 0;
  uint64_t tokens_found_ = 0;
};

}  // namespace lamina::core
