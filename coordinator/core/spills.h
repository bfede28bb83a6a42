// SPDX-License-Identifier: Apache-2.0
//
// Spills: K and V of sequences that have given up their slots, and of cached blocks that may, on
// their way to the spill tiers of memory nodes, there, and on their way back.
//
//   Out --> writing --(all nodes wrote)--> stored --In--> reading --(all have read)--> stored
//              |                             |                |
//              +--(one could not)--> none <--+-----Drop-------+--(one could not)--> none
//
// Those of blocks (OutBlocks, InBlocks, DropBlocks) take half of a tier at most, and are copies:
// blocks keep their slots until they lose them otherwise.
//
// While nodes write or read, the slots have a holder of their own beside the sequence, so that
// nobody gets them even if the sequence leaves or ends meanwhile. What is dropped then is forgotten
// by the nodes once they have reported.
//
// A sequence that is cut into spans goes to the tiers of all nodes that have some of it, or to
// none, and comes back to the same nodes.
//
// Where K and V are INT8 the open block of a sequence goes with its closed ones, out of its tail on
// the node, which is nobody else's before the node has reported, either (tails_leaving()).
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"
#include "cost/spill_cost.h"
#include "plan/spill_blocks.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct SpillStats {
  uint64_t sequences_out = 0;  // Times that one was to be written,
  uint64_t sequences_in = 0;   // was to be read back,
  uint64_t failures = 0;       // and that one of these went wrong: it is recomputed.
  uint32_t stored = 0;         // Sequences that are in tiers or on their way, now.
  uint64_t runs_out = 0;       // Times that a run of cached blocks was to be copied,
  uint64_t runs_in = 0;        // and was to be read back.
  uint32_t runs = 0;           // Runs that tiers have room taken for, now.
};

// What one memory node has of a spill.
struct SpillPart {
  uint32_t node = 0;
  uint32_t tokens = 0;   // That it writes, or has written.
  uint32_t held = 0;     // Those of them that its holder has,
  uint32_t leaving = 0;  // and those whose slots its holder alone keeps.
};
using SpillParts = absl::InlinedVector<SpillPart, 1>;

class Spills {
 public:
  explicit Spills(SequenceKv& kv) : kv_(kv) {}

  // Nothing is there any more; SequenceKv has been reset. Of a sequence on node i what is behind
  // its last whole block of block_tokens[i] tokens is the open block of INT8. 1: all have one form.
  void Reset(const std::vector<MemoryNodeShare>& nodes, const std::vector<uint32_t>& block_tokens);

  // How fast prompts were computed of late, which `RatesOf()` are told with.
  void SetPromptRate(double tokens_per_second) { prompt_tokens_per_second_ = tokens_per_second; }

  // Whether the tiers of all nodes that have some of the sequence have room for that, and the
  // sequence is one that can go on from there: it decodes, and has all its slots. Nothing fits in a
  // tier that has failed so many times in a row, until the next epoch.
  static constexpr uint32_t kFailuresInARowMax = 3;
  bool Fits(const Sequence& sequence) const;
  // Whether another run of blocks may be written now, and whether it has room: no more than so many
  // are on their way at once.
  static constexpr uint32_t kRunsAtOnce = 8;
  bool MayWriteBlocks(uint32_t node) const {
    return nodes_[node].capacity_blocks > 1 && nodes_[node].runs_writing < kRunsAtOnce &&
           nodes_[node].failures_in_a_row < kFailuresInARowMax;
  }
  bool HasRoomForBlocks(uint32_t node) const {
    return nodes_[node].run_blocks < nodes_[node].capacity_blocks / 2 &&
           nodes_[node].used_blocks < nodes_[node].capacity_blocks;
  }
  // Rates of the node's tier; without one they are 0.
  cost::SpillRates RatesOf(uint32_t node) const;

  // Before the sequence gives up its slots, in the plan that carries its leave. Requires: it
  // Fits().
  plan::SpillOut Out(Sequence& sequence);
  // The sequence has joined, with slots of its own for all its tokens, its spans where they were.
  // Requires: IsStored().
  plan::SpillIn In(const Sequence& sequence);
  // A sequence that was to be read back has left before it was: it is again as before In(), and so
  // are the blocks that were to be read for it.
  void Leave(Sequence& sequence);
  // Nobody needs it any more. Nothing, if the sequence has none.
  void Drop(Sequence& sequence);

  // Writes blocks of so many tokens each that follow each other, at most plan::kSpillBlockTokens.
  // Requires: HasRoomForBlocks(); their slots are on the node.
  plan::SpillOut OutBlocks(uint32_t node, const std::vector<const OpenSpan*>& blocks,
                           uint32_t block_tokens);
  // Reads `tokens` tokens of them, the first `skip` passed over, into the slots of the sequence's
  // tokens from `first` on, which has joined. Requires: they have been written, and nobody reads.
  plan::SpillIn InBlocks(uint64_t spill, Sequence& sequence, uint32_t first, uint32_t skip,
                         uint32_t tokens);
  bool HasBlocks(uint64_t spill) const { return spills_.contains(spill); }
  // One of the blocks has lost its slots: if it is being written, these come free afterwards.
  void BlockLeaves(uint64_t spill, uint32_t tokens);
  // Nobody needs them any more. Nothing, if there are none.
  void DropBlocks(uint64_t spill);

  // Whether a sequence that has a spill can be read back now, and where: a node for each span.
  bool IsStored(const Sequence& sequence) const;
  absl::Span<const uint32_t> NodesOf(const Sequence& sequence) const;

  // What a report ends.
  struct Done {
    plan::SequenceId sequence = 0;  // 0: nothing, or it has ended meanwhile. Blocks: the reader.
    uint64_t blocks = 0;            // The number of the spill, if it is one of blocks.
    bool was_read = false;          // Else written.
    bool ok = false;                // Else the spill is gone.
  };
  Done Take(const plan::SpillReport& report);

  // What nodes are to forget with the next plan. Its room is given to others once that step is
  // done, since another lane may be ahead.
  std::vector<plan::SpillDrop> TakeDrops();
  void Dropped(const std::vector<plan::SpillDrop>& drops);
  bool has_drops() const { return !drops_.empty(); }

  // Slots of a node that come free when nodes have reported.
  uint64_t SlotsLeaving(uint32_t node) const { return nodes_[node].leaving; }
  // Tails that do: of those whose sequences run, other parts know.
  uint32_t tails_leaving() const { return tails_leaving_; }
  uint32_t holders() const { return holders_; }
  SpillStats stats() const;

  // Recounts. Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  enum class State : uint8_t { kWriting, kStored, kReading };
  struct Spill {
    plan::SequenceId sequence = 0;           // Whose it is; of blocks who reads them.
    SpillParts parts;                        // One for each node that has some of it.
    absl::InlinedVector<uint32_t, 2> nodes;  // A sequence's, one for each span.
    uint32_t tokens = 0;
    State state = State::kWriting;
    bool blocks = false;   // It is of cached blocks.
    bool dropped = false;  // It is to be dropped once nodes have reported.
    bool failed = false;   // A node has said so.
    uint32_t reports_due = 0;
  };
  struct Node {
    uint32_t capacity_blocks = 0;
    uint32_t sequence_block_tokens = 1;
    uint32_t used_blocks = 0;
    uint32_t run_blocks = 0;  // Those of cached blocks among these.
    uint32_t runs_writing = 0;
    uint64_t leaving = 0;
    uint32_t failures_in_a_row = 0;
    uint32_t nodes = 1;  // How many each have a part of every token.
    cost::SpillRates rates;
  };
  using Entry = std::map<uint64_t, Spill>::iterator;

  // How many of a sequence's first `tokens` tokens are in its open block of INT8.
  uint32_t OpenOf(uint32_t node, uint32_t tokens) const {
    return tokens % nodes_[node].sequence_block_tokens;
  }
  // Blocks of the tier that these take.
  uint32_t BlocksOf(uint32_t node, uint32_t tokens) const {
    const uint32_t open = OpenOf(node, tokens);
    return plan::SpillBlocksOf(tokens - open) + plan::SpillTailBlocksOf(open);
  }
  // Its holder has the slots that are moved: each node that has some of them reports.
  void Expect(Spill& spill);
  void Hold(uint64_t id, Spill& spill, const Sequence& sequence, uint32_t tokens);
  void Release(uint64_t id, Spill& spill);
  // Nobody but its holder has the slots any more.
  void HoldAlone(Spill& spill);
  void SetLeaving(SpillPart& part, uint32_t tokens);
  void Erase(Entry entry);

  SequenceKv& kv_;
  double prompt_tokens_per_second_ = 0;
  std::vector<Node> nodes_;
  std::map<uint64_t, Spill> spills_;
  std::vector<plan::SpillDrop> drops_;
  std::map<uint64_t, Spill> dropping_;  // Until nodes have forgotten them.
  uint64_t ids_ = 0;
  uint32_t holders_ = 0;
  uint32_t tails_leaving_ = 0;
  SpillStats stats_;
};

}  // namespace lamina::core
