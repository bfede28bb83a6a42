// SPDX-License-Identifier: Apache-2.0
//
// StreamingKv: rows attend over K and V that memory nodes put into this node's windows, where some
// heads stream: their pieces have the first and the last tokens before a run, those of the other
// heads all (plan/streaming_tokens.h). The rows' own K and V are stored behind what came.
//
// Threading: the data thread. Allocation: per epoch, when a step begins, and for the ranges of a
// layer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/peers.h"
#include "compute_node/piece_windows.h"
#include "compute_node/step_layout.h"
#include "compute_node/streaming_rows.h"
#include "compute_node/worker_context.h"
#include "plan/fetch_pieces.h"
#include "plan/streaming_tokens.h"

namespace lamina::compute_node {

class StreamingKv {
 public:
  // References must outlive this.
  StreamingKv(const WorkerContext& context, StreamingRows& rows);

  // These rows of the lane's step attend here; each run is of one sequence.
  void BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // q, k and v of the lane's slice are there: from now on Poll() attends its pieces.
  void BeginLayer(const Lane& lane);

  // Attends at most one piece of each memory node that has come, and gives its window back. Whether
  // none is missing. Errors: as Peers::CheckWindow(), Peers::Put().
  absl::StatusOr<bool> Poll(Lane& lane);
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
    windows_.AppendAwaited(lane, awaited);
  }

 private:
  // What one memory node sends of one lane.
  struct Stream {
    std::vector<RowRun> rows;
    std::vector<plan::FetchRun> whole;     // By run, what heads that see all tokens get,
    std::vector<plan::FetchRun> streamed;  // those that stream,
    std::vector<plan::TokenGap> gaps;      // and what these leave out.
    std::vector<plan::AlikeHeads> ranges;  // The layer's.
    size_t range = 0;                      // Next of these.

    bool streams() const { return ranges[range - 1].streams; }
    const std::vector<plan::FetchRun>& runs() const { return streams() ? streamed : whole; }
  };
  struct LaneState {
    uint32_t layer = 0;
    std::vector<Stream> streams;  // [memory nodes]
  };

  // The next range with pieces, if there is any.
  void BeginRange(const Lane& lane, uint32_t node);
  void Attend(Lane& lane, uint32_t node);

  const WorkerContext& context_;
  StreamingRows& rows_;
  PieceWindows windows_;
  std::vector<LaneState> lanes_;
};

}  // namespace lamina::compute_node
