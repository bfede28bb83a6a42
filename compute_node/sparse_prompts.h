// SPDX-License-Identifier: Apache-2.0
//
// SparsePrompts: prompt chunks attend at the compute node over the scratch KV of their sequences,
// to all tokens before them, as they do on other paths and with the same bits. What softmax gave
// each token in the last rows of a prompt makes the first sums of path sparse. Where K and V are
// INT8 the scratch has both forms: bf16 at once, and INT8 of blocks that are full.
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
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class SparsePrompts {
 public:
  // Both arenas have the epoch's layers and scratch tokens; `int8` is null where K and V are bf16.
  // References must outlive this.
  SparsePrompts(const WorkerContext& context, kernels::KvArena& scratch, kernels::Int8Arena* int8,
                SparseSums& sums, WeighedAttention& attention);

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
  // Makes blocks that the chunk fills INT8.
  void Close(uint32_t layer, const Chunk& chunk);
  // Attends the chunk's rows [first, + count). Where `weights` are wanted there is a float for each
  // token of the sequence, row after row.
  void AttendRows(Lane& lane, const Chunk& chunk, uint32_t first, uint32_t count, float* weights);

  const WorkerContext& context_;
  kernels::KvArena& scratch_;
  kernels::Int8Arena* const int8_;
  SparseSums& sums_;
  WeighedAttention& attention_;
  std::vector<std::vector<Chunk>> lanes_;
  std::vector<WeighedAttention::Item> items_;
  std::vector<float> weights_;
  std::vector<uint32_t> tokens_;  // 0, 1, 2, ...
};

}  // namespace lamina::compute_node
