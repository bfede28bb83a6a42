// SPDX-License-Identifier: Apache-2.0
//
// KvDirectory: which holder (slot_holder.h) has which token slots on which memory node.
//
// A slot is one token's K and V in all layers. Slots are handed out in token granularity and kept
// as extents. Behind each tail lies a soft reservation: slots that count as free, that the span's
// next tokens take first, and that are revoked under pressure. The free list is LIFO and coalesces.
// Slots are reference-counted, so forks share their prefix. A released slot stays in quarantine
// until the owner has said of every span that used it that no node can any more.
//
// Most spans are found by their holder. Of those that only share slots of others there may be very
// many (cached blocks): they are kept without a key, by who opened them.
//
// Threading: one thread. No I/O, no clock.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "coordinator/core/slot_holder.h"

namespace lamina::core {

struct OpenSpan;  // A span that is open, for who keeps it at hand.

struct KvPoolStats {
  uint32_t slots_total = 0;
  uint32_t slots_held = 0;  // Referenced by at least one span.
  uint32_t slots_kept = 0;  // By the prefix cache alone; not part of slots_held then.
  uint32_t slots_quarantined = 0;
  uint32_t slots_free = 0;        // Soft reservations included. The four are all.
  uint32_t slots_reserved = 0;    // The part of free that is reserved behind tails.
  double mean_extent_tokens = 0;  // Over the spans held.
};

// Both together; extents of slots are as long as in the mean over the slots held.
KvPoolStats SumOf(const KvPoolStats& a, const KvPoolStats& b);

struct KvDirectoryOptions {
  std::vector<uint32_t> slots;         // Per memory node.
  uint32_t soft_reservation_min = 64;  // Tokens; runs with fewer to spare are taken last.
  uint32_t soft_reservation_max = 256;
  // A slot has the place among so many that its token has, where there is room: tiles of K are read
  // as they lie then.
  uint32_t alignment = 16;
};

// Where the next token goes, first that applies:
//   1. the slot behind the span's last one, if it is reserved for it or unreserved;
//   2. an unreserved run with room for the tokens asked for and the least soft reservation: the
//      longest of the few nearest to the last slot, else the most recently freed (LIFO);
//   3. the longest unreserved run, however short;
//   4. when no unreserved slot is left: of the largest soft reservation, of equally large ones that
//      of the span opened first, the tokens asked for and half of the rest are revoked, from its
//      end, and 1 to 3 apply again.
// Cost: every call O(log runs) for each extent it touches, whatever the number of slots or tokens.

class KvDirectory {
 public:
  explicit KvDirectory(const KvDirectoryOptions& options);
  ~KvDirectory();
  KvDirectory(const KvDirectory&) = delete;
  KvDirectory& operator=(const KvDirectory&) = delete;

  // Starts a span without slots. It stays where it is until it is released. Requires: not open.
  OpenSpan* Open(const HeldSpan& span, uint32_t memory_node);
  OpenSpan* Get(const HeldSpan& span);  // Requires: open.

  // Appends `tokens` slots and returns them as extents, merged where they continue the last one.
  // Errors: kResourceExhausted  fewer are free, reservations of others included; nothing changed.
  absl::StatusOr<std::vector<Extent>> Append(const HeldSpan& span, uint32_t tokens);

  // Appends one slot; nothing when none is free. Finds nothing by a key: for decode rows.
  std::optional<uint32_t> AppendOne(OpenSpan& span);

  // Opens `child` on the parent's node, sharing the slots of the parent's first `tokens` tokens,
  // and returns them. Nothing is copied: what either appends later goes to slots of its own.
  // Requires: tokens <= TokensOf(parent), none of them released; child not open.
  std::vector<Extent> Fork(const HeldSpan& parent, const HeldSpan& child, uint32_t tokens);

  // Appends the slots of tokens [first, first + tokens) of `from` to `to`, which shares them from
  // then on and never writes them, and returns them. Nothing is copied.
  // Requires: both are open on one node; first + tokens <= TokensOf(from), none of them released;
  // `to` has appended no slots of its own.
  std::vector<Extent> Share(const HeldSpan& from, uint32_t first, uint32_t tokens,
                            const HeldSpan& to);

  std::vector<Extent> Share(const OpenSpan& from, uint32_t first, uint32_t tokens, OpenSpan& to);

  // Opens kept spans, each of which shares the slots of the next `tokens` tokens of `from`, the
  // first one from token `first` on, and appends none. They stay where they are until
  // ReleaseKept(). Requires: tokens > 0; `from` has that many tokens from `first` on, none of them
  // released.
  void Keep(const OpenSpan& from, uint32_t first, uint32_t tokens, absl::Span<OpenSpan*> kept);
  // Opens a kept span that has these slots already. Those that are free become its own; others it
  // shares. Requires: there is one; none is reserved or in quarantine.
  OpenSpan* ClaimKept(uint32_t memory_node, const std::vector<Extent>& slots);
  // Ends it. Nodes know nothing of it: slots that no other span uses, nor has used, are free.
  void ReleaseKept(OpenSpan* kept);

  // Ends a span. Slots that no open span uses any more are in quarantine, and free after Recycle()
  // of the tickets of all that used them: sequences that share slots may run in different lanes,
  // whose steps end in any order. Its soft reservation, which no node ever saw, is free at once.
  void Release(const HeldSpan& span, uint64_t ticket);
  void Recycle(uint64_t ticket);

  // Gives up the slots of the span's first `tokens` tokens, which keep their numbers: they are in
  // quarantine as those of spans that end. Nothing for those that have none any more.
  // Requires: tokens <= TokensOf(span).
  void ReleaseFirst(const HeldSpan& span, uint32_t tokens, uint64_t ticket);

  bool IsOpen(const HeldSpan& span) const;
  uint32_t TokensOf(const HeldSpan& span) const;  // Tokens without slots any more count, too.
  uint32_t NodeOf(const HeldSpan& span) const;
  // Slots of the tokens that have some; valid until the span changes.
  absl::Span<const Extent> ExtentsOf(const HeldSpan& span) const;
  static uint32_t TokensOf(const OpenSpan& span);
  static uint32_t NodeOf(const OpenSpan& span);
  static absl::Span<const Extent> ExtentsOf(const OpenSpan& span);
  uint32_t SlotsFree(uint32_t memory_node) const;  // Soft reservations included.
  uint32_t SlotsQuarantined(uint32_t memory_node) const;
  size_t SpansOpen() const;  // Without those that are kept.
  size_t SpansKept() const;
  uint64_t ReservationsRevoked() const;           // Since construction.
  KvPoolStats Stats(uint32_t memory_node) const;  // Cost: O(1).

  // Recounts everything from scratch. Errors: kInternal names the first broken invariant. For tests
  // and simulation.
  absl::Status Audit() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::core
