// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/kv_directory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/kv_directory_internal.h"

namespace lamina::core {

OpenSpan& KvDirectory::Impl::Insert(const HeldSpan& span, uint32_t node) {
  LAMINA_CHECK(node < pools.size());
  const auto [it, inserted] = spans.emplace(span, OpenSpan{.node = node, .opened = ++opened_count});
  LAMINA_CHECK(inserted);
  return it->second;
}

OpenSpan& KvDirectory::Impl::InsertKept(uint32_t node) {
  LAMINA_CHECK(node < pools.size());
  OpenSpan& span = kept.Take();
  span.node = node;
  span.opened = ++opened_count;
  return span;
}

// Changes the size of a reservation; the slots themselves are the caller's business.
void KvDirectory::Impl::SetReservation(OpenSpan& span, uint32_t tokens) {
  Pool& pool = pools[span.node];
  pool.reserved = pool.reserved - span.reserved + tokens;
  span.reserved = tokens;
  if (tokens == 0 || tokens > span.indexed) {
    Reindex(span);
  }
}

void KvDirectory::Impl::Reindex(OpenSpan& span) {
  Pool& pool = pools[span.node];
  if (span.indexed > 0) {
    pool.reservations.erase({span.indexed, span.opened});
  }
  span.indexed = span.reserved;
  if (span.indexed > 0) {
    pool.reservations.emplace(ReservationKey{span.indexed, span.opened}, &span);
  }
}

// Frees all of a reservation but its first slots.
void KvDirectory::Impl::FreeReservationBehind(OpenSpan& span, uint32_t left) {
  if (span.reserved == left) {
    return;
  }
  Pool& pool = pools[span.node];
  const Extent extent{span.TailEnd() + left, span.reserved - left};
  SetReservation(span, left);
  pool.free.Add(extent);
  pool.unreserved += extent.tokens;
}

// Reserves the free slots behind the tail, however few: who shares a run with others, slot by slot
// in turns, gets no two that are consecutive. A reservation that could be longer ends at a multiple
// of the alignment, so that what comes behind it starts there.
void KvDirectory::Impl::ReserveBehind(OpenSpan& span) {
  Pool& pool = pools[span.node];
  const uint32_t start = span.TailEnd();
  const auto run = pool.free.StartingAt(start);
  if (!run) {
    return;
  }
  uint32_t tokens = std::min(run->tokens, options.soft_reservation_max);
  const uint32_t past_border = (start + tokens) % options.alignment;
  if (tokens < run->tokens && tokens > past_border) {
    tokens -= past_border;
  }
  if (tokens == 0) {
    return;
  }
  pool.free.Remove({start, tokens});
  pool.unreserved -= tokens;
  SetReservation(span, tokens);
}

// An open span uses the slots no more. Those that no other does are in quarantine.
void KvDirectory::Impl::EndUse(Pool& pool, const Extent& extent) {
  parts.clear();
  pool.live.Drop(extent, parts);
  for (const Extent& part : parts) {
    pool.quarantined += part.tokens;
  }
}

// No node can use the slots any more because of a span that has ended. Those that none can at all
// are free.
void KvDirectory::Impl::Free(Pool& pool, const Extent& extent) {
  parts.clear();
  pool.uses.Drop(extent, parts);
  for (const Extent& part : parts) {
    pool.free.Add(part);
    pool.quarantined -= part.tokens;
    pool.unreserved += part.tokens;
  }
}

// Shared slots too: whoever ends last may have a ticket that comes back before this one.
void KvDirectory::Impl::Quarantine(uint32_t node, absl::Span<const Extent> extents,
                                   uint64_t ticket) {
  for (const Extent& extent : extents) {
    quarantine[ticket].push_back({node, extent});
    EndUse(pools[node], extent);
  }
}

// Whoever wants so many slots gets them out of the largest reservation, and half of what is left of
// it. If it took all, the next one would take all but one from it in turn.
void KvDirectory::Impl::RevokeOne(Pool& pool, uint32_t tokens) {
  LAMINA_CHECK(!pool.reservations.empty());
  // The first that is as large as it is said to be: no other one is larger than said.
  OpenSpan* largest = pool.reservations.begin()->second;
  while (largest->indexed != largest->reserved) {
    Reindex(*largest);
    largest = pool.reservations.begin()->second;
  }
  uint32_t left = (largest->reserved - std::min(largest->reserved, tokens)) / 2;
  const uint32_t past_border = (largest->TailEnd() + left) % options.alignment;
  const uint32_t to_border = past_border == 0 ? 0 : options.alignment - past_border;
  if (left > 0 && left + to_border + tokens <= largest->reserved) {
    left += to_border;
  }
  FreeReservationBehind(*largest, left);
  ++revoked_count;
}

// Where a span that cannot continue at its tail goes on, and how far it could. The slot has the
// place among `alignment` slots that its token has among so many tokens, unless there is no room
// for that.
Extent KvDirectory::Impl::NextRun(const OpenSpan& span, uint32_t tokens) {
  Pool& pool = pools[span.node];
  if (pool.free.empty()) {
    RevokeOne(pool, tokens);
  }
  const uint32_t least = tokens + options.soft_reservation_min;
  std::optional<Extent> run;
  if (!span.extents.empty()) {
    run = pool.free.LongestNear(span.TailEnd(), least);
  }
  if (!run) {
    run = pool.free.LastFreed(least);
  }
  if (!run) {
    run = pool.free.Longest();
  }
  const uint32_t place = span.tokens % options.alignment;
  const uint32_t past_border = run->first_slot % options.alignment;
  const uint32_t skip = (place + options.alignment - past_border) % options.alignment;
  if (skip + options.alignment <= run->tokens) {
    return {run->first_slot + skip, run->tokens - skip};
  }
  return *run;
}

// Takes at most `tokens` consecutive slots for the next tokens. Requires: one is free.
Extent KvDirectory::Impl::TakeNext(OpenSpan& span, uint32_t tokens) {
  Pool& pool = pools[span.node];
  if (span.reserved > 0) {
    const Extent taken{span.TailEnd(), std::min(tokens, span.reserved)};
    SetReservation(span, span.reserved - taken.tokens);
    return taken;
  }
  Extent taken;
  if (!span.extents.empty()) {
    taken = {span.TailEnd(), pool.free.TakeFrom(span.TailEnd(), tokens)};
  }
  if (taken.tokens == 0) {
    const Extent run = NextRun(span, tokens);
    taken = {run.first_slot, std::min(tokens, run.tokens)};
    pool.free.Remove(taken);
  }
  pool.unreserved -= taken.tokens;
  return taken;
}

KvDirectory::KvDirectory(const KvDirectoryOptions& options) : impl_(std::make_unique<Impl>()) {
  LAMINA_CHECK(options.alignment > 0);
  impl_->options = options;
  impl_->pools.resize(options.slots.size());
  for (size_t node = 0; node < options.slots.size(); ++node) {
    Pool& pool = impl_->pools[node];
    pool.slots = options.slots[node];
    pool.unreserved = pool.slots;
    if (pool.slots > 0) {
      pool.free.Add({0, pool.slots});
    }
  }
}

KvDirectory::~KvDirectory() = default;

OpenSpan* KvDirectory::Open(const HeldSpan& span, uint32_t memory_node) {
  return &impl_->Insert(span, memory_node);
}

OpenSpan* KvDirectory::Get(const HeldSpan& span) { return &impl_->Find(span); }

std::optional<uint32_t> KvDirectory::AppendOne(OpenSpan& span) {
  Pool& pool = impl_->pools[span.node];
  if (pool.unreserved + pool.reserved == 0) {
    return std::nullopt;
  }
  const size_t extents_before = span.extents.size();
  const Extent taken = impl_->TakeNext(span, 1);
  AppendExtent(span.extents, taken);
  ++span.tokens;
  ++pool.tokens_open;
  pool.extents_open += span.extents.size() - extents_before;
  if (span.reserved == 0) {
    impl_->ReserveBehind(span);
  }
  return taken.first_slot;
}

absl::StatusOr<std::vector<Extent>> KvDirectory::Append(const HeldSpan& span, uint32_t tokens) {
  OpenSpan& open = impl_->Find(span);
  if (tokens > SlotsFree(open.node)) {
    return absl::ResourceExhaustedError(absl::StrCat("memory node ", open.node, ": ", tokens,
                                                     " slots asked for, ", SlotsFree(open.node),
                                                     " free"));
  }
  std::vector<Extent> allocated;
  const size_t extents_before = open.extents.size();
  for (uint32_t left = tokens; left > 0;) {
    const Extent taken = impl_->TakeNext(open, left);
    AppendExtent(open.extents, taken);
    AppendExtent(allocated, taken);
    open.tokens += taken.tokens;
    left -= taken.tokens;
  }
  impl_->pools[open.node].tokens_open += tokens;
  impl_->pools[open.node].extents_open += open.extents.size() - extents_before;
  if (tokens > 0 && open.reserved == 0) {
    impl_->ReserveBehind(open);
  }
  return allocated;
}

std::vector<Extent> KvDirectory::Fork(const HeldSpan& parent, const HeldSpan& child,
                                      uint32_t tokens) {
  const OpenSpan& from = impl_->Find(parent);
  LAMINA_CHECK(tokens <= from.tokens && from.released == 0);
  OpenSpan& to = impl_->Insert(child, from.node);
  Pool& pool = impl_->pools[from.node];
  uint32_t left = tokens;
  for (size_t i = 0; left > 0; ++i) {
    const Extent shared{from.extents[i].first_slot, std::min(left, from.extents[i].tokens)};
    pool.live.Add(shared);
    pool.uses.Add(shared);
    to.extents.push_back(shared);
    left -= shared.tokens;
  }
  to.tokens = tokens;
  pool.tokens_open += tokens;
  pool.extents_open += to.extents.size();
  return {to.extents.begin(), to.extents.end()};
}

std::vector<Extent> KvDirectory::Share(const HeldSpan& from, uint32_t first, uint32_t tokens,
                                       const HeldSpan& to) {
  return Share(impl_->Find(from), first, tokens, impl_->Find(to));
}

std::vector<Extent> KvDirectory::Share(const OpenSpan& from, uint32_t first, uint32_t tokens,
                                       OpenSpan& to) {
  LAMINA_CHECK(from.node == to.node && to.reserved == 0);
  const size_t extents_before = to.extents.size();
  std::vector<Extent> shared;
  impl_->Use(from, first, tokens, [&](const Extent& part) {
    AppendExtent(to.extents, part);
    AppendExtent(shared, part);
  });
  to.tokens += tokens;
  impl_->pools[to.node].extents_open += to.extents.size() - extents_before;
  return shared;
}

// One more span uses the slots of these tokens. Calls `visit` with each extent of them.
void KvDirectory::Impl::Use(const OpenSpan& source, uint32_t first, uint32_t tokens,
                            absl::FunctionRef<void(const Extent&)> visit) {
  LAMINA_CHECK(uint64_t{first} + tokens <= source.tokens && first >= source.released);
  Pool& pool = pools[source.node];
  uint32_t passed = source.released;  // Tokens of the source before the extent.
  for (const Extent& extent : source.extents) {
    const uint32_t begin = std::max(first, passed);
    const uint32_t end = std::min(first + tokens, passed + extent.tokens);
    if (begin < end) {
      const Extent part{extent.first_slot + (begin - passed), end - begin};
      pool.live.Add(part);
      pool.uses.Add(part);
      visit(part);
    }
    passed += extent.tokens;
    if (passed >= first + tokens) {
      break;
    }
  }
  pool.tokens_open += tokens;
}

void KvDirectory::Keep(const OpenSpan& from, uint32_t first, uint32_t tokens,
                       absl::Span<OpenSpan*> kept) {
  LAMINA_CHECK(tokens > 0);
  for (OpenSpan*& span : kept) {
    span = &impl_->InsertKept(from.node);
  }
  size_t next = 0;
  const auto spread = [&](Extent part) {
    while (part.tokens > 0) {
      OpenSpan& span = *kept[next];
      const uint32_t taken = std::min(part.tokens, tokens - span.tokens);
      AppendExtent(span.extents, {part.first_slot, taken});
      span.tokens += taken;
      next += span.tokens == tokens ? 1 : 0;
      part = {part.first_slot + taken, part.tokens - taken};
    }
  };
  impl_->Use(from, first, static_cast<uint32_t>(kept.size()) * tokens, spread);
  for (const OpenSpan* span : kept) {
    impl_->pools[from.node].extents_open += span->extents.size();
  }
}

OpenSpan* KvDirectory::ClaimKept(uint32_t memory_node, const std::vector<Extent>& slots) {
  LAMINA_CHECK(!slots.empty());
  OpenSpan& open = impl_->InsertKept(memory_node);
  Pool& pool = impl_->pools[memory_node];
  for (const Extent& extent : slots) {
    const uint32_t end = extent.first_slot + extent.tokens;
    LAMINA_CHECK(extent.tokens > 0 && end <= pool.slots);
    for (uint32_t at = extent.first_slot; at < end;) {
      const auto run = pool.free.At(at);
      const bool last = run == pool.free.runs().end();
      const uint32_t next = last ? end : FreeRuns::ExtentOf(*run).first_slot;
      if (next <= at) {
        const uint32_t stop = std::min(end, run->first);
        pool.free.Remove({at, stop - at});
        pool.unreserved -= stop - at;
        at = stop;
        continue;
      }
      const uint32_t stop = std::min(end, next);
      pool.live.Add({at, stop - at});
      pool.uses.Add({at, stop - at});
      at = stop;
    }
    AppendExtent(open.extents, extent);
    open.tokens += extent.tokens;
  }
  pool.tokens_open += open.tokens;
  pool.extents_open += open.extents.size();
  return &open;
}

void KvDirectory::ReleaseKept(OpenSpan* kept) {
  LAMINA_CHECK(kept->tokens > 0 && kept->reserved == 0);
  Pool& pool = impl_->pools[kept->node];
  for (const Extent& extent : kept->extents) {
    impl_->EndUse(pool, extent);
    impl_->Free(pool, extent);
  }
  pool.tokens_open -= kept->tokens;
  pool.extents_open -= kept->extents.size();
  impl_->kept.Give(*kept);
}

void KvDirectory::Release(const HeldSpan& span, uint64_t ticket) {
  OpenSpan& open = impl_->Find(span);
  Pool& pool = impl_->pools[open.node];
  impl_->FreeReservationBehind(open, 0);
  impl_->Quarantine(open.node, open.extents, ticket);
  pool.tokens_open -= open.tokens - open.released;
  pool.extents_open -= open.extents.size();
  impl_->spans.erase(span);
}

void KvDirectory::ReleaseFirst(const HeldSpan& span, uint32_t tokens, uint64_t ticket) {
  OpenSpan& open = impl_->Find(span);
  LAMINA_CHECK(tokens <= open.tokens);
  if (tokens == open.tokens) {
    impl_->FreeReservationBehind(open, 0);  // It would lie behind nothing.
  }
  Pool& pool = impl_->pools[open.node];
  pool.extents_open -= open.extents.size();
  std::vector<Extent> given;
  while (open.released < tokens) {
    Extent& first = open.extents.front();
    const uint32_t count = std::min(tokens - open.released, first.tokens);
    given.push_back({first.first_slot, count});
    open.released += count;
    pool.tokens_open -= count;
    first = {first.first_slot + count, first.tokens - count};
    if (first.tokens == 0) {
      open.extents.erase(open.extents.begin());
    }
  }
  pool.extents_open += open.extents.size();
  impl_->Quarantine(open.node, given, ticket);
}

void KvDirectory::Recycle(uint64_t ticket) {
  const auto it = impl_->quarantine.find(ticket);
  if (it == impl_->quarantine.end()) {
    return;  // Nothing was released under it.
  }
  for (const auto& [node, held] : it->second) {
    impl_->Free(impl_->pools[node], held);
  }
  impl_->quarantine.erase(it);
}

bool KvDirectory::IsOpen(const HeldSpan& span) const { return impl_->spans.contains(span); }
uint32_t KvDirectory::TokensOf(const HeldSpan& span) const { return impl_->Find(span).tokens; }
uint32_t KvDirectory::NodeOf(const HeldSpan& span) const { return impl_->Find(span).node; }
absl::Span<const Extent> KvDirectory::ExtentsOf(const HeldSpan& span) const {
  return std::as_const(*impl_).Find(span).extents;
}

uint32_t KvDirectory::TokensOf(const OpenSpan& span) { return span.tokens; }
uint32_t KvDirectory::NodeOf(const OpenSpan& span) { return span.node; }
absl::Span<const Extent> KvDirectory::ExtentsOf(const OpenSpan& span) { return span.extents; }

KvPoolStats SumOf(const KvPoolStats& a, const KvPoolStats& b) {
  const double held = static_cast<double>(a.slots_held) + b.slots_held;
  return {
      .slots_total = a.slots_total + b.slots_total,
      .slots_held = a.slots_held + b.slots_held,
      .slots_kept = a.slots_kept + b.slots_kept,
      .slots_quarantined = a.slots_quarantined + b.slots_quarantined,
      .slots_free = a.slots_free + b.slots_free,
      .slots_reserved = a.slots_reserved + b.slots_reserved,
      .mean_extent_tokens =
          held == 0
              ? 0
              : (a.mean_extent_tokens * a.slots_held + b.mean_extent_tokens * b.slots_held) / held};
}

uint32_t KvDirectory::SlotsFree(uint32_t memory_node) const {
  const Pool& pool = impl_->pools[memory_node];
  return pool.unreserved + pool.reserved;
}

uint32_t KvDirectory::SlotsQuarantined(uint32_t memory_node) const {
  return impl_->pools[memory_node].quarantined;
}

size_t KvDirectory::SpansOpen() const { return impl_->spans.size(); }

size_t KvDirectory::SpansKept() const { return impl_->kept.taken(); }

uint64_t KvDirectory::ReservationsRevoked() const { return impl_->revoked_count; }

KvPoolStats KvDirectory::Stats(uint32_t memory_node) const {
  const Pool& pool = impl_->pools[memory_node];
  const uint32_t slots_free = pool.unreserved + pool.reserved;
  return {.slots_total = pool.slots,
          .slots_held = pool.slots - slots_free - pool.quarantined,
          .slots_quarantined = pool.quarantined,
          .slots_free = slots_free,
          .slots_reserved = pool.reserved,
          .mean_extent_tokens =
              pool.extents_open == 0
                  ? 0.0
                  : static_cast<double>(pool.tokens_open) / static_cast<double>(pool.extents_open)};
}

}  // namespace lamina::core
