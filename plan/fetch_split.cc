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

void AppendSlots(std::vector<Extent>& extents, Extent extent) {
  if (!extents.empty() && extents.back().first_slot + extents.back().tokens == extent.first_slot) {
    extents.back().tokens += extent.tokens;
  } else {
    extents.push_back(extent);
  }
}

}  // namespace

FetchSplit SplitByShare(uint32_t before, uint32_t tokens, uint32_t share, uint32_t bare,
                        uint32_t released, const ResidentTokens& resident) {
  FetchSplit split{.run = {.before = before, .tokens = tokens}, .stretches = {}};
  const uint32_t hidden = std::min(released, before);
  const uint32_t first = std::max(std::min(bare, before), hidden);
  const auto wanted = static_cast<uint32_t>(uint64_t{before - hidden} * share / kRecomputeUnit);
  // Tokens [kept, kept_end) have their activations on the compute node.
  const uint32_t kept = std::clamp(resident.first, first, before);
  const auto kept_end = static_cast<uint32_t>(
      std::clamp<uint64_t>(uint64_t{resident.first} + resident.tokens, kept, before));
  uint32_t here = kept_end - kept;
  uint32_t ahead = kept - first;        // Come as activations in front of these,
  uint32_t behind = before - kept_end;  // and behind them.
  if (wanted < before || first > 0) {
    here = WholeTilesIn(std::min(wanted, here));
    const uint32_t come = WholeTilesIn(std::min(wanted - here, ahead + behind));
    ahead = std::min(come, ahead);
    behind = come - ahead;
  }
  Append(split, {.tokens = hidden, .hidden = true});
  Append(split, {.tokens = first - hidden});
  Append(split, {.tokens = ahead, .activations = true});
  Append(split, {.tokens = kept - first - ahead});
  Append(split, {.tokens = here, .activations = true, .here = true});
  Append(split, {.tokens = kept_end - kept - here});
  Append(split, {.tokens = behind, .activations = true});
  Append(split, {.tokens = before - kept_end - behind});
  return split;
}

FetchSplit SplitBySlots(uint32_t before, uint32_t tokens, const SlotTables::Sequence& sequence,
                        SlotKinds kinds) {
  FetchSplit split{.run = {.before = before, .tokens = tokens}, .stretches = {}};
  // Tokens [kept, kept_end) have places on the compute node for activations.
  const uint32_t kept = sequence.resident.first;
  const auto kept_end = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{kept} + sequence.resident.tokens, UINT32_MAX));
  uint32_t left = before;
  uint32_t released = sequence.released;
  uint32_t token = 0;  // The next one.
  for (const Extent& extent : sequence.extents) {
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

FetchSplit SplitBySpan(uint32_t before, uint32_t tokens, uint32_t released, const TokenSpan& span) {
  const auto in_span = [&span](uint32_t token) {
    return std::clamp(token, span.first, span.first + span.tokens) - span.first;
  };
  return SplitByShare(in_span(before), in_span(before + tokens) - in_span(before), /*share=*/0,
                      /*bare=*/0, in_span(released));
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
        AppendSlots(list, {.first_slot = kinds.IndexOf(same.first_slot), .tokens = same.tokens});
      });
    }
  }
  return slots;
}

}  // namespace lamina::plan
