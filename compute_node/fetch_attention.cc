// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetch_attention.h"

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

absl::Status FetchAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_ASSIGN_OR_RETURN(runs_, RunsOf(context_.sequences, lane, rows));
  LAMINA_RETURN_IF_ERROR(fetched_->BeginStep(lane, runs_));
  LAMINA_RETURN_IF_ERROR(AppendChunkRuns(context_.config, context_.sequences, lane, rows, runs_));
  LAMINA_RETURN_IF_ERROR(resident_.BeginStep(lane, runs_));
  chunks_.BeginStep(lane, rows);
  return sender_.BeginStep(lane, runs_, fetched_->Senders(lane));
}

absl::Status FetchAttention::Attend(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sender_.Send(lane));
  LAMINA_RETURN_IF_ERROR(resident_.Store(lane));  // Rows of the step may read each other's.
  LAMINA_RETURN_IF_ERROR(fetched_->BeginLayer(lane));
  return chunks_.Attend(lane);
}

bool FetchAttention::Await(Lane& lane) {
  // Every row's k and v have gone out, so somebody's reply is missing if anything is.
  return sender_.Await(lane);
}

absl::StatusOr<bool> FetchAttention::Poll(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool attended, fetched_->Poll(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool stored, sender_.Poll(lane));
  return attended && stored;
}

void FetchAttention::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  fetched_->AppendAwaited(lane, awaited);
  sender_.AppendAwaited(lane, awaited);
}

}  // namespace lamina::compute_node
