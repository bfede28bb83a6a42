// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/newcomer_nodes.h"

#include <algorithm>
#include <functional>

#include "common/check.h"

namespace lamina::core {
namespace {

// How many times as many steps as chunks the rows behind a found prefix may take, of one that is
// cut. Each computes fewer tokens.
constexpr uint64_t kRowStepsPerChunk = 8;

void Add(PrefixCache::Found& sum, const PrefixCache::Found& found) {
  sum.tokens += found.tokens;
  sum.unused += found.unused;
}

}  // namespace

NewcomerNodes::NewcomerNodes(const SchedulerOptions& options, const SequenceLife& life,
                             const SequenceLife::Places& places, Placement& placement)
    : options_(options), life_(life), places_(places), placement_(placement) {}

// One that is cut joins with the parts of it that are kept, if there are any, and leaves the cache
// alone then.
std::vector<PrefixCache::Found> NewcomerNodes::FoundOnNodes(const Sequence& sequence) const {
  const bool cut = options_.span_tokens > 0;
  const absl::Span<const KeptSequences::Part> parts = places_.kept.PartsOf(sequence);
  std::vector<PrefixCache::Found> found =
      cut && !parts.empty() ? std::vector<PrefixCache::Found>(options_.memory_nodes.size())
                            : places_.cache.FindOnNodes(sequence);
  for (const KeptSequences::Part& part : parts) {
    PrefixCache::Found& there = found[part.node];
    if (cut || there.tokens == part.first) {
      there.tokens += part.tokens;
      there.unused += part.tokens;
    }
  }
  for (uint32_t node = 0; node < found.size(); ++node) {
    const uint32_t in_tail = places_.tails.TokensBehind(sequence, node, found[node].tokens);
    found[node].tokens += in_tail;
    found[node].unused += in_tail;  // They take slots that are free.
  }
  return found;
}

std::vector<uint32_t> NewcomerNodes::Pick(const Sequence& sequence, uint32_t lane,
                                          uint32_t found_min) {
  const bool may_share = options_.span_tokens > 0 && !places_.lanes.IsPrefill(lane) &&
                         places_.kept.PartsOf(sequence).empty();
  if (!may_share) {
    return PickFor(sequence, lane, found_min, /*shares=*/false);
  }
  std::vector<uint32_t> nodes = PickFor(sequence, lane, found_min, /*shares=*/true);
  if (nodes.empty() || (shared_.tokens > 0 && !IsWorthSharing(sequence, lane))) {
    const uint32_t pending = shared_.pending;
    nodes = PickFor(sequence, lane, found_min, /*shares=*/false);
    shared_.pending = pending;
  }
  return nodes;
}

// What is behind a found prefix are rows, of which a step has as many as the rows of others leave:
// with few of them the whole prompt is sooner there in chunks, and so it is where most of it is
// computed anyway. Who has run lacks no more than a block.
bool NewcomerNodes::IsWorthSharing(const Sequence& sequence, uint32_t lane) const {
  const uint64_t tokens = sequence.tokens();
  const uint64_t rest = tokens - shared_.tokens;
  const uint64_t most = uint64_t{options_.rows_max} + options_.prompt_rows_max;
  const uint64_t taken = places_.lanes[lane].running.size();
  const uint64_t rows = most > taken ? most - taken : 1;
  const uint64_t chunks = (tokens + options_.chunk_tokens - 1) / options_.chunk_tokens;
  const bool int8 = options_.FormOf(life_.PathOf(sequence.request)) == KvForm::kInt8;
  const uint32_t block = int8 ? options_.int8_block_tokens : options_.cached_block_tokens;
  return rest <= block || (rest <= shared_.tokens && rest <= kRowStepsPerChunk * rows * chunks);
}

PrefixCache::Found NewcomerNodes::FoundWherePicked(const Sequence& sequence, uint32_t node) const {
  return options_.span_tokens > 0 ? shared_ : places_.cache.Find(sequence, node);
}

std::vector<uint32_t> NewcomerNodes::PlaceSpilled(Sequence& sequence, uint32_t lane) {
  if (options_.span_tokens > 0) {
    std::vector<uint32_t> nodes = PickFor(sequence, lane, /*found_min=*/0, /*shares=*/false);
    return !nodes.empty() && MakeRoomForSpans(sequence, nodes) ? nodes : std::vector<uint32_t>();
  }
  const uint32_t node = places_.spills.NodesOf(sequence).front();
  if (!HasRoom(node, sequence.tokens())) {
    return {};
  }
  const uint64_t wanted = SlotsWanted(node, sequence.tokens(), {});
  places_.MakeRoom(node, wanted);
  return places_.kv.directory().SlotsFree(node) < wanted ? std::vector<uint32_t>()
                                                         : std::vector<uint32_t>{node};
}

// Without the blocks before it, an open block takes slots from others and is of no use.
void NewcomerNodes::TakeOpenBlock(const Sequence& sequence, uint32_t node,
                                  PrefixCache::Found& found) {
  if (options_.span_tokens > 0) {
    return;
  }
  if (places_.kept.HasOpenBlockBehind(sequence, node, found.tokens)) {
    found.tokens += places_.kept.PartsOf(sequence)[0].tokens;
  } else {
    places_.kept.Drop(sequence);
  }
}

bool NewcomerNodes::MakeRoomFor(Sequence& sequence, const std::vector<uint32_t>& nodes,
                                const PrefixCache::Found& found, bool shares) {
  if (options_.span_tokens > 0) {
    return MakeRoomForSpans(sequence, nodes);
  }
  const uint32_t node = nodes[0];
  const uint64_t wanted = SlotsWanted(node, options_.SlotsAtOnce(sequence.tokens()), found);
  if (shares) {
    places_.cache.MakeRoomFor(sequence, node, wanted);
  } else {
    places_.cache.MakeRoom(node, wanted);
  }
  places_.kept.MakeRoom(node, wanted, &sequence);
  return places_.kv.directory().SlotsFree(node) >= wanted;
}

bool NewcomerNodes::MakeRoomForSpans(Sequence& sequence, const std::vector<uint32_t>& nodes) {
  std::vector<uint64_t> wanted(taken_.size());
  for (uint32_t node = 0; node < wanted.size(); ++node) {
    wanted[node] = taken_[node] == 0 ? 0 : SlotsWanted(node, taken_[node], found_[node]);
  }
  places_.cache.MakeRoomForSpans(sequence, nodes, shared_.tokens, wanted);
  if (!HaveSlotsWithParts(sequence, wanted)) {
    return false;
  }
  for (uint32_t node = 0; node < wanted.size(); ++node) {
    places_.kept.MakeRoom(node, wanted[node], &sequence);
    if (places_.kv.directory().SlotsFree(node) < wanted[node]) {
      return false;
    }
  }
  return true;
}

// HasSlots() counts slots twice that a cached block and a part of the same sequence hold, and looks
// at each node by itself: parts that go although they do not suffice would be computed for nothing.
bool NewcomerNodes::HaveSlotsWithParts(const Sequence& sequence,
                                       absl::Span<const uint64_t> wanted) const {
  std::vector<uint64_t> slots(wanted.size());
  for (uint32_t node = 0; node < slots.size(); ++node) {
    slots[node] = uint64_t{places_.kv.directory().SlotsFree(node)} + places_.kept.SlotsOn(node);
  }
  for (const KeptSequences::Part& part : places_.kept.PartsOf(sequence)) {
    slots[part.node] -= part.tokens;
  }
  return std::equal(slots.begin(), slots.end(), wanted.begin(), std::greater_equal<>());
}

// Room for the tokens, the next one, and a few for everybody who is already there: without these a
// newcomer would be preempted, and recomputed, within a few steps.
bool NewcomerNodes::HasRoom(uint32_t node, uint32_t tokens) const {
  return HasSlots(node, SlotsWanted(node, tokens, {}), places_.kv.directory().SlotsFree(node), {});
}

bool NewcomerNodes::HasSlots(uint32_t node, uint64_t wanted, uint32_t free,
                             const PrefixCache::Found& found) const {
  const uint64_t unused = uint64_t{places_.cache.UnusedOn(node)} + places_.kept.SlotsOn(node);
  return places_.residents.Starving(node) == 0 && free + unused >= wanted + found.unused;
}

uint64_t NewcomerNodes::SlotsWanted(uint32_t node, uint32_t tokens,
                                    const PrefixCache::Found& found) const {
  const uint64_t headroom = uint64_t{options_.admission_headroom} * places_.residents.CountOn(node);
  const uint64_t wanted =
      std::min<uint64_t>(tokens + 1 + headroom, options_.memory_nodes[node].slots);
  return wanted - std::min<uint64_t>(wanted, found.tokens);
}

// Span by span. What this sequence takes on a node counts for its next span: a node holds so many
// whole spans of one sequence as fit side by side, so that the sequence can grow to its end
// when it is alone. Spans of which something is kept, or in a tier, are where they were, and take
// their places before the others.
std::vector<uint32_t> NewcomerNodes::PickFor(const Sequence& sequence, uint32_t lane,
                                             uint32_t found_min, bool shares) {
  const Lanes& lanes = places_.lanes;
  const bool cut = options_.span_tokens > 0;
  const bool spilled = sequence.spill != 0;  // All that it has comes back.
  const uint32_t joins = spilled ? sequence.tokens() : options_.SlotsAtOnce(sequence.tokens());
  const std::vector<PlacedSpan> placed = PlacedSpansOf(sequence);
  // The context that it will decode with: of all lanes, if its lane is not decided yet.
  seen_ = lanes.IsPrefill(lane) ? lanes.context_tokens() : lanes[lane].context_tokens;
  taken_.assign(options_.memory_nodes.size(), 0);
  shared_ = {};
  if (lanes.IsPrefill(lane) || spilled || (cut && placed.empty())) {
    found_.assign(taken_.size(), {});
  } else {
    found_ = FoundOnNodes(sequence);
  }
  for (const PlacedSpan& span : placed) {
    taken_[span.node] += options_.span_tokens;
    seen_[span.node] += std::min(options_.span_tokens, joins - span.first);
  }
  std::vector<uint32_t> nodes;
  auto next_placed = placed.begin();
  const CachedBlock* above = nullptr;
  bool finds = shares;
  for (uint32_t left = joins; left > 0;) {
    const uint32_t tokens = cut ? std::min(left, options_.span_tokens) : left;
    const uint32_t first = joins - left;
    left -= tokens;
    if (next_placed != placed.end() && next_placed->first == first) {
      nodes.push_back(next_placed->node);
      ++next_placed;
      continue;
    }
    std::vector<BlockFinder::FoundOfSpan> here;
    if (finds) {
      here = places_.cache.finder().FindInSpan(sequence, above, first);
    }
    const std::optional<uint32_t> picked = PickOne(sequence, lane, first, tokens, found_min, here);
    if (!picked) {
      return {};
    }
    nodes.push_back(*picked);
    if (!finds) {
      continue;
    }
    const BlockFinder::FoundOfSpan& there = here[*picked];
    Add(shared_, there.found);
    above = there.last;
    finds = there.found.tokens == options_.span_tokens;
    for (const BlockFinder::FoundOfSpan& on_node : here) {
      shared_.pending = finds ? 0 : std::max(shared_.pending, on_node.found.pending);
    }
  }
  return PlacedHaveRoom(placed, joins) ? nodes : std::vector<uint32_t>();
}

std::vector<NewcomerNodes::PlacedSpan> NewcomerNodes::PlacedSpansOf(
    const Sequence& sequence) const {
  std::vector<PlacedSpan> placed;
  if (options_.span_tokens == 0) {
    return placed;
  }
  if (sequence.spill == 0) {
    for (const KeptSequences::Part& part : places_.kept.PartsOf(sequence)) {
      placed.push_back({.first = part.first, .node = part.node});
    }
    return placed;
  }
  uint32_t first = 0;
  for (const uint32_t node : places_.spills.NodesOf(sequence)) {
    placed.push_back({.first = first, .node = node});
    first += options_.span_tokens;
  }
  return placed;
}

// The node of tokens [first, first + tokens). `here`: what it finds of these in the cache, if it
// looks for any.
std::optional<uint32_t> NewcomerNodes::PickOne(const Sequence& sequence, uint32_t lane,
                                               uint32_t first, uint32_t tokens, uint32_t found_min,
                                               absl::Span<const BlockFinder::FoundOfSpan> here) {
  const std::vector<PrefixCache::Found>* found = &found_;
  std::vector<PrefixCache::Found> with_these;
  if (!here.empty()) {
    with_these = found_;
    for (uint32_t node = 0; node < with_these.size(); ++node) {
      Add(with_these[node], here[node].found);
    }
    found = &with_these;
  }
  std::vector<NodeLoad>& loads = Loads(sequence, tokens, found_min, seen_, taken_, *found);
  for (uint32_t node = 0; node < loads.size(); ++node) {
    loads[node].fits &= places_.lanes.homes().MayLive(lane, node);
    if (!here.empty()) {
      loads[node].kept_tokens = here[node].found.tokens;
    }
  }
  const uint32_t joins = options_.SlotsAtOnce(sequence.tokens());
  const uint64_t reads = options_.windows.SeenIn(first, uint64_t{first} + tokens, joins);
  const auto picked = placement_.NodeOfNewcomer(loads, static_cast<uint32_t>(reads));
  if (picked) {
    LAMINA_CHECK(loads[*picked].fits);
    taken_[*picked] += tokens;
    seen_[*picked] += reads;
    if (!here.empty()) {
      Add(found_[*picked], here[*picked].found);
    }
  }
  return picked;
}

// The last span may not be full yet: from here on its tokens count alone.
bool NewcomerNodes::PlacedHaveRoom(absl::Span<const PlacedSpan> placed, uint32_t joins) {
  if (!placed.empty() && placed.back().first + options_.span_tokens > joins) {
    taken_[placed.back().node] -= placed.back().first + options_.span_tokens - joins;
  }
  return std::all_of(placed.begin(), placed.end(), [&](const PlacedSpan& span) {
    const PrefixCache::Found& found = found_[span.node];
    return HasSlots(span.node, SlotsWanted(span.node, taken_[span.node], found),
                    places_.kv.directory().SlotsFree(span.node), found);
  });
}

std::vector<NodeLoad>& NewcomerNodes::Loads(const Sequence& sequence, uint32_t tokens,
                                            uint32_t found_min, const std::vector<uint64_t>& seen,
                                            const std::vector<uint32_t>& taken,
                                            const std::vector<PrefixCache::Found>& kept) {
  const uint32_t span_max =
      options_.span_tokens == 0 ? options_.SlotsAtOnce(sequence.slots_max()) : options_.span_tokens;
  const plan::AttentionPath path = life_.PathOf(sequence.request);
  loads_.clear();
  loads_.reserve(taken.size());
  for (uint32_t node = 0; node < taken.size(); ++node) {
    const MemoryNodeShare& share = options_.memory_nodes[node];
    const PrefixCache::Found& found = kept[node];
    const uint32_t free = places_.kv.directory().SlotsFree(node);
    const uint64_t wanted = SlotsWanted(node, taken[node] + tokens, found);
    loads_.push_back({.lane_context_tokens = seen[node],
                      .bandwidth = share.bandwidth_bytes_per_second,
                      .fits = options_.MayHold(share, path) && found.tokens >= found_min &&
                              taken[node] + uint64_t{span_max} <= share.slots &&
                              HasSlots(node, wanted, free, found),
                      .kept_tokens = options_.span_tokens > 0 ? 0 : found.tokens + found.away,
                      .drops_unused_for = free >= wanted ? NodeLoad::kDropsNothing
                                                         : places_.cache.UnusedFor(node)});
  }
  return loads_;
}

}  // namespace lamina::core
