// SPDX-License-Identifier: Apache-2.0
//
// StreamingPrompts: prompt chunks attend at the compute node over the scratch KV of their
// sequences, where some heads stream: their rows have the bits that they have as rows of a step.
//
// Threading: the data thread. Allocation: per step.

#pragma once

#include <vector>

#include "compute_node/lane.h"
#include "compute_node/step_layout.h"
#include "compute_node/streaming_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class StreamingPrompts {
 public:
  // `scratch` has the epoch's layers and scratch tokens. References must outlive this.
  StreamingPrompts(const WorkerContext& context, kernels::KvArena& scratch, StreamingRows& rows)
      : context_(context), scratch_(scratch), rows_(rows), lanes_(context.config.lanes) {}

  // These chunks of the lane's step.
  void BeginStep(const Lane& lane, const PathRows& rows) {
    const auto chunks = ChunksOf(lane, rows);
    lanes_[lane.index].assign(chunks.begin(), chunks.end());
  }

  // Stores k and v of the chunks' rows of the lane's slice, and attends them.
  void Attend(Lane& lane);

 private:
  const WorkerContext& context_;
  kernels::KvArena& scratch_;
  StreamingRows& rows_;
  std::vector<std::vector<ChunkRows>> lanes_;
};

}  // namespace lamina::compute_node
