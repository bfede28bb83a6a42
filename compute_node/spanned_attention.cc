// SPDX-License-Identifier: Apache-2.0
#include "compute_node/spanned_attention.h"

#include "common/status_macros.h"
#include "compute_node/step_layout.h"
#include "plan/attention_paths.h"

namespace lamina::compute_node {

SpannedAttention::SpannedAttention(const WorkerContext& context, const ScratchAttention& chunks,
                                   const kernels::AttentionKernel& kernel)
    : context_(context),
      chunks_(chunks),
      sender_(context, plan::AttentionPath::kFetch),
      kv_(context, kernel) {}

absl::Status SpannedAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<RowRun> runs, RunsOf(context_.sequences, lane, rows));
  LAMINA_RETURN_IF_ERROR(kv_.BeginStep(lane, runs));
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs));
  chunks_.BeginStep(lane, rows);
  LAMINA_ASSIGN_OR_RETURN(runs, CutBySpan(context_.config, context_.sequences, runs));
  return sender_.BeginStep(lane, runs, kv_.Senders(lane));
}

absl::Status SpannedAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  kv_.BeginLayer(lane);
  return chunks_.Attend(lane);
}

absl::StatusOr<bool> SpannedAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, kv_.Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void SpannedAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  kv_.AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
