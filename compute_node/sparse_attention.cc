// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_attention.h"

#include <algorithm>

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

SparseAttention::SparseAttention(const WorkerContext& context, const SparseMemory& memory,
                                 const kernels::AttentionKernel& kernel)
    : context_(context),
      sums_(context.config),
      attention_(kernel, context.pool, context.config.layers,
                 std::max(context.config.rows_max, context.config.chunk_tokens_max),
                 context.config.sequence_tokens_max),
      sender_(context, plan::AttentionPath::kSparse),
      form_(MakeSparseForm(context.config, memory, attention_)),
      choice_(context, sums_, *form_.recent),
      prompts_(context, memory.scratch, memory.int8, sums_, attention_),
      kv_(context, choice_, sums_, *form_.pieces) {}

absl::Status SparseAttention::Open() {
  LAMINA_RETURN_IF_ERROR(choice_.Open());
  return sender_.Open();
}

absl::Status SparseAttention::Apply(const plan::StepPlan& plan) {
  sums_.Apply(plan);
  form_.recent->Apply(plan);
  return absl::OkStatus();
}

absl::Status SparseAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(runs_, RunsOf(context_.sequences, lane, rows));
  const size_t chosen = runs_.size();
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs_));
  form_.recent->BeginStep(lane.index, runs_);
  LAMINA_RETURN_IF_ERROR(choice_.BeginStep(lane, absl::MakeConstSpan(runs_).first(chosen)));
  kv_.BeginStep(lane);
  prompts_.BeginStep(lane, rows);
  return sender_.BeginStep(lane, runs_);
}

absl::Status SparseAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  form_.recent->Store(lane.index, lane.slice,
                      context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers));
  kv_.BeginLayer(lane);
  prompts_.Attend(lane);
  return absl::OkStatus();
}

absl::StatusOr<bool> SparseAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, kv_.Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void SparseAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  kv_.AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
