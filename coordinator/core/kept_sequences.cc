// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/kept_sequences.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// The slots of `tokens` tokens behind the first `skip`.
std::vector<Extent> SlotsBehind(absl::Span<const Extent> extents, uint32_t skip, uint32_t tokens) {
  std::vector<Extent> slots;
  for (const Extent& extent : extents) {
    const uint32_t passed = std::min(skip, extent.tokens);
    skip -= passed;
    const uint32_t taken = std::min(tokens, extent.tokens - passed);
    if (taken > 0) {
      slots.push_back({extent.first_slot + passed, taken});
      tokens -= taken;
    }
  }
  LAMINA_CHECK(tokens == 0);
  return slots;
}

}  // namespace

void KeptSequences::Reset(uint32_t memory_nodes, uint32_t span_tokens, uint32_t block_tokens) {
  LAMINA_CHECK(span_tokens % block_tokens == 0);
  keeps_ = span_tokens > 0;
  span_tokens_ = span_tokens;
  part_block_tokens_ = block_tokens;
  block_tokens_.assign(memory_nodes, 0);
  ForgetSlots();
}

void KeptSequences::ResetOpenBlocks(std::vector<uint32_t> block_tokens) {
  keeps_ = true;
  span_tokens_ = 0;
  block_tokens_ = std::move(block_tokens);
  ForgetSlots();
}

void KeptSequences::ForgetSlots() {
  slots_on_.assign(block_tokens_.size(), 0);
  for (auto& [sequence, parts] : entries_) {
    for (Part& part : parts) {
      part.kept = nullptr;
    }
  }
}

bool KeptSequences::Keeps(const Sequence& sequence) const {
  return keeps_ && !sequence.request.score && !sequence.request.is_beam;
}

void KeptSequences::Stored(Sequence& sequence, uint32_t first, uint32_t tokens) {
  if (!Keeps(sequence)) {
    return;
  }
  if (!cuts()) {
    sequence.stored_tokens = first + tokens;
    return;
  }
  Parts& parts = entries_[&sequence];
  for (uint32_t at = first; at < first + tokens;) {
    const uint32_t span = at / span_tokens_;
    const uint32_t begin = span * span_tokens_;
    auto part = std::lower_bound(parts.begin(), parts.end(), begin,
                                 [](const Part& one, uint32_t token) { return one.first < token; });
    if (part == parts.end() || part->first != begin) {
      part = parts.insert(part, Part{.first = begin, .node = sequence.held->nodes[span]});
    }
    LAMINA_CHECK(part->end() == at);
    at = std::min(first + tokens, begin + span_tokens_);
    part->tokens = at - begin;
  }
  sequence.stored_tokens = NextMissing(sequence, 0);
}

// A sequence that decodes has K and V of all tokens but the last, which was never an input.
void KeptSequences::Save(const Sequence& sequence) {
  if (!Keeps(sequence) || !sequence.runs()) {
    return;
  }
  const bool decodes = sequence.state == SequenceState::kDecoding;
  const uint32_t stored = sequence.tokens() - 1;
  if (!cuts()) {
    entries_[&sequence] =
        OpenBlockOf(sequence, decodes ? stored : std::min(stored, sequence.stored_tokens));
  } else if (decodes) {
    entries_[&sequence] = SpansOf(sequence, stored);
  }
  const auto entry = entries_.find(&sequence);
  if (entry == entries_.end()) {
    return;
  }
  if (cuts()) {
    LeaveOpenBlocks(entry->second);
  }
  for (Part& part : entry->second) {
    const uint32_t span = cuts() ? part.first / span_tokens_ : 0;
    const uint32_t skip = cuts() ? 0 : part.first;
    part.bare = sequence.held->BareIn(part.first, part.tokens);
    part.slots = SlotsBehind(kv_.directory().ExtentsOf(HeldSpan(sequence.request.id, span)), skip,
                             part.tokens);
  }
}

void KeptSequences::LeaveOpenBlocks(Parts& parts) const {
  for (Part& part : parts) {
    part.tokens -= part.tokens % part_block_tokens_;
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens == 0; });
}

KeptSequences::Parts KeptSequences::SpansOf(const Sequence& sequence, uint32_t stored) const {
  Parts parts;
  kv_.VisitSpans(sequence.request.id, [&](const SequenceKv::Span& span) {
    if (span.first < stored) {
      parts.push_back({.first = span.first,
                       .tokens = std::min(span.tokens, stored - span.first),
                       .node = span.node});
    }
  });
  return parts;
}

// It is nothing where the cache has no blocks of the sequence, or another form of its last one.
KeptSequences::Parts KeptSequences::OpenBlockOf(const Sequence& sequence, uint32_t stored) const {
  const uint32_t unit = UnitOn(sequence.node);
  if (unit == 0 || sequence.request.lossy || sequence.held->released > 0 || sequence.spill != 0) {
    return {};
  }
  const uint32_t tokens = stored % unit;
  const uint32_t first = stored - tokens;
  if (tokens == 0) {
    return {};
  }
  return {{.first = first, .tokens = tokens, .node = sequence.node}};
}

void KeptSequences::Restore(const std::vector<std::optional<uint32_t>>& nodes) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    Parts& parts = entry->second;
    std::erase_if(parts, [&](const Part& part) {
      const std::optional<uint32_t>& node = nodes[part.node];
      const uint32_t unit = keeps_ && node ? UnitOn(*node) : 0;
      return unit == 0 || part.first % unit != 0 || part.tokens > unit;
    });
    for (Part& part : parts) {
      part.node = *nodes[part.node];
      part.kept = kv_.ClaimKept(part.node, part.slots);
      slots_on_[part.node] += part.tokens;
    }
    entry = parts.empty() ? entries_.erase(entry) : std::next(entry);
  }
}

void KeptSequences::Forget(uint32_t node) { MakeRoom(node, UINT64_MAX); }

void KeptSequences::Drop(const Sequence& sequence) {
  const auto entry = entries_.find(&sequence);
  if (entry == entries_.end()) {
    return;
  }
  for (Part& part : entry->second) {
    Release(part);
  }
  entries_.erase(entry);
}

// Nobody holds it for its sequence any more.
void KeptSequences::Release(Part& part) {
  if (part.kept != nullptr) {
    kv_.ReleaseKept(part.kept);
    slots_on_[part.node] -= part.tokens;
    part.kept = nullptr;
    part.slots.clear();
  }
}

absl::Span<const KeptSequences::Part> KeptSequences::PartsOf(const Sequence& sequence) const {
  const auto entry = entries_.find(&sequence);
  return entry == entries_.end() ? absl::Span<const Part>() : entry->second;
}

uint32_t KeptSequences::NextMissing(const Sequence& sequence, uint32_t from) const {
  for (const Part& part : PartsOf(sequence)) {
    if (part.first <= from && from < part.end()) {
      from = part.end();
    }
  }
  return from;
}

uint32_t KeptSequences::EndOfMissing(const Sequence& sequence, uint32_t from) const {
  for (const Part& part : PartsOf(sequence)) {
    if (part.first > from) {
      return part.first;
    }
  }
  return sequence.tokens();
}

bool KeptSequences::HasOpenBlockBehind(const Sequence& sequence, uint32_t node,
                                       uint32_t tokens) const {
  const absl::Span<const Part> parts = PartsOf(sequence);
  return !cuts() && !parts.empty() && parts[0].node == node && parts[0].first == tokens;
}

std::vector<HeldExtent> KeptSequences::JoinSpan(const Sequence& sequence) {
  const auto entry = entries_.find(&sequence);
  if (entry == entries_.end()) {
    return {};
  }
  const plan::SequenceId id = sequence.request.id;
  Parts& parts = entry->second;
  const auto part = std::find_if(parts.begin(), parts.end(),
                                 [&](const Part& one) { return one.first == kv_.TokensOf(id); });
  if (part == parts.end()) {
    return {};
  }
  tokens_asked_ += cuts() && part == parts.begin() ? sequence.join_tokens : 0;
  tokens_found_ += part->tokens;
  std::vector<HeldExtent> slots = kv_.ShareKept(*part->kept, id, part->bare);
  Release(*part);
  return slots;
}

// Parts of one sequence from its last one on.
void KeptSequences::MakeRoom(uint32_t node, uint64_t slots, const Sequence* keeper) {
  const KvDirectory& directory = kv_.directory();
  const auto lacks = [&] {
    return slots_on_[node] > 0 &&
           uint64_t{directory.SlotsFree(node)} + directory.SlotsQuarantined(node) < slots;
  };
  for (auto entry = entries_.rbegin(); entry != entries_.rend() && lacks(); ++entry) {
    if (entry->first == keeper) {
      continue;
    }
    Parts& parts = entry->second;
    for (auto part = parts.rbegin(); part != parts.rend() && lacks(); ++part) {
      if (part->node == node && part->kept != nullptr) {
        Release(*part);
        part->tokens = 0;
      }
    }
    std::erase_if(parts, [](const Part& part) { return part.tokens == 0; });
  }
}

uint32_t KeptSequences::parts_with_slots() const {
  uint32_t count = 0;
  for (const auto& [sequence, parts] : entries_) {
    count += static_cast<uint32_t>(
        absl::c_count_if(parts, [](const Part& part) { return part.kept != nullptr; }));
  }
  return count;
}

absl::Status KeptSequences::Audit() const {
  std::vector<uint32_t> slots(slots_on_.size());
  for (const auto& [sequence, parts] : entries_) {
    const auto broken = [id = sequence->request.id](absl::string_view what) {
      return absl::InternalError(absl::StrCat("what is kept of sequence ", id, ": ", what));
    };
    uint32_t end = 0;
    for (const Part& part : parts) {
      const uint32_t unit = UnitOn(part.node);
      if (part.tokens == 0 || part.tokens > unit || part.first % unit != 0 || part.first < end ||
          part.end() >= sequence->tokens()) {
        return broken("parts overlap, begin within a span or block, or are all there is");
      }
      end = part.end();
      if ((part.kept != nullptr) != (sequence->state == SequenceState::kWaiting)) {
        return broken("a part holds slots besides its sequence, or nobody does");
      }
      if (part.kept == nullptr) {
        continue;
      }
      if (KvDirectory::TokensOf(*part.kept) != part.tokens ||
          KvDirectory::NodeOf(*part.kept) != part.node) {
        return broken("a part has more or fewer slots than tokens, or elsewhere");
      }
      slots[part.node] += part.tokens;
    }
  }
  if (slots != slots_on_) {
    return absl::InternalError("slots are kept for a part of a sequence that is not there");
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
