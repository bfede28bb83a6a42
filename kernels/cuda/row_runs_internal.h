// SPDX-License-Identifier: Apache-2.0
//
// Rows in a device's memory that lie at one distance, which one launch or one copy takes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "kernels/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/kv_device.h"

namespace lamina::kernels::cuda {

// K and V of some tokens, the first of which is the `first`-th of a call.
struct KvRun {
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;
  size_t stride = 0;  // In elements.
  uint32_t first = 0;
  uint32_t tokens = 0;
};

// Token `token` of `rows`, the `at`-th of the call: the next of the last run if it lies where that
// goes on, else the first of another.
inline void AddToRuns(const KvRows& rows, uint32_t token, uint32_t at, std::vector<KvRun>& runs) {
  const BFloat16* const k = rows.k + token * rows.stride;
  const BFloat16* const v = rows.v + token * rows.stride;
  if (!runs.empty()) {
    KvRun& run = runs.back();
    if (run.tokens == 1 && k > run.k) {
      run.stride = static_cast<size_t>(k - run.k);
    }
    if (k == run.k + run.tokens * run.stride && v == run.v + run.tokens * run.stride) {
      ++run.tokens;
      return;
    }
  }
  runs.push_back({.k = k, .v = v, .first = at, .tokens = 1});
}

// The first of some items' rows.
struct RowRun {
  size_t rows = 1;
  size_t stride = 0;  // In elements, at least `width`.

  CopyShape Shape(size_t width, size_t to_stride, size_t from_stride) const {
    return {.row_bytes = width * sizeof(BFloat16),
            .rows = rows,
            .to_stride = to_stride * sizeof(BFloat16),
            .from_stride = from_stride * sizeof(BFloat16)};
  }
};

// The items that lie at one distance, from the first on. `row_of` says where an item's row is.
template <typename RowOf>
RowRun FirstRun(absl::Span<const AttentionItem> items, size_t width, const RowOf& row_of) {
  RowRun run{.stride = width};
  if (items.size() > 1 && row_of(items[1]) >= row_of(items[0]) + width) {
    run.stride = static_cast<size_t>(row_of(items[1]) - row_of(items[0]));
  }
  while (run.rows < items.size() &&
         row_of(items[run.rows]) == row_of(items[0]) + run.rows * run.stride) {
    ++run.rows;
  }
  return run;
}

}  // namespace lamina::kernels::cuda
