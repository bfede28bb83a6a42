// SPDX-License-Identifier: Apache-2.0
//
// The directory's invariants, recounted slot by slot.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/core/kv_directory_internal.h"

namespace lamina::core {
namespace {

std::string ToString(const HeldSpan* held) {
  if (held == nullptr) {
    return "a kept span";
  }
  return absl::StrCat("holder ", held->holder.id, " of kind ", static_cast<int>(held->holder.kind),
                      " span ", held->span);
}

}  // namespace

void KvDirectory::Impl::VisitSpans(
    absl::FunctionRef<void(const HeldSpan*, const OpenSpan&)> visit) const {
  for (const auto& [held, span] : spans) {
    visit(&held, span);
  }
  kept.VisitAll([&](const OpenSpan& span) {
    if (span.tokens > 0) {
      visit(nullptr, span);
    }
  });
}

// Marks in `owners` how many spans hold each slot, and checks what is kept about spans.
absl::Status KvDirectory::Impl::AuditHeld(uint32_t node, std::vector<uint32_t>& owners) const {
  const Pool& pool = pools[node];
  uint64_t tokens_open = 0;
  uint64_t extents_open = 0;
  absl::Status broken;
  VisitSpans([&](const HeldSpan* held, const OpenSpan& span) {
    if (span.node != node || !broken.ok()) {
      return;
    }
    uint32_t tokens = 0;
    for (const Extent& extent : span.extents) {
      if (extent.tokens == 0 || extent.first_slot + extent.tokens > pool.slots) {
        broken = absl::InternalError(absl::StrCat(ToString(held), " has an extent out of range"));
        return;
      }
      tokens += extent.tokens;
      for (uint32_t i = 0; i < extent.tokens; ++i) {
        ++owners[extent.first_slot + i];
      }
    }
    if (tokens + span.released != span.tokens) {
      broken = absl::InternalError(absl::StrCat(ToString(held), " has ", span.tokens, " tokens, ",
                                                span.released, " released, extents ", tokens));
    }
    tokens_open += tokens;
    extents_open += span.extents.size();
  });
  LAMINA_RETURN_IF_ERROR(broken);
  for (uint32_t slot = 0; slot < pool.slots; ++slot) {
    if (owners[slot] > 0 && pool.live.CountAt(slot) != owners[slot]) {
      return absl::InternalError(absl::StrCat("slot ", slot, " counts ", pool.live.CountAt(slot),
                                              " references, has ", owners[slot]));
    }
  }
  if (tokens_open != pool.tokens_open || extents_open != pool.extents_open) {
    return absl::InternalError(absl::StrCat("node ", node, " miscounts tokens or extents"));
  }
  return absl::OkStatus();
}

absl::Status KvDirectory::Impl::AuditPool(uint32_t node) const {
  const Pool& pool = pools[node];
  std::vector<uint32_t> owners(pool.slots);
  LAMINA_RETURN_IF_ERROR(AuditHeld(node, owners));
  bool overlap = false;
  const auto claim = [&](Extent extent) {
    for (uint32_t i = 0; i < extent.tokens; ++i) {
      overlap |= owners[extent.first_slot + i]++ > 0;
    }
    return extent.tokens;
  };
  uint32_t reserved = 0;
  for (const auto& [held, span] : spans) {
    const auto indexed = pool.reservations.find({span.indexed, span.opened});
    if (span.node == node &&
        (span.indexed > 0 ? indexed == pool.reservations.end() || indexed->second != &span ||
                                span.indexed < span.reserved
                          : span.reserved > 0)) {
      return absl::InternalError(absl::StrCat(ToString(&held), " is not found by its reservation"));
    }
    if (span.node == node && span.reserved > 0) {
      reserved += claim({span.TailEnd(), span.reserved});
    }
  }
  std::vector<uint32_t> tickets(pool.slots);
  for (const auto& [ticket, released] : quarantine) {
    for (const Released& part : released) {
      for (uint32_t i = 0; part.node == node && i < part.extent.tokens; ++i) {
        ++tickets[part.extent.first_slot + i];
      }
    }
  }
  uint32_t quarantined = 0;
  for (uint32_t slot = 0; slot < pool.slots; ++slot) {
    const uint32_t uses = owners[slot] + tickets[slot];
    if (tickets[slot] > 0 && pool.uses.CountAt(slot) != uses) {
      return absl::InternalError(
          absl::StrCat("slot ", slot, " counts ", pool.uses.CountAt(slot), " uses, has ", uses));
    }
    quarantined += tickets[slot] > 0 && owners[slot] == 0 ? claim({slot, 1}) : 0;
  }
  uint32_t unreserved = 0;
  uint32_t last_end = 0;
  for (const auto& run : pool.free.runs()) {
    const Extent extent = FreeRuns::ExtentOf(run);
    if (extent.first_slot != 0 && extent.first_slot == last_end) {
      return absl::InternalError(absl::StrCat("free runs touch at slot ", last_end));
    }
    last_end = run.first;
    unreserved += claim(extent);
  }
  if (overlap) {
    return absl::InternalError(absl::StrCat("node ", node, ": a slot is in two places"));
  }
  if (reserved != pool.reserved || quarantined != pool.quarantined ||
      unreserved != pool.unreserved) {
    return absl::InternalError(absl::StrCat("node ", node, " miscounts its slots"));
  }
  if (std::find(owners.begin(), owners.end(), 0u) != owners.end()) {
    return absl::InternalError(absl::StrCat("node ", node, " lost a slot"));
  }
  return absl::OkStatus();
}

absl::Status KvDirectory::Audit() const {
  size_t kept = 0;
  bool reserved = false;
  impl_->kept.VisitAll([&](const OpenSpan& span) {
    kept += span.tokens > 0 ? 1 : 0;
    reserved |= span.reserved > 0 || span.indexed > 0;
  });
  if (kept != impl_->kept.taken() || reserved) {
    return absl::InternalError("kept spans are miscounted, or have a reservation");
  }
  for (uint32_t node = 0; node < impl_->pools.size(); ++node) {
    if (absl::Status status = impl_->AuditPool(node); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
