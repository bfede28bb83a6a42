// SPDX-License-Identifier: Apache-2.0
//
// NodeResidents: which sequences live on each memory node, and which of them have a row that waits
// for a slot there. A sequence lives where it has slots, and where its next token goes.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

class NodeResidents {
 public:
  explicit NodeResidents(ServiceBefore before) : before_(before) {}

  // Nobody lives anywhere.
  void Reset(uint32_t memory_nodes);

  // Settles a sequence on its `node`, and where it has slots.
  void Add(Sequence& sequence, const SequenceKv& kv);
  // It lives nowhere, and starves nowhere.
  void Remove(Sequence& sequence);
  // Its next token goes to `node`. A row of it that waited elsewhere waits no more.
  void SetNode(Sequence& sequence, uint32_t node, const SequenceKv& kv);

  // Some of its slots are gone: it lives where it has some. What waits goes on waiting.
  void Resettle(Sequence& sequence, const SequenceKv& kv);

  const SequenceQueue& On(uint32_t node) const { return nodes_[node].residents; }
  uint32_t CountOn(uint32_t node) const {
    return static_cast<uint32_t>(nodes_[node].residents.size());
  }

  // Its next row got no slot on its node, or has one.
  void Starve(Sequence& sequence);
  void Feed(Sequence& sequence);
  size_t Starving(uint32_t node) const { return nodes_[node].starving.size(); }
  // How many that starve on the node of this sequence go before it.  Cost: O(log n).
  size_t StarvingBefore(Sequence& sequence) const;

  // Recounts over those that run. Errors: kInternal names the first broken invariant.
  absl::Status Audit(const std::vector<Sequence*>& running, const SequenceKv& kv) const;

 private:
  struct Node {
    explicit Node(ServiceBefore before) : residents(before) {}
    SequenceQueue residents;
    std::vector<Sequence*> starving;  // In service order.
  };

  ServiceBefore before_;
  std::vector<Node> nodes_;
};

}  // namespace lamina::core
