// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streaming_attention.h"

#include <algorithm>

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

StreamingAttention::StreamingAttention(const WorkerContext& context, kernels::KvArena& scratch,
                                       const kernels::AttentionKernel& kernel)
    : context_(context),
      rows_(context.config.streaming, context.config.layers,
            {.rows = std::max(context.config.rows_max, context.config.chunk_tokens_max),
             .context_tokens = context.config.sequence_tokens_max},
            kernel, context.pool),
      sender_(context, plan::AttentionPath::kStreaming),
      prompts_(context, scratch, rows_),
      kv_(context, rows_) {}

absl::Status StreamingAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(runs_, RunsOf(context_.sequences, lane, rows));
  kv_.BeginStep(lane, runs_);
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    const uint64_t end = uint64_t{chunk.plan.first_token} + chunk.plan.tokens;
    if (chunk.plan.scratch_offset + end > context_.config.scratch_tokens) {
      return ChunkDoesNotFollow(chunk.plan);
    }
    runs_.push_back({.sequence = chunk.plan.sequence,
                     .memory_node = context_.sequences.Find(chunk.plan.sequence)->join.memory_node,
                     .first_row = chunk.first_row,
                     .first_token = chunk.plan.first_token,
                     .tokens = chunk.plan.tokens});
  }
  prompts_.BeginStep(lane, rows);
  return sender_.BeginStep(lane, runs_);
}

absl::Status StreamingAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  kv_.BeginLayer(lane);
  prompts_.Attend(lane);
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamingAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, kv_.Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void StreamingAttention::AppendAwaited(const Lane& lane,
                                       std::vector<AwaitedSignal>& awaited) const {
  kv_.AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
