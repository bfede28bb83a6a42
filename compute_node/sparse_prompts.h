// SPDX-License-Identifier: Apache-2.0
//
// SparsePrompts: prompt chunks attend at the compute node over the scratch KV of their sequences,
// to all tokens before them, as they do on other paths and with the same bits. What softmax gave
// each token in the last rows of a prompt makes the first sums of path sparse.
//
// Threading: the data thread. Allocation: per step, and up to some MiB for weights.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compute_node/lane.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/weighed_attention.h"
#include "compute_node/worker_context.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class SparsePrompts {
 public:
  // `scratch` has the epoch's layers and scratch tokens. References must outlive this.
  SparsePrompts(const WorkerContext& context, kernels::KvArena& scratch, SparseSums& sums,
                WeighedAttention& attention);

  // These chunks of the lane's step.
  void BeginStep(const Lane& lane, const PathRows& rows);

  // Stores k and v of the chunks' rows of the lane's slice, and attends them.
  void Attend(Lane& lane);

 private:
  // Rows that are weighed together.
  static constexpr uint32_t kWeighedAtOnce = 64;

  struct Chunk {
    RowRun rows;
    Extent sequence;       // The scratch slots of all tokens up to its last.
    uint32_t weighed = 0;  // The last so many of its rows are weighed.
  };

  void AttendChunk(Lane& lane, const Chunk& chunk);

  const WorkerContext& context_;
  kernels::KvArena& scratch_;
  SparseSums& sums_;
  WeighedAttention& attention_;
  std::vector<std::vector<Chunk>> lanes_;
  std::vector<float> weights_;
  std::vector<uint32_t> tokens_;  // 0, 1, 2, ...
};

}  // namespace lamina::compute_node
