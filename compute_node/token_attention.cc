// SPDX-License-Identifier: Apache-2.0
#include "compute_node/token_attention.h"

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

absl::Status TokenAttention::Prepare() {
  LAMINA_RETURN_IF_ERROR(tokens_.Prepare());
  return fetched_->Prepare();
}

absl::Status TokenAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(runs_, RunsOf(context_.sequences, lane, rows));
  LAMINA_RETURN_IF_ERROR(fetched_->BeginStep(lane, runs_));
  LAMINA_RETURN_IF_ERROR(tokens_.BeginStep(lane, runs_));
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs_));
  chunks_.BeginStep(lane, rows);
  return sender_.BeginStep(lane, runs_, fetched_->Senders(lane));
}

// The rows' own k and v leave first, and chunks attend before the layer's tokens are made, which
// takes longer than all else here.
absl::Status TokenAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  LAMINA_RETURN_IF_ERROR(fetched_->BeginLayer(lane));
  LAMINA_RETURN_IF_ERROR(chunks_.Attend(lane));
  return tokens_.Make(lane);
}

absl::StatusOr<bool> TokenAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, fetched_->Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void TokenAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  fetched_->AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
