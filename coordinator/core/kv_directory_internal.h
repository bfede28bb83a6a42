// SPDX-License-Identifier: Apache-2.0
//
// KvDirectory::Impl: the state behind KvDirectory, shared by kv_directory.cc (the calls) and
// kv_directory_audit.cc (the invariants).

#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "coordinator/core/free_runs.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/slot_references.h"
#include "coordinator/core/stable_pool.h"

namespace lamina::core {

struct OpenSpan {
  uint32_t node = 0;
  uint32_t tokens = 0;
  uint32_t released = 0;  // The first ones of these, which have no slots any more.
  uint32_t reserved = 0;  // Slots behind the last one.
  // How large the reservation is in Pool::reservations: as it was when it was made or last looked
  // at. Appending token by token only makes it smaller.
  uint32_t indexed = 0;
  uint64_t opened = 0;                     // Order of opening.
  absl::InlinedVector<Extent, 2> extents;  // Few, as long as slots behind the tail are free.

  uint32_t TailEnd() const { return extents.back().first_slot + extents.back().tokens; }
};

// Largest first, then opened first.
struct ReservationKey {
  uint32_t tokens = 0;
  uint64_t opened = 0;
  bool operator<(const ReservationKey& other) const {
    return tokens != other.tokens ? tokens > other.tokens : opened < other.opened;
  }
};

// The slots of one memory node.
struct Pool {
  uint32_t slots = 0;
  uint32_t unreserved = 0;
  uint32_t reserved = 0;
  uint32_t quarantined = 0;
  uint64_t tokens_open = 0;   // Tokens with slots, over open spans; shared slots count for each.
  uint64_t extents_open = 0;  // Extents of these tokens.
  FreeRuns free;              // Unreserved slots only.
  SlotReferences live;        // Open spans that use a slot.
  // Open spans that use a slot, and ended ones until their ticket is recycled.
  SlotReferences uses;
  absl::btree_map<ReservationKey, OpenSpan*> reservations;  // By OpenSpan::indexed.
};

struct KvDirectory::Impl {
  KvDirectoryOptions options;
  std::vector<Pool> pools;
  std::map<HeldSpan, OpenSpan> spans;
  StablePool<OpenSpan> kept;  // One that has no tokens is not taken.
  struct Released {
    uint32_t node = 0;
    Extent extent;
  };
  std::map<uint64_t, std::vector<Released>> quarantine;  // By ticket.
  uint64_t opened_count = 0;
  uint64_t revoked_count = 0;
  std::vector<Extent> parts;  // What a call releases of an extent.

  const OpenSpan& Find(const HeldSpan& span) const {
    const auto it = spans.find(span);
    LAMINA_CHECK(it != spans.end());
    return it->second;
  }
  OpenSpan& Find(const HeldSpan& span) {
    return const_cast<OpenSpan&>(std::as_const(*this).Find(span));
  }

  OpenSpan& Insert(const HeldSpan& span, uint32_t node);
  OpenSpan& InsertKept(uint32_t node);
  void Use(const OpenSpan& source, uint32_t first, uint32_t tokens,
           absl::FunctionRef<void(const Extent&)> visit);
  void SetReservation(OpenSpan& span, uint32_t tokens);
  void Reindex(OpenSpan& span);
  void FreeReservationBehind(OpenSpan& span, uint32_t left);
  void ReserveBehind(OpenSpan& span);
  void RevokeOne(Pool& pool, uint32_t tokens);
  void EndUse(Pool& pool, const Extent& extent);
  void Free(Pool& pool, const Extent& extent);
  void Quarantine(uint32_t node, absl::Span<const Extent> extents, uint64_t ticket);
  Extent NextRun(const OpenSpan& span, uint32_t tokens);
  Extent TakeNext(OpenSpan& span, uint32_t tokens);
  // Calls `visit` with each open span, and with its key: null for those that are kept.
  void VisitSpans(absl::FunctionRef<void(const HeldSpan*, const OpenSpan&)> visit) const;
  absl::Status AuditPool(uint32_t node) const;
  absl::Status AuditHeld(uint32_t node, std::vector<uint32_t>& owners) const;
};

}  // namespace lamina::core
