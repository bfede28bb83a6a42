// SPDX-License-Identifier: Apache-2.0
#include "compute_node/recent_attention.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "compute_node/fetch_splits.h"

namespace lamina::compute_node {

RecentAttention::RecentAttention(const WorkerContext& context, kernels::KvArena& scratch,
                                 kernels::KvArena* resident, const kernels::AttentionKernel& kernel)
    : context_(context),
      sums_(context.config),
      attention_(kernel, context.pool, context.config.layers,
                 std::max(context.config.rows_max, context.config.chunk_tokens_max),
                 context.config.sequence_tokens_max),
      sender_(context, plan::AttentionPath::kSparse),
      none_made_(context, /*arena=*/nullptr),
      recent_(context.config, resident),
      prompts_(context, scratch, /*int8=*/nullptr, sums_, attention_),
      kv_(context, plan::AttentionPath::kSparse, MakeRecentSplits(context.config, recent_), kernel,
          none_made_, &recent_),
      sets_(context) {}

absl::Status RecentAttention::Open() {
  LAMINA_RETURN_IF_ERROR(sets_.Open());
  return sender_.Open();
}

absl::Status RecentAttention::Apply(const plan::StepPlan& plan) {
  recent_.Apply(plan);
  return kv_.Apply(plan);
}

absl::Status RecentAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(runs_, RunsOf(context_.sequences, lane, rows));
  const size_t attending = runs_.size();
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs_));
  recent_.BeginStep(lane.index, runs_);
  LAMINA_RETURN_IF_ERROR(kv_.BeginStep(lane, absl::MakeConstSpan(runs_).first(attending)));
  LAMINA_RETURN_IF_ERROR(sets_.Put(lane, kv_));
  prompts_.BeginStep(lane, rows);
  return sender_.BeginStep(lane, runs_, kv_.Senders(lane));
}

absl::Status RecentAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  recent_.Store(lane.index, lane.slice,
                context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers));
  LAMINA_RETURN_IF_ERROR(kv_.BeginLayer(lane));
  prompts_.Attend(lane);
  return absl::OkStatus();
}

absl::StatusOr<bool> RecentAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, kv_.Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void RecentAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  kv_.AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
