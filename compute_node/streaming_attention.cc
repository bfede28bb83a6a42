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
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs_));
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
