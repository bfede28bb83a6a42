// SPDX-License-Identifier: Apache-2.0
//
// SequenceKv: the slots of sequences that may be cut into spans on different memory nodes.
//
// Uncut, a sequence is one span on one node. Cut, span i holds tokens [i * span_tokens, (i + 1) *
// span_tokens), and each span lies on a node of its own choice. Every span is a sequence of the
// KvDirectory, which knows nothing of cuts.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/scheduler.h"
#include "plan/step_plan.h"

namespace lamina::core {

class SequenceKv {
 public:
  // Spans of one sequence at most.
  static constexpr uint32_t kSpansMax = 16;

  // `span_tokens` 0 cuts nothing.
  SequenceKv(const KvDirectoryOptions& options, uint32_t span_tokens)
      : directory_(options), span_tokens_(span_tokens) {}

  // Starts a sequence without spans. Requires: not open; with cuts an id below 2^60.
  void Open(plan::SequenceId id);
  // The next tokens go to `node`. Requires: RoomInSpan(id) == 0.
  void BeginSpan(plan::SequenceId id, uint32_t node);
  // Requires: tokens <= RoomInSpan(id).   Errors: those of KvDirectory::Append; nothing changed.
  absl::StatusOr<std::vector<plan::SlotGrant>> Append(plan::SequenceId id, uint32_t tokens);
  // As KvDirectory::Fork, span by span.
  std::vector<plan::SlotGrant> Fork(plan::SequenceId parent, plan::SequenceId child,
                                    uint32_t tokens);
  void Release(plan::SequenceId id, uint64_t ticket);
  void Recycle(uint64_t ticket) { directory_.Recycle(ticket); }

  bool IsOpen(plan::SequenceId id) const { return spans_.contains(id); }
  uint32_t TokensOf(plan::SequenceId id) const;
  uint32_t TokensOn(plan::SequenceId id, uint32_t node) const;
  // Tokens that the last span still takes; 0 before the first.
  uint32_t RoomInSpan(plan::SequenceId id) const;
  // Of each span.
  const std::vector<uint32_t>& NodesOf(plan::SequenceId id) const { return spans_.at(id).nodes; }

  const KvDirectory& directory() const { return directory_; }
  absl::Status Audit() const;

 private:
  struct Spans {
    std::vector<uint32_t> nodes;
    uint32_t tokens = 0;
  };
  plan::SequenceId KeyOf(plan::SequenceId id, size_t span) const {
    return span_tokens_ == 0 ? id : id * kSpansMax + span;
  }

  KvDirectory directory_;
  uint32_t span_tokens_;
  std::map<plan::SequenceId, Spans> spans_;
};

// Tokens of a span, for sequences of at most `sequence_tokens_max`: a power of two of attention
// blocks, so that a whole span is one node of the merge tree, and at most half of kSpansMax of
// them.
uint32_t SpanTokensFor(uint32_t sequence_tokens_max);

// Whether sequences of `tokens_least` can be cut into spans over these nodes.
// Errors: kInvalidArgument     a layer has a sliding window, which a partial of a span does not
// know.
//         kFailedPrecondition  a node without room for one span, or all without room for the
//         longest
//                              sequence; says what there is and what it takes.
absl::Status CheckSpans(absl::Span<const AttentionDescriptor> layers,
                        const std::vector<MemoryNodeShare>& nodes, uint32_t span_tokens,
                        uint32_t tokens_least);

}  // namespace lamina::core
