// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_split.h"

#include <algorithm>
#include <cstdint>

#include "common/check.h"

namespace lamina::plan {
namespace {

// The slots of a tile of K are of one kind.
static_assert(SlotKinds::kBlockSlots % kFetchTile == 0);

void Append(FetchSplit& split, const FetchStretch& next) {
  if (next.tokens == 0) {
    return;
  }
  split.run.hidden += next.hidden ? next.tokens : 0;
  if (next.activations) {
    (next.here ? split.run.remade : split.run.recomputed) += next.tokens;
  } else if (next.here) {
    split.run.kept += next.tokens;
  }
  if (!split.stretches.empty() && split.stretches.back().activations == next.activations &&
      split.stretches.back().here == next.here && split.stretches.back().hidden == next.hidden) {
    split.stretches.back().tokens += next.tokens;
  } else {
    split.stretches.push_back(next);
  }
}

uint32_t WholeTilesIn(uint32_t tokens) { return tokens / kFetchTile * kFetchTile; }

static_assert(kInt8BlockTokens % kFetchTile == 0);

// The tokens before a run, by where they begin to come in another way: each is no less than the one
// before it.
struct Borders {
  uint32_t hidden = 0;    // Those up to here have no slots,
  uint32_t first = 0;     // up to here no activations,
  uint32_t kept = 0;      // and from here on theirs are on the compute node,
  uint32_t kept_end = 0;  // up to here.
  uint32_t before = 0;    // All of them.

  uint32_t resident() const { return kept_end - kept; }
  // How many may come as activations.
  uint32_t others() const { return (kept - first) + (before - kept_end); }
};

Borders BordersOf(uint32_t before, uint32_t bare, uint32_t released,
                  const ResidentTokens& resident) {
  Borders borders{.hidden = std::min(released, before), .before = before};
  borders.first = std::max(std::min(bare, before), borders.hidden);
  borders.kept = std::clamp(resident.first, borders.first, before);
  borders.kept_end = static_cast<uint32_t>(
      std::clamp<uint64_t>(uint64_t{resident.first} + resident.tokens, borders.kept, before));
  return borders;
}

// How many of the tokens that have slots have K and V made again.
uint32_t WantedOf(const Borders& borders, uint32_t share) {
  return static_cast<uint32_t>(uint64_t{borders.before - borders.hidden} * share / kRecomputeUnit);
}

// K and V are made again of the first `here` resident tokens, and of the first `come` others.
FetchSplit SplitAt(const Borders& borders, uint32_t tokens, uint32_t here, uint32_t come) {
  FetchSplit split{.run = {.before = borders.before, .tokens = tokens}, .stretches = {}};
  const uint32_t ahead = std::min(come, borders.kept - borders.first);  // In front of the resident,
  const uint32_t behind = come - ahead;                                 // and behind them.
  Append(split, {.tokens = borders.hidden, .hidden = true});
  Append(split, {.tokens = borders.first - borders.hidden});
  Append(split, {.tokens = ahead, .activations = true});
  Append(split, {.tokens = borders.kept - borders.first - ahead});
  Append(split, {.tokens = here, .activations = true, .here = true});
  Append(split, {.tokens = borders.resident() - here});
  Append(split, {.tokens = behind, .activations = true});
  Append(split, {.tokens = borders.before - borders.kept_end - behind});
  return split;
}

// Tokens that have their slots there, and may have their places on the compute node.
struct LyingTokens {
  absl::Span<const Extent> extents;
  uint32_t released = 0;
  ResidentTokens resident;
};

FetchSplit SplitLying(uint32_t before, uint32_t tokens, const LyingTokens& lying, SlotKinds kinds) {
  FetchSplit split{.run = {.before = before, .tokens = tokens}, .stretches = {}};
  // Tokens [kept, kept_end) have places on the compute node for activations.
  const uint32_t kept = lying.resident.first;
  const auto kept_end =
      static_cast<uint32_t>(std::min<uint64_t>(uint64_t{kept} + lying.resident.tokens, UINT32_MAX));
  uint32_t left = before;
  uint32_t released = lying.released;
  uint32_t token = 0;  // The next one.
  for (const Extent& extent : lying.extents) {
    const uint32_t seen = std::min(left, extent.tokens);
    const uint32_t hidden = std::min(released, seen);
    Append(split, {.tokens = hidden, .hidden = true});
    token += hidden;
    kinds.VisitParts({.first_slot = extent.first_slot + hidden, .tokens = seen - hidden},
                     [&](Extent part, bool activations) {
                       const uint32_t end = token + part.tokens;
                       const uint32_t here = activations ? std::clamp(kept, token, end) : end;
                       const uint32_t here_end = std::clamp(kept_end, here, end);
                       Append(split, {.tokens = here - token, .activations = activations});
                       Append(split,
                              {.tokens = here_end - here, .activations = true, .here = true});
                       Append(split, {.tokens = end - here_end, .activations = true});
                       token = end;
                     });
    left -= seen;
    released -= hidden;
  }
  LAMINA_CHECK(left == 0);
  return split;
}

// How many of a sequence's first `token` tokens are of the span.
uint32_t InSpan(const TokenSpan& span, uint32_t token) {
  return std::clamp(token, span.first, span.first + span.tokens) - span.first;
}

}  // namespace

FetchSplit SplitByShare(uint32_t before, uint32_t tokens, uint32_t share, uint32_t bare,
                        uint32_t released, const ResidentTokens& resident) {
  const Borders borders = BordersOf(before, bare, released, resident);
  const uint32_t wanted = WantedOf(borders, share);
  uint32_t here = borders.resident();
  uint32_t come = borders.others();
  if (wanted < before || borders.first > 0) {
    here = WholeTilesIn(std::min(wanted, here));
    come = WholeTilesIn(std::min(wanted - here, come));
  }
  return SplitAt(borders, tokens, here, come);
}

FetchSplit SplitBySlots(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                        SlotKinds kinds) {
  return SplitLying(
      before, tokens,
      {.extents = sequence.extents, .released = sequence.released, .resident = sequence.resident},
      kinds);
}

// What comes of the run is cut to tiles at the borders of spans, so that all of them together have
// as many whole tiles as the run.
FetchSplit SplitBySpan(uint32_t before, uint32_t tokens, uint32_t released, const TokenSpan& span,
                       uint32_t share, uint32_t bare, const ResidentTokens& resident) {
  const Borders all = BordersOf(before, bare, released, resident);
  const uint32_t wanted = WantedOf(all, share);
  const uint32_t here_all = std::min(wanted, all.resident());
  const uint32_t come_all = std::min(wanted - here_all, all.others());
  const auto come_before = [&](uint32_t token) {
    const uint32_t others = (std::clamp(token, all.first, all.kept) - all.first) +
                            (std::clamp(token, all.kept_end, before) - all.kept_end);
    return others == 0
               ? 0
               : WholeTilesIn(static_cast<uint32_t>(uint64_t{others} * come_all / all.others()));
  };
  const Borders own{.hidden = InSpan(span, all.hidden),
                    .first = InSpan(span, all.first),
                    .kept = InSpan(span, all.kept),
                    .kept_end = InSpan(span, all.kept_end),
                    .before = InSpan(span, before)};
  uint32_t here = InSpan(span, all.kept + here_all) - own.kept;
  uint32_t come = own.others();
  if (own.first > 0 || here < own.resident() || (come > 0 && come_all < all.others())) {
    here = WholeTilesIn(here);
    come = WholeTilesIn(
        std::min(come, come_before(span.first + span.tokens) - come_before(span.first)));
  }
  return SplitAt(own, InSpan(span, before + tokens) - own.before, here, come);
}

FetchSplit SplitSlotsBySpan(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                            SlotKinds kinds, const TokenSpan& span,
                            absl::Span<const Extent> extents) {
  const ResidentTokens& resident = sequence.resident;
  const auto resident_end = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{resident.first} + resident.tokens, UINT32_MAX));
  const uint32_t first = InSpan(span, resident.first);
  const uint32_t own = InSpan(span, before);
  return SplitLying(own, InSpan(span, before + tokens) - own,
                    {.extents = extents,
                     .released = InSpan(span, sequence.released),
                     .resident = {.first = first, .tokens = InSpan(span, resident_end) - first}},
                    kinds);
}

uint32_t MadeFromTokens(uint32_t before, uint32_t share, uint32_t released, KvForm form) {
  if (released > 0) {
    return 0;
  }
  const auto made = static_cast<uint32_t>(uint64_t{before} * share / kRecomputeUnit);
  return form == KvForm::kInt8 ? Int8TokensOf(made) : WholeTilesIn(made);
}

// Released tokens of INT8 have slots in pieces, like those that come (HiddenOf()).
FetchSplit SplitByTokens(uint32_t before, uint32_t tokens, uint32_t share, uint32_t released,
                         KvForm form) {
  FetchSplit split{.run = {.before = before, .tokens = tokens}, .stretches = {}};
  const uint32_t hidden = form == KvForm::kInt8 ? 0 : std::min(released, before);
  const uint32_t made = MadeFromTokens(before, share, released, form);
  Append(split, {.tokens = hidden, .hidden = true});
  Append(split, {.tokens = made, .here = true});
  Append(split, {.tokens = before - hidden - made});
  return split;
}

FetchSplit SplitKeptBySpan(uint32_t before, uint32_t tokens, uint32_t kept, const TokenSpan& span) {
  const uint32_t own = InSpan(span, before);
  const uint32_t come = InSpan(span, std::min(kept, before));
  FetchSplit split{.run = {.before = own, .tokens = InSpan(span, before + tokens) - own},
                   .stretches = {}};
  Append(split, {.tokens = come});
  Append(split, {.tokens = own - come, .here = true});
  return split;
}

FetchSplit SplitTokensBySpan(uint32_t before, uint32_t tokens, uint32_t share, uint32_t released,
                             const TokenSpan& span) {
  const uint32_t own = InSpan(span, before);
  const uint32_t hidden = InSpan(span, std::min(released, before));
  const uint32_t made = InSpan(span, MadeFromTokens(before, share, released));
  FetchSplit split{.run = {.before = own, .tokens = InSpan(span, before + tokens) - own},
                   .stretches = {}};
  Append(split, {.tokens = hidden, .hidden = true});
  Append(split, {.tokens = made, .here = true});
  Append(split, {.tokens = own - hidden - made});
  return split;
}

FetchSlots SlotsOf(const FetchSplit& split, absl::Span<const Extent> extents, SlotKinds kinds) {
  FetchSlots slots;
  auto extent = extents.begin();
  uint32_t taken = 0;  // Tokens of the extent that are taken.
  for (const FetchStretch& stretch : split.stretches) {
    std::vector<Extent>& list = stretch.activations ? slots.activations : slots.kv;
    for (uint32_t left = stretch.tokens; left > 0;) {
      LAMINA_CHECK(extent != extents.end());
      const Extent part{.first_slot = extent->first_slot + taken,
                        .tokens = std::min(left, extent->tokens - taken)};
      left -= part.tokens;
      taken += part.tokens;
      if (taken == extent->tokens) {
        ++extent;
        taken = 0;
      }
      if (stretch.here || stretch.hidden) {
        continue;
      }
      // Blocks of a kind follow each other in its arena, so each part is one run there.
      kinds.VisitParts(part, [&](Extent same, bool /*activations*/) {
        AppendExtent(list, {.first_slot = kinds.IndexOf(same.first_slot), .tokens = same.tokens});
      });
    }
  }
  return slots;
}

}  // namespace lamina::plan
