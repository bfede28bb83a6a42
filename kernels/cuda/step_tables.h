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
#include "common/extent.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.cuh"

namespace lamina::kernels::cuda {

struct StepTables {
  std::vector<AttentionUnit> units;
  std::vector<AttentionRow> rows;
  std::vector<Extent> extents;
  uint32_t partials = 0;
  uint32_t tile_rows_max = 0;    // Largest query_tokens * group of a unit.
  uint32_t tile_tokens_max = 0;  // Largest query_tokens of a unit.
  friend bool operator==(const StepTables&, const StepTables&) = default;
};

// Fills `tables` anew, with tiles of at most `tile_rows` rows (query tokens times heads of one KV
// head), or one query token. Errors: those of CudaAttention::LoadStep.
absl::Status FillStepTables(const CudaAttentionOptions& options, uint32_t tile_rows,
                            absl::Span<const StepItem> items, StepTables& tables);

// What is left on the stack of a row after all of its blocks were pushed.
std::vector<StackEntry> EntriesOf(const AttentionRow& row);

}  // namespace lamina::kernels::cuda
