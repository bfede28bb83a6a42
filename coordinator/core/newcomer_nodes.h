// SPDX-License-Identifier: Apache-2.0
//
// NewcomerNodes: the memory nodes of a sequence that joins: where there is room for it, and what it
// finds there.
//
// One that is cut into spans has them placed one after the other. As long as it has found all of
// its tokens, the next span may go where cached blocks with them are, on any node: that is its way
// through the cache. From where the way ends its tokens are computed. One that is in spill tiers
// goes back to where its spans were.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/kept_sequences.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/prefix_cache.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_life.h"

namespace lamina::core {

class NewcomerNodes {
 public:
  NewcomerNodes(const SchedulerOptions& options, const SequenceLife& life,
                const SequenceLife::Places& places, Placement& placement);

  // What a newcomer finds on each node.
  std::vector<PrefixCache::Found> FoundOnNodes(const Sequence& sequence) const;
  // The memory nodes of the spans that a sequence joins with in this lane; empty when there is no
  // room. What it finds kept on a node takes no room there; it has to find `found_min`.
  std::vector<uint32_t> Pick(const Sequence& sequence, uint32_t lane, uint32_t found_min);
  // What it finds in the cache on the nodes that were picked last, of which the first is `node`.
  PrefixCache::Found FoundWherePicked(const Sequence& sequence, uint32_t node) const;
  // The memory nodes of the spans of one that is in spill tiers, and of its next token, with as
  // many slots free as it takes there; empty while there are fewer.
  std::vector<uint32_t> PlaceSpilled(Sequence& sequence, uint32_t lane);
  // Adds the open block that is kept of it on this node to what the cache has of a sequence, if
  // that follows; else drops it.
  void TakeOpenBlock(const Sequence& sequence, uint32_t node, PrefixCache::Found& found);
  // Has the cache, then what is kept of others that wait, give up slots that the sequence needs on
  // the nodes that were picked last, besides those that it finds. Whether they are free now. Unless
  // it `shares`, what it finds may go, too.
  bool MakeRoomFor(Sequence& sequence, const std::vector<uint32_t>& nodes,
                   const PrefixCache::Found& found, bool shares);

  // The load of each node for the next `tokens` tokens of a newcomer, which has taken so many slots
  // there and makes its lane see so many tokens. `kept`: what it finds on each; it has to find
  // `found_min`. Valid until the next call.
  std::vector<NodeLoad>& Loads(const Sequence& sequence, uint32_t tokens, uint32_t found_min,
                               const std::vector<uint64_t>& seen,
                               const std::vector<uint32_t>& taken,
                               const std::vector<PrefixCache::Found>& kept);
  // Whether so many tokens of a newcomer have slots there.
  bool HasRoom(uint32_t node, uint32_t tokens) const;

 private:
  // A span whose node is given: something of it is kept there, or was there before it went to spill
  // tiers.
  struct PlacedSpan {
    uint32_t first = 0;  // Its first token.
    uint32_t node = 0;
  };
  // Those of a sequence, in order; of one that is not cut none.
  std::vector<PlacedSpan> PlacedSpansOf(const Sequence& sequence) const;
  // How many slots have to be free there for so many tokens of one that finds these.
  uint64_t SlotsWanted(uint32_t node, uint32_t tokens, const PrefixCache::Found& found) const;
  std::vector<uint32_t> PickFor(const Sequence& sequence, uint32_t lane, uint32_t found_min,
                                bool shares);
  std::optional<uint32_t> PickOne(const Sequence& sequence, uint32_t lane, uint32_t first,
                                  uint32_t tokens, uint32_t found_min,
                                  absl::Span<const BlockFinder::FoundOfSpan> here);
  bool IsWorthSharing(const Sequence& sequence, uint32_t lane) const;
  // Whether the nodes of these spans of a newcomer have room for what it takes there (taken_, with
  // the last span as if it were full).
  bool PlacedHaveRoom(absl::Span<const PlacedSpan> placed, uint32_t joins);
  // Whether so many slots are free there, or come free once the cache drops what the newcomer does
  // not find, and nobody waits for them.
  bool HasSlots(uint32_t node, uint64_t wanted, uint32_t free,
                const PrefixCache::Found& found) const;
  bool MakeRoomForSpans(Sequence& sequence, const std::vector<uint32_t>& nodes);
  // Whether each node has as many slots as wanted that are free, or that parts of others hold.
  bool HaveSlotsWithParts(const Sequence& sequence, absl::Span<const uint64_t> wanted) const;

  const SchedulerOptions& options_;
  const SequenceLife& life_;
  SequenceLife::Places places_;
  Placement& placement_;
  // What Pick() has found in the cache for one that is cut, in all its spans.
  PrefixCache::Found shared_;
  // Lists with an entry for each node, made anew for each newcomer in the memory of the last one's.
  std::vector<NodeLoad> loads_;
  std::vector<uint64_t> seen_;
  std::vector<uint32_t> taken_;
  std::vector<PrefixCache::Found> found_;
};

}  // namespace lamina::core
