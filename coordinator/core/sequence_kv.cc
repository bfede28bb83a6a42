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

constexpr uint32_t kBlockTokens = 256;  // Of attention's merge tree.

}  // namespace

void SequenceKv::Open(plan::SequenceId id) { LAMINA_CHECK(spans_.emplace(id, Spans{}).second); }

void SequenceKv::BeginSpan(plan::SequenceId id, uint32_t node) {
  LAMINA_CHECK(RoomInSpan(id) == 0);
  Spans& spans = spans_.at(id);
  LAMINA_CHECK(spans.nodes.size() < kSpansMax);
  directory_.Open(KeyOf(id, spans.nodes.size()), node);
  spans.nodes.push_back(node);
}

absl::StatusOr<std::vector<plan::SlotGrant>> SequenceKv::Append(plan::SequenceId id,
                                                                uint32_t tokens) {
  LAMINA_CHECK(tokens <= RoomInSpan(id));
  Spans& spans = spans_.at(id);
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> extents,
                          directory_.Append(KeyOf(id, spans.nodes.size() - 1), tokens));
  spans.tokens += tokens;
  std::vector<plan::SlotGrant> grants;
  for (const Extent& extent : extents) {
    grants.push_back({.sequence = id, .extent = extent, .memory_node = spans.nodes.back()});
  }
  return grants;
}

std::vector<plan::SlotGrant> SequenceKv::Fork(plan::SequenceId parent, plan::SequenceId child,
                                              uint32_t tokens) {
  const Spans& from = spans_.at(parent);
  LAMINA_CHECK(tokens <= from.tokens);
  Spans to{.tokens = tokens};
  std::vector<plan::SlotGrant> grants;
  for (uint32_t left = tokens; left > 0;) {
    const size_t span = to.nodes.size();
    const uint32_t node = from.nodes[span];
    const uint32_t shared = span_tokens_ == 0 ? left : std::min(left, span_tokens_);
    for (const Extent& extent : directory_.Fork(KeyOf(parent, span), KeyOf(child, span), shared)) {
      grants.push_back({.sequence = child, .extent = extent, .memory_node = node});
    }
    to.nodes.push_back(node);
    left -= shared;
  }
  LAMINA_CHECK(spans_.emplace(child, std::move(to)).second);
  return grants;
}

void SequenceKv::Release(plan::SequenceId id, uint64_t ticket) {
  const Spans& spans = spans_.at(id);
  for (size_t span = 0; span < spans.nodes.size(); ++span) {
    directory_.Release(KeyOf(id, span), ticket);
  }
  spans_.erase(id);
}

uint32_t SequenceKv::TokensOf(plan::SequenceId id) const { return spans_.at(id).tokens; }

uint32_t SequenceKv::TokensOn(plan::SequenceId id, uint32_t node) const {
  const Spans& spans = spans_.at(id);
  uint32_t tokens = 0;
  for (size_t span = 0; span < spans.nodes.size(); ++span) {
    if (spans.nodes[span] == node) {
      tokens += directory_.TokensOf(KeyOf(id, span));
    }
  }
  return tokens;
}

uint32_t SequenceKv::RoomInSpan(plan::SequenceId id) const {
  const Spans& spans = spans_.at(id);
  if (spans.nodes.empty()) {
    return 0;
  }
  if (span_tokens_ == 0) {
    return UINT32_MAX;
  }
  return static_cast<uint32_t>(spans.nodes.size()) * span_tokens_ - spans.tokens;
}

absl::Status SequenceKv::Audit() const {
  for (const auto& [id, spans] : spans_) {
    uint32_t tokens = 0;
    for (size_t span = 0; span < spans.nodes.size(); ++span) {
      const plan::SequenceId key = KeyOf(id, span);
      if (!directory_.IsOpen(key) || directory_.NodeOf(key) != spans.nodes[span]) {
        return absl::InternalError(absl::StrCat("sequence ", id, ": span ", span, " is astray"));
      }
      const uint32_t own = directory_.TokensOf(key);
      if (span_tokens_ != 0 &&
          (span + 1 < spans.nodes.size() ? own != span_tokens_ : own > span_tokens_)) {
        return absl::InternalError(absl::StrCat("sequence ", id, ": span ", span, " has ", own));
      }
      tokens += own;
    }
    if (tokens != spans.tokens) {
      return absl::InternalError(absl::StrCat("sequence ", id, " miscounts its tokens"));
    }
  }
  return directory_.Audit();
}

uint32_t SpanTokensFor(uint32_t sequence_tokens_max) {
  const uint32_t blocks = (sequence_tokens_max + kBlockTokens - 1) / kBlockTokens;
  constexpr uint32_t kSpans = SequenceKv::kSpansMax / 2;
  return kBlockTokens * std::bit_ceil((blocks + kSpans - 1) / kSpans);
}

absl::Status CheckSpans(absl::Span<const AttentionDescriptor> layers,
                        const std::vector<MemoryNodeShare>& nodes, uint32_t span_tokens,
                        uint32_t tokens_least) {
  for (const AttentionDescriptor& layer : layers) {
    if (layer.window != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("partition token_range: the model attends over a sliding window of ",
                       layer.window, " tokens; choose partition request or head"));
    }
  }
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
