// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/sequence_kv.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::core {
namespace {

constexpr uint32_t kBlockTokens = 256;  // A leaf of attention's merge tree.

}  // namespace

void SequenceKv::Reset(const KvDirectoryOptions& options, uint32_t span_tokens) {
  directory_ = std::make_unique<KvDirectory>(options);
  span_tokens_ = span_tokens;
  spans_.clear();
}

void SequenceKv::Open(SlotHolder holder, uint32_t bare) {
  LAMINA_CHECK(spans_.emplace(holder, HeldSpans{.bare = bare}).second);
}

void SequenceKv::BeginSpan(SlotHolder holder, uint32_t node) {
  LAMINA_CHECK(RoomInSpan(holder) == 0);
  HeldSpans& spans = spans_.at(holder);
  LAMINA_CHECK(spans.nodes.size() < kSpansMax);
  spans.last = directory_->Open(At(holder, spans.nodes.size()), node);
  spans.nodes.push_back(node);
}

absl::StatusOr<std::vector<HeldExtent>> SequenceKv::Append(SlotHolder holder, uint32_t tokens) {
  LAMINA_CHECK(tokens <= RoomInSpan(holder));
  HeldSpans& spans = spans_.at(holder);
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> extents,
                          directory_->Append(At(holder, spans.nodes.size() - 1), tokens));
  spans.tokens += tokens;
  std::vector<HeldExtent> held;
  for (const Extent& extent : extents) {
    held.push_back({.extent = extent, .memory_node = spans.nodes.back()});
  }
  return held;
}

std::optional<HeldExtent> SequenceKv::AppendOne(HeldSpans& held) {
  const std::optional<uint32_t> slot = directory_->AppendOne(*held.last);
  if (!slot) {
    return std::nullopt;
  }
  ++held.tokens;
  return HeldExtent{.extent = {.first_slot = *slot, .tokens = 1}, .memory_node = held.nodes.back()};
}

std::vector<HeldExtent> SequenceKv::Fork(SlotHolder parent, SlotHolder child, uint32_t tokens) {
  const HeldSpans& from = spans_.at(parent);
  LAMINA_CHECK(tokens <= from.tokens);
  HeldSpans to{.tokens = tokens,
               .bare = from.bare == kAllBare ? kAllBare : std::min(from.bare, tokens)};
  std::vector<HeldExtent> held;
  for (uint32_t left = tokens; left > 0;) {
    const size_t span = to.nodes.size();
    const uint32_t node = from.nodes[span];
    const uint32_t shared = span_tokens_ == 0 ? left : std::min(left, span_tokens_);
    for (const Extent& extent : directory_->Fork(At(parent, span), At(child, span), shared)) {
      held.push_back({.extent = extent, .memory_node = node});
    }
    to.nodes.push_back(node);
    to.last = directory_->Get(At(child, span));
    left -= shared;
  }
  LAMINA_CHECK(spans_.emplace(child, std::move(to)).second);
  return held;
}

std::vector<HeldExtent> SequenceKv::Share(SlotHolder from, uint32_t first, uint32_t tokens,
                                          SlotHolder to) {
  HeldSpans& target = spans_.at(to);
  LAMINA_CHECK(span_tokens_ == 0 && target.nodes.size() == 1);
  target.AddBare(spans_.at(from).BareIn(first, tokens));
  target.tokens += tokens;
  std::vector<HeldExtent> held;
  for (const Extent& extent : directory_->Share(At(from, 0), first, tokens, At(to, 0))) {
    held.push_back({.extent = extent, .memory_node = target.nodes[0]});
  }
  return held;
}

void SequenceKv::Keep(SlotHolder holder, const HeldSpans& held, uint32_t first, uint32_t tokens,
                      absl::Span<OpenSpan*> kept) {
  if (span_tokens_ == 0) {
    LAMINA_CHECK(held.nodes.size() == 1);
    directory_->Keep(*held.last, first, tokens, kept);
    return;
  }
  LAMINA_CHECK(tokens > 0 && span_tokens_ % tokens == 0 && first % tokens == 0);
  for (size_t done = 0; done < kept.size();) {
    const uint32_t at = first + static_cast<uint32_t>(done) * tokens;
    const uint32_t in_span = at % span_tokens_;
    const size_t count = std::min<size_t>(kept.size() - done, (span_tokens_ - in_span) / tokens);
    directory_->Keep(*directory_->Get(At(holder, at / span_tokens_)), in_span, tokens,
                     kept.subspan(done, count));
    done += count;
  }
}

OpenSpan* SequenceKv::ClaimKept(uint32_t node, const std::vector<Extent>& slots) {
  return directory_->ClaimKept(node, slots);
}

std::vector<HeldExtent> SequenceKv::ShareKept(const OpenSpan& kept, SlotHolder to, uint32_t bare) {
  HeldSpans& target = spans_.at(to);
  const uint32_t tokens = KvDirectory::TokensOf(kept);
  LAMINA_CHECK(tokens <= RoomInSpan(target));
  target.AddBare(bare);
  target.tokens += tokens;
  std::vector<HeldExtent> held;
  for (const Extent& extent : directory_->Share(kept, 0, tokens, *target.last)) {
    held.push_back({.extent = extent, .memory_node = target.nodes.back()});
  }
  return held;
}

void SequenceKv::Release(SlotHolder holder, uint64_t ticket) {
  const HeldSpans& spans = spans_.at(holder);
  for (size_t span = 0; span < spans.nodes.size(); ++span) {
    directory_->Release(At(holder, span), ticket);
  }
  spans_.erase(holder);
}

void SequenceKv::ReleaseFirst(SlotHolder holder, uint32_t tokens, uint64_t ticket) {
  HeldSpans& spans = spans_.at(holder);
  LAMINA_CHECK(tokens <= spans.tokens && tokens >= spans.released);
  uint32_t index = 0;
  VisitSpans(holder, [&](const Span& span) {
    if (span.slots > 0 && span.first < tokens) {
      directory_->ReleaseFirst(At(holder, index), std::min(tokens - span.first, span.tokens),
                               ticket);
    }
    ++index;
  });
  spans.released = tokens;
}

uint32_t SequenceKv::TokensOf(SlotHolder holder) const { return spans_.at(holder).tokens; }

uint32_t SequenceKv::BareOf(SlotHolder holder) const {
  const HeldSpans& spans = spans_.at(holder);
  return std::min(spans.bare, spans.tokens);
}

uint32_t SequenceKv::SlotsOn(SlotHolder holder, uint32_t node) const {
  uint32_t slots = 0;
  VisitSpans(holder, [&](const Span& span) { slots += span.node == node ? span.slots : 0; });
  return slots;
}

void SequenceKv::VisitSpans(SlotHolder holder, absl::FunctionRef<void(const Span&)> visit) const {
  const HeldSpans& spans = spans_.at(holder);
  uint32_t first = 0;
  for (const uint32_t node : spans.nodes) {
    const uint32_t left = spans.tokens - first;
    const uint32_t tokens = span_tokens_ == 0 ? left : std::min(left, span_tokens_);
    const uint32_t released = std::min(tokens, spans.released - std::min(spans.released, first));
    visit({.node = node, .first = first, .tokens = tokens, .slots = tokens - released});
    first += tokens;
  }
}

uint32_t SequenceKv::RoomInSpan(const HeldSpans& held) const {
  if (held.nodes.empty()) {
    return 0;
  }
  if (span_tokens_ == 0) {
    return UINT32_MAX;
  }
  return static_cast<uint32_t>(held.nodes.size()) * span_tokens_ - held.tokens;
}

absl::Status SequenceKv::Audit() const {
  size_t spans_open = 0;
  for (const auto& [holder, spans] : spans_) {
    const auto broken = [&id = holder.id](absl::string_view what) {
      return absl::InternalError(absl::StrCat("holder ", id, ": ", what));
    };
    uint32_t tokens = 0;
    for (size_t span = 0; span < spans.nodes.size(); ++span) {
      const HeldSpan held = At(holder, span);
      if (!directory_->IsOpen(held) || directory_->NodeOf(held) != spans.nodes[span]) {
        return broken(absl::StrCat("span ", span, " is astray"));
      }
      const uint32_t own = directory_->TokensOf(held);
      if (span_tokens_ != 0 &&
          (span + 1 < spans.nodes.size() ? own != span_tokens_ : own > span_tokens_)) {
        return broken(absl::StrCat("span ", span, " has ", own));
      }
      tokens += own;
    }
    if (tokens != spans.tokens) {
      return broken("miscounts its tokens");
    }
    spans_open += spans.nodes.size();
  }
  if (spans_open != directory_->SpansOpen()) {
    return absl::InternalError("the directory has a span of nobody");
  }
  return directory_->Audit();
}

uint32_t SpanTokensFor(uint32_t sequence_tokens_max) {
  const uint32_t blocks = (sequence_tokens_max + kBlockTokens - 1) / kBlockTokens;
  constexpr uint32_t kSpans = SequenceKv::kSpansMax / 2;
  return kBlockTokens * std::bit_ceil((blocks + kSpans - 1) / kSpans);
}

absl::Status CheckSpans(const std::vector<MemoryNodeShare>& nodes, uint32_t span_tokens,
                        uint32_t tokens_least) {
  uint64_t room = 0;
  for (const MemoryNodeShare& node : nodes) {
    if (node.slots < span_tokens) {
      return absl::FailedPreconditionError(
          absl::StrCat("partition token_range: memory node ", node.name, " has room for ",
                       node.slots, " tokens, too little for its share: a span of ", span_tokens,
                       "; raise its capacity or lower limits.sequence_tokens_max"));
    }
    room += node.slots / span_tokens * span_tokens;
  }
  if (room < tokens_least) {
    return absl::FailedPreconditionError(absl::StrCat(
        "partition token_range: the memory nodes have room for ", room, " tokens in spans of ",
        span_tokens, ", but one request may have ", tokens_least,
        " (limits.sequence_tokens_max); raise their capacities or lower the limit"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
