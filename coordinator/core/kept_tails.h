// SPDX-License-Identifier: Apache-2.0
//
// KeptTails: open blocks of sequences that outlive the epoch in which these ran, where K and V are
// INT8 in slots and an open block lies in a tail of its own (plan/tails.h): nodes keep the tail of
// a sequence that ran, until it joins again or somebody joins who had none there.
//
// Kept is what is known to be stored: the inputs of a sequence that decodes, behind its last whole
// block. Steps that were under way may have filled the block and begun the next one in the same
// tail, so that blocks which these could fill count as lost, and are computed again.
//
// No slots are held: those of an open block have nothing in them before it is closed.
//
// Nodes apply joins in the order in which plans of their lanes reach them, which need not be that
// in which they were planned. Until a sequence that goes on from its tail has its next token,
// nobody may join who has none (may_take_any()).
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: O(tails kept) for Restore(), Forget() and a newcomer's Joined(); else O(log).

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "coordinator/core/sequence.h"

namespace lamina::core {

class KeptTails {
 public:
  // Tails are kept from now on, of sequences on memory node i that has blocks of block_tokens[i]
  // tokens; 0: none are. `steps_ahead`: steps of a sequence that may be under way at once.
  void Reset(std::vector<uint32_t> block_tokens, uint32_t steps_ahead);

  // The epoch of a sequence ends. Call before Reset().
  void Save(const Sequence& sequence);
  // Directly after Reset(): tails are on the nodes that have taken the place of theirs.
  void Restore(const std::vector<std::optional<uint32_t>>& nodes);
  // The node has no tails any more.
  void Forget(uint32_t node);
  // The sequence has ended: nobody asks for its tail again.
  void Drop(const Sequence& sequence) { tails_.erase(sequence.request.id); }
  // It has joined, on `sequence.node`, and has K and V of `sequence.chunked_tokens` tokens there.
  void Joined(const Sequence& sequence);
  // It has its next token, or runs no more.
  void Settled(const Sequence& sequence) { relied_on_.erase(sequence.request.id); }

  // Whether a sequence of before has a tail somewhere.
  bool Has(plan::SequenceId id) const { return tails_.contains(id); }
  // Whether a sequence that has none may join.
  bool may_take_any() const { return relied_on_.empty(); }
  // Whether it may join on that node: a tail that it has on another one is none there.
  bool MayJoin(const Sequence& sequence, uint32_t node) const;

  // How many tokens of its open block a sequence has there, right behind its first `tokens` tokens.
  uint32_t TokensBehind(const Sequence& sequence, uint32_t node, uint32_t tokens) const;

  // Errors: kInternal  a tail is kept of a sequence that does not wait, or more than a block; or
  //                    one is relied on by a sequence that does.
  absl::Status Audit(absl::FunctionRef<bool(plan::SequenceId)> waits) const;

 private:
  struct Tail {
    uint32_t node = 0;
    uint32_t first = 0;   // The first token of the open block, and
    uint32_t tokens = 0;  // how many are known to be there. 0: the tail alone is.
  };

  std::vector<uint32_t> block_tokens_;  // [memory nodes]
  uint32_t steps_ahead_ = 0;
  std::map<plan::SequenceId, Tail> tails_;
  std::set<plan::SequenceId> relied_on_;
};

}  // namespace lamina::core
