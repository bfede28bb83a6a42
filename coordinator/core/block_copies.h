// SPDX-License-Identifier: Apache-2.0
//
// BlockCopies: copies of cached blocks in the spill tiers of their memory nodes, made while the
// blocks still have slots, so that a block that gives up its slots is not lost.
//
// Copied are runs of SchedulerOptions::copied_run_tokens tokens that nobody uses, the one that was
// used least recently first, once few slots of the node are free. Copies take half of a tier at
// most, the rest is for sequences; where that is full the copy that was used least recently makes
// room.
//
//           Copy             Written                 BeginRead
//   (none) ------> writing ----------> readable <-----------------> being read
//              |                          |           Written
//              +--(could not)--> none <---+--Lose
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/block_tree.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/spills.h"
#include "plan/step_plan.h"

namespace lamina::core {

class BlockCopies {
 public:
  // Copies runs of `run_tokens` tokens.
  BlockCopies(BlockTree& tree, Spills& spills, uint32_t run_tokens)
      : tree_(tree), spills_(spills), run_tokens_(run_tokens) {}

  // There are none, and blocks have so many tokens. Requires: Spills has been reset.
  void Reset(uint32_t block_tokens) {
    block_tokens_ = block_tokens;
    copies_.clear();
  }
  // Blocks that are copied together; 0 where blocks do not divide a run.
  uint32_t RunBlocks() const {
    return run_tokens_ % block_tokens_ == 0 ? run_tokens_ / block_tokens_ : 0;
  }

  // Has the plan write copies of blocks of the node, `free` of whose `slots` are.
  // Requires: the plan will be made.
  void Copy(uint32_t node, uint32_t free, uint32_t slots, plan::StepPlan& plan);
  // A copy was written, or read: it can be read.
  void Written(uint64_t copy);
  // What is copied there cannot be read any more, and is dropped from the tier. Blocks that have
  // neither slots nor another copy are forgotten, with all that is below them.
  void Lose(uint64_t copy);
  // The block has lost its slots: it is forgotten if it has no copy.
  void SlotsLost(CachedBlock& block);

  // A copy from which a block without slots can be read now; 0: there is none.
  uint64_t ReadableFor(const CachedBlock& block) const;
  void BeginRead(uint64_t copy) { copies_.at(copy).readable = false; }

  // Slots of a node that come free when nodes have written what was in them.
  uint64_t SlotsLeaving(uint32_t node) const { return spills_.SlotsLeaving(node); }

  uint32_t count() const { return static_cast<uint32_t>(copies_.size()); }
  // Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  struct Entry {
    CachedBlock* last = nullptr;  // The run's.
    bool readable = false;
  };
  std::vector<CachedBlock*> RunOf(CachedBlock& last) const;  // From its first block on.
  // The copy is forgotten here and in the tier.
  std::vector<CachedBlock*> Forget(uint64_t copy);
  // Forgets a block without slots or copies, and all below it.
  void EraseFrom(CachedBlock& block);

  BlockTree& tree_;
  Spills& spills_;
  const uint32_t run_tokens_;
  uint32_t block_tokens_ = kCachedBlockTokens;
  std::map<uint64_t, Entry> copies_;
};

}  // namespace lamina::core
