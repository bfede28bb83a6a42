// SPDX-License-Identifier: Apache-2.0
//
// PrefixCache: K and V that outlive the sequences that made them, so that a sequence that begins
// with the same tokens does not make them anew.
//
// Kept are blocks of kCachedBlockTokens tokens, or on a node with INT8 of as many as share scales,
// in one tree for each memory node and salt: a block is its tokens and those of all blocks above
// it, compared token by token, since K and V of a token follow from the tokens before it alone. A
// block holds its slots by itself (slot_holder.h), besides the sequences that use them. That blocks
// are kept is known here alone; of those that are copied nodes are told the slots.
//
// Where sequences are cut into spans, a block lies where its span does: on the node of the block
// above it, or on any where it begins a span. Below the last block of a span those with the same
// tokens may be on several nodes. A sequence joins with the blocks of one way, whose nodes are then
// those of its spans. A block that is dropped takes along what is below it on other nodes, which
// was used no later.
//
// A block is pending from when the first sequence with it joins until its K and V are stored; a
// newcomer with the same tokens may wait for it. Once no running sequence has it, it may be dropped
// for others' slots: the one that has been used least recently first, and none before those below
// it. One that has been copied to the spill tier of its node (block_copies.h) is away then, and a
// newcomer may have it read back into slots of its own, during which it is pending.
//
//            Join           Stored            Leave of the last one
//   (none) -------> pending -------> in use <----------------------> unused --MakeRoom--> away,
//                    ^ |                          Join                                   or none
//                    | +--Leave of who makes it--> away, or none
//                    +--ReadBack-- away
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: that of BlockFinder for a sequence that looks, joins or leaves.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/core/block_copies.h"
#include "coordinator/core/block_finder.h"
#include "coordinator/core/block_tree.h"
#include "coordinator/core/cached_block.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

struct PrefixCacheStats {
  uint64_t tokens_asked = 0;    // Sequences that might have found some joined with so many tokens,
  uint64_t tokens_found = 0;    // and found K and V of so many of them,
  uint64_t tokens_read = 0;     // so many of these in spill tiers.
  uint64_t blocks_dropped = 0;  // Those that are away by now counted.
  // Tokens asked for and found by sequences when they joined for the first time: none counts twice.
  uint64_t first_asked = 0;
  uint64_t first_found = 0;
};

class PrefixCache {
 public:
  using Tokens = CachedBlock::Tokens;
  using Found = BlockFinder::Found;

  // Runs of `run_tokens` tokens are copied to spill tiers together.
  PrefixCache(SequenceKv& kv, Spills& spills, uint32_t run_tokens = plan::kSpillBlockTokens);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Nothing is kept any more; SequenceKv has been reset. Memory node i has blocks of
  // block_tokens[i] tokens. Without `keeps` nothing will be, nor found. With `copies` blocks may be
  // copied to spill tiers, if they are all alike. A sequence finds at most `found_max` tokens.
  // With `span_tokens` sequences are cut: nothing is copied, nor kept unless blocks are alike and
  // end where spans do.
  void Reset(std::vector<uint32_t> block_tokens, bool keeps, uint32_t found_max = UINT32_MAX,
             bool copies = false, uint32_t span_tokens = 0);

  // The stored blocks with slots, those above others first, to be kept over a Reset().
  struct Saved {
    uint64_t id = 0;
    uint64_t parent = 0;  // 0: none.
    Tokens tokens;
    uint32_t node = 0;
    std::string salt;
    uint64_t last_used = 0;
    std::vector<Extent> slots;
    uint32_t bare = 0;  // SequenceKv::BareOf()
  };
  std::vector<Saved> Save() const;
  // Directly after Reset(): they lie where they did, on the node that has taken the place of
  // theirs, if any. Those without a node are dropped.
  void Restore(const std::vector<Saved>& blocks, const std::vector<std::optional<uint32_t>>& nodes);
  // Drops all of a node, whose slots hold nothing any more. Requires: no sequence runs.
  void Forget(uint32_t node);

  Found Find(const Sequence& sequence, uint32_t node) const { return finder_.Find(sequence, node); }
  std::vector<Found> FindOnNodes(const Sequence& sequence) const {
    return finder_.FindOnNodes(sequence);
  }
  const BlockFinder& finder() const { return finder_; }

  // The sequence joins on the node, where it has opened a span without slots: it shares those of
  // the blocks that are found, which are returned. Its cached_tokens are then theirs. Unless it
  // `shares` it finds none, and computes all of its tokens.
  std::vector<HeldExtent> Join(Sequence& sequence, uint32_t node, bool shares = true);
  // It is cut, and has begun the next of the spans that it joins with: it shares what is found
  // there, too, if that was all in those before.
  std::vector<HeldExtent> JoinNextSpan(Sequence& sequence);
  // A read from the spill tier.
  struct Read {
    uint64_t copy = 0;
    uint32_t first = 0;  // The sequence's tokens [first, first + tokens),
    uint32_t skip = 0;   // which are behind so many of the copy's.
    uint32_t tokens = 0;
  };
  // The sequence, which has joined and has slots for them, reads the `away` tokens that it found
  // behind its cached_tokens, which include them from now on. They are pending until Stored().
  std::vector<Read> ReadBack(Sequence& sequence, uint32_t away);
  // It has slots for all tokens that it joined with: the blocks of these that nobody keeps are
  // pending from now on.
  void Announce(Sequence& sequence);
  // The fork shares all that its parent has.
  void JoinFork(Sequence& fork, const Sequence& parent);
  // K and V of its first `tokens` tokens are stored. It `leaves`: Leave() comes next.
  void Stored(Sequence& sequence, uint32_t tokens, bool leaves = false);
  // It leaves; call before it gives up its slots.
  void Leave(Sequence& sequence);
  // It gives up its first tokens and runs on: call before. Blocks that no other sequence uses are
  // dropped, and it makes no more.
  void Forget(Sequence& sequence);

  // Drops unused blocks until so many slots of the node are free, or are in quarantine or being
  // written to a spill tier and come free, or none is left to drop.
  void MakeRoom(uint32_t node, uint64_t slots);
  // Makes room without dropping blocks that the sequence would find there.
  void MakeRoomFor(Sequence& sequence, uint32_t node, uint64_t slots);
  // Makes room for one that is cut: its spans will be on these nodes, it finds so many tokens
  // there, and each node is to have as many slots as wanted.
  void MakeRoomForSpans(Sequence& sequence, absl::Span<const uint32_t> nodes, uint32_t tokens,
                        absl::Span<const uint64_t> wanted);

  // How many sequences have left since the block was used that would be dropped first; 0: none is.
  uint64_t UnusedFor(uint32_t node) const;

  // Has the plan write copies of blocks to spill tiers. Requires: the plan will be made.
  void CopyOut(plan::StepPlan& plan);
  BlockCopies& copies() { return copies_; }
  const BlockCopies& copies() const { return copies_; }

  // Slots that blocks hold and no running sequence uses. Those that two blocks have in common,
  // which forks made of one prompt and different answers, count twice.
  uint32_t UnusedOn(uint32_t node) const { return tree_.UnusedOn(node); }
  uint32_t blocks() const { return tree_.with_slots(); }  // That have slots.
  const PrefixCacheStats& stats() const { return stats_; }

  // Recounts everything. Errors: kInternal names the first broken invariant.
  absl::Status Audit(const std::vector<Sequence*>& running) const;

 private:
  CachedBlock* Next(const Sequence& sequence) const;
  // The sequence holds its next block with slots of its own: the one that is away, or a new one.
  // Slots are kept for all of them together (KeepSlots).
  CachedBlock& Hold(Sequence& sequence, CachedBlock* away);
  void UseFound(Sequence& sequence, uint32_t node, uint32_t tokens);
  std::vector<HeldExtent> Share(Sequence& sequence, uint32_t node, uint32_t tokens);
  void Use(CachedBlock& block, Sequence& sequence);
  // All below it that has slots goes, too. Requires: nobody uses these.
  void Drop(CachedBlock& block);

  SequenceKv& kv_;
  BlockTree tree_;
  BlockCopies copies_;
  BlockFinder finder_;
  uint64_t ids_ = 0;
  uint64_t clock_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace lamina::core
