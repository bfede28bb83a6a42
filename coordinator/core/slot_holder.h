// SPDX-License-Identifier: Apache-2.0
//
// SlotHolder: who holds KV slots. A sequence is one kind of holder; what is held for others, like
// what beams continue from, is another. KvDirectory and SequenceKv treat all kinds alike: ids need
// to be unique within their kind only. Cached blocks, which are many and hold slots that sequences
// were given, have no key (KvDirectory::Keep).

#pragma once

#include <compare>
#include <cstdint>

#include "plan/step_plan.h"

namespace lamina::core {

// Kinds are told apart, never enumerated: a new one is a new value.
enum class HolderKind : uint8_t { kSequence = 0, kBeam = 1, kSpill = 2 };

struct SlotHolder {
  HolderKind kind = HolderKind::kSequence;
  uint64_t id = 0;

  SlotHolder() = default;
  SlotHolder(HolderKind of_kind, uint64_t its_id) : kind(of_kind), id(its_id) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a sequence's id says it all.
  SlotHolder(plan::SequenceId sequence) : id(sequence) {}

  friend auto operator<=>(const SlotHolder&, const SlotHolder&) = default;
};

// A holder's tokens in one piece on one memory node, as the directory knows them: cut into spans, a
// holder has several.
struct HeldSpan {
  SlotHolder holder;
  uint32_t span = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): uncut, a holder is its first span.
  HeldSpan(SlotHolder of_holder, uint32_t of_span = 0) : holder(of_holder), span(of_span) {}
  // NOLINTNEXTLINE(google-explicit-constructor): the same of a sequence.
  HeldSpan(plan::SequenceId sequence) : holder(sequence) {}

  friend auto operator<=>(const HeldSpan&, const HeldSpan&) = default;
};

}  // namespace lamina::core
