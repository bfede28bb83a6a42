// SPDX-License-Identifier: Apache-2.0
#include "plan/slot_tables.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "plan/table_changes.h"

namespace lamina::plan {
namespace {

// Has the first `tokens` tokens lie nowhere.
void ReleaseFirst(std::vector<Extent>& extents, uint32_t tokens) {
  uint32_t left = tokens;
  auto kept = extents.begin();
  while (left > 0 && kept->tokens <= left) {
    left -= kept->tokens;
    ++kept;
  }
  if (left > 0) {
    kept->first_slot += left;
    kept->tokens -= left;
  }
  extents.erase(extents.begin(), kept);
  extents.insert(extents.begin(), Extent{.first_slot = 0, .tokens = tokens});
}

}  // namespace

SlotTables::SlotTables(const Options& options, Tails* kept)
    : options_(options),
      own_tails_(kept == nullptr ? std::make_unique<Tails>(options.tails) : nullptr),
      tails_(kept == nullptr ? *own_tails_ : *kept) {
  LAMINA_CHECK(tails_.count() == options.tails);
}

absl::Status SlotTables::Apply(const StepPlan& plan) {
  return ApplyChanges(plan, [this](const auto& change) { return Apply(change); });
}

absl::Status SlotTables::Apply(const SpillDrop& drop) {
  moves_.push_back({.kind = SlotMove::Kind::kDrop, .spill = drop.spill});
  return absl::OkStatus();
}

absl::Status SlotTables::Apply(const SpillOut& spill) {
  if (spill.sequence == 0) {
    return MoveOut(spill);
  }
  const auto found = sequences_.find(spill.sequence);
  if (found == sequences_.end()) {
    return absl::OkStatus();  // The sequence is another node's.
  }
  const Sequence& sequence = found->second;
  const uint32_t open = OpenOf(sequence.path, spill.tokens);
  const uint32_t closed = spill.tokens - open;
  LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slots, SlotsOf(sequence, 0, closed));
  LAMINA_RETURN_IF_ERROR(SlotsOf(sequence, closed, open).status());
  if (spans() && slots.empty()) {
    return absl::OkStatus();  // None of its spans is here.
  }
  moves_.push_back({.kind = SlotMove::Kind::kOut,
                    .spill = spill.spill,
                    .slots = std::move(slots),
                    .tail = BeginTailMove(spill.sequence, spill.spill, sequence.tail, open)});
  return absl::OkStatus();
}

Extent SlotTables::BeginTailMove(SequenceId id, uint64_t spill, uint32_t tail, uint32_t tokens) {
  if (tokens == 0) {
    return {};
  }
  tails_.BeginMove(id, spill);
  return {.first_slot = tail * kInt8BlockTokens, .tokens = tokens};
}

absl::Status SlotTables::MoveOut(const SpillOut& spill) {
  if (!options_.holds_all && spill.memory_node != options_.node) {
    return absl::OkStatus();
  }
  for (const Extent& extent : spill.slots) {
    LAMINA_RETURN_IF_ERROR(CheckExtent(extent, options_.slots));
  }
  moves_.push_back({.kind = SlotMove::Kind::kOut,
                    .spill = spill.spill,
                    .of_blocks = true,
                    .slots = spill.slots});
  return absl::OkStatus();
}

absl::Status SlotTables::Apply(const SpillIn& spill) {
  const auto found = sequences_.find(spill.sequence);
  if (found == sequences_.end()) {
    return absl::OkStatus();
  }
  const Sequence& sequence = found->second;
  const uint32_t open = OpenOf(sequence.path, spill.tokens);
  const uint32_t closed = spill.tokens - open;
  LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slots, SlotsOf(sequence, spill.first, closed));
  LAMINA_RETURN_IF_ERROR(SlotsOf(sequence, spill.first + closed, open).status());
  if (spans() && slots.empty()) {
    return absl::OkStatus();
  }
  moves_.push_back({.kind = SlotMove::Kind::kIn,
                    .spill = spill.spill,
                    .skip = spill.skip,
                    .slots = std::move(slots),
                    .tail = BeginTailMove(spill.sequence, spill.spill, sequence.tail, open)});
  return absl::OkStatus();
}

bool SlotTables::TakeTailAhead(SequenceId id) {
  if (sequences_.contains(id) || tails_ahead_.contains(id)) {
    return false;
  }
  const std::optional<uint32_t> tail = tails_.Join(id);
  return tail && tails_ahead_.emplace(id, *tail).second;
}

absl::StatusOr<std::vector<SlotMove>> SlotTables::TakeReads(StepPlan& plan) {
  std::vector<SlotMove> reads;
  std::vector<SpillIn> left;
  for (const SpillIn& spill : plan.spills_in) {
    const auto join =
        std::find_if(plan.joins.begin(), plan.joins.end(),
                     [&](const SequenceJoin& one) { return one.id == spill.sequence; });
    if (spans() || join == plan.joins.end() || !IsHere(*join)) {
      left.push_back(spill);
      continue;
    }
    std::vector<Extent> extents;
    uint32_t tokens = 0;
    for (const SlotAllocation& allocation : plan.allocations) {
      if (allocation.sequence == spill.sequence) {
        LAMINA_RETURN_IF_ERROR(CheckExtent(allocation.extent, SlotsOfPath(join->path)));
        AppendExtent(extents, allocation.extent);
        tokens += allocation.extent.tokens;
      }
    }
    const uint32_t open = OpenOf(join->path, spill.tokens);
    const uint32_t closed = spill.tokens - open;
    LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slots, Part(extents, tokens, spill.first, closed));
    LAMINA_RETURN_IF_ERROR(Part(extents, tokens, spill.first + closed, open).status());
    if (open > 0 && !TakeTailAhead(join->id)) {
      left.push_back(spill);
      continue;
    }
    const Extent tail =
        open > 0 ? BeginTailMove(join->id, spill.spill, tails_ahead_.at(join->id), open) : Extent{};
    reads.push_back({.kind = SlotMove::Kind::kIn,
                     .spill = spill.spill,
                     .skip = spill.skip,
                     .slots = std::move(slots),
                     .tail = tail});
  }
  plan.spills_in = std::move(left);
  return reads;
}

absl::Status SlotTables::Apply(const SequenceLeave& leave) {
  const auto found = sequences_.find(leave.id);
  if (found != sequences_.end()) {
    if (HasTail(found->second.path)) {
      tails_.Leave(leave.id);
    }
    sequences_.erase(found);
  }
  return absl::OkStatus();
}

absl::Status SlotTables::Apply(const SlotRelease& release) {
  const auto found = sequences_.find(release.sequence);
  if (found == sequences_.end()) {
    return absl::OkStatus();  // The sequence is another node's.
  }
  Sequence& sequence = found->second;
  if (release.tokens <= sequence.released || release.tokens > sequence.tokens) {
    return absl::InternalError(absl::StrCat(
        "plan releases the first ", release.tokens, " of ", sequence.tokens, " tokens of sequence ",
        release.sequence, ", of which ", sequence.released, " are released"));
  }
  sequence.released = release.tokens;
  if (!spans()) {
    ReleaseFirst(sequence.extents, release.tokens);
  }
  for (Span& span : sequence.spans) {
    const uint32_t start = span.index * options_.span_tokens;
    if (start < release.tokens) {
      ReleaseFirst(span.extents, std::min(release.tokens - start, span.tokens));
    }
  }
  return absl::OkStatus();
}

absl::Status SlotTables::Apply(const SequenceJoin& join) {
  if (!IsHere(join)) {
    return absl::OkStatus();
  }
  Sequence joined{.path = join.path, .bare = join.bare_tokens, .resident = join.resident};
  LAMINA_RETURN_IF_ERROR(Apply(SequenceLeave{.id = join.id}));
  if (HasTail(join.path)) {
    const auto ahead = tails_ahead_.extract(join.id);
    const std::optional<uint32_t> tail =
        ahead.empty() ? tails_.Join(join.id) : std::optional<uint32_t>(ahead.mapped());
    if (!tail) {
      return absl::InternalError(absl::StrCat("plan joins sequence ", join.id, ", and all ",
                                              options_.tails, " tails of open blocks are taken"));
    }
    joined.tail = *tail;
  }
  sequences_[join.id] = std::move(joined);
  return absl::OkStatus();
}

absl::Status SlotTables::Apply(const SlotAllocation& allocation) {
  const auto found = sequences_.find(allocation.sequence);
  if (found == sequences_.end()) {
    return absl::OkStatus();  // The sequence is another node's.
  }
  if (!spans() || Keeps(allocation)) {
    LAMINA_RETURN_IF_ERROR(CheckExtent(allocation.extent, SlotsOfPath(found->second.path)));
  }
  if (spans()) {
    return AllocateToSpan(found->second, allocation);
  }
  AppendExtent(found->second.extents, allocation.extent);
  found->second.tokens += allocation.extent.tokens;
  return absl::OkStatus();
}

const SlotTables::Sequence* SlotTables::Find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

absl::Status SlotTables::CheckExtent(const Extent& extent, uint32_t slots) const {
  if (extent.tokens == 0 || extent.first_slot >= slots ||
      extent.tokens > slots - extent.first_slot) {
    return absl::InternalError(absl::StrCat("plan allocates slots [", extent.first_slot, ", +",
                                            extent.tokens, ") of an arena of ", slots));
  }
  return absl::OkStatus();
}

// Every node counts all tokens of every sequence, and keeps the slots of its own spans, or of all.
absl::Status SlotTables::AllocateToSpan(Sequence& sequence,
                                        const SlotAllocation& allocation) const {
  const uint32_t index = sequence.tokens / options_.span_tokens;
  if (allocation.extent.tokens > (index + 1) * options_.span_tokens - sequence.tokens) {
    return absl::InternalError(absl::StrCat(
        "plan allocates sequence ", allocation.sequence, " slots for [", sequence.tokens, ", +",
        allocation.extent.tokens, "), across the border of spans of ", options_.span_tokens));
  }
  sequence.tokens += allocation.extent.tokens;
  if (!Keeps(allocation)) {
    return absl::OkStatus();
  }
  if (sequence.spans.empty() || sequence.spans.back().index != index) {
    sequence.spans.push_back({.index = index});
  }
  Span& span = sequence.spans.back();
  AppendExtent(span.extents, allocation.extent);
  span.tokens += allocation.extent.tokens;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Extent>> SlotTables::SlotsOf(const Sequence& sequence, uint32_t first,
                                                        uint32_t tokens) const {
  if (first < sequence.released) {
    return absl::InternalError(absl::StrCat("plan uses token ", first,
                                            " of a sequence whose first ", sequence.released,
                                            " have no slots any more"));
  }
  if (!spans()) {
    return Part(sequence.extents, sequence.tokens, first, tokens);
  }
  std::vector<Extent> slots;
  for (const Span& span : sequence.spans) {
    const uint32_t start = span.index * options_.span_tokens;
    const uint32_t begin = std::max(first, start);
    const uint32_t end = std::min(first + tokens, start + options_.span_tokens);
    if (begin >= end) {
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> part,
                            Part(span.extents, span.tokens, begin - start, end - begin));
    slots.insert(slots.end(), part.begin(), part.end());
  }
  return slots;
}

absl::StatusOr<std::vector<Extent>> SlotTables::Part(absl::Span<const Extent> extents,
                                                     uint32_t held, uint32_t first,
                                                     uint32_t tokens) {
  if (first > held || tokens > held - first) {
    return absl::InternalError(absl::StrCat("plan uses tokens [", first, ", +", tokens,
                                            ") of a sequence with slots for ", held));
  }
  std::vector<Extent> slots;
  uint32_t skip = first;
  for (const Extent& extent : extents) {
    if (tokens == 0) {
      break;
    }
    if (skip >= extent.tokens) {
      skip -= extent.tokens;
      continue;
    }
    const uint32_t count = std::min(tokens, extent.tokens - skip);
    slots.push_back({.first_slot = extent.first_slot + skip, .tokens = count});
    tokens -= count;
    skip = 0;
  }
  return slots;
}

}  // namespace lamina::plan
