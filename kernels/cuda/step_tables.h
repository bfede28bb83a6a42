// SPDX-License-Identifier: Apache-2.0
//
// StepTables: from the items of a step to the units and rows that the attention kernels read.
//
// Pure host code; CudaAttention is its only caller.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.cuh"

namespace lamina::kernels::cuda {

// How units are cut. Items of more rows (query tokens times heads of one KV head) than a tile has
// have tiles of `run_rows` and units of up to 2^run_log2 blocks; without `run_rows` none has.
struct StepCut {
  uint32_t tile_rows = 0;
  uint32_t run_rows = 0;
  uint32_t run_log2 = 0;
};

struct StepTables {
  std::vector<AttentionUnit> units;  // Those of runs last.
  std::vector<AttentionRow> rows;
  std::vector<PlacedExtent> extents;
  uint32_t partials = 0;
  uint32_t run_units = 0;        // How many units are of runs.
  uint32_t tile_rows_max = 0;    // Largest query_tokens * group of the others,
  uint32_t tile_tokens_max = 0;  // and largest query_tokens.
  friend bool operator==(const StepTables&, const StepTables&) = default;
};

// Fills `tables` anew; a tile has at least one query token. Errors: those of
// CudaAttention::LoadStep.
absl::Status FillStepTables(const CudaAttentionOptions& options, const StepCut& cut,
                            absl::Span<const StepItem> items, StepTables& tables);

// Whether an item of so many query tokens is cut into runs.
bool TakesRuns(const CudaAttentionOptions& options, const StepCut& cut, uint32_t query_tokens);

// The length of runs with which a step is done soonest on a device of so many multiprocessors, each
// with one thread block: log2, at most cut.run_log2.
uint32_t RunLog2Of(const CudaAttentionOptions& options, const StepCut& cut,
                   absl::Span<const StepItem> items, uint32_t multiprocessors);

// What is left on the stack of a row after all of its blocks were pushed.
std::vector<StackEntry> EntriesOf(const AttentionRow& row);

}  // namespace lamina::kernels::cuda
