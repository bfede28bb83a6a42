// SPDX-License-Identifier: Apache-2.0
#include "kernels/int8_runs.h"

#include <algorithm>

#include "common/kv_form.h"
#include "common/status_macros.h"

namespace lamina::kernels {

bool Int8Runs::Collect(absl::Span<const Int8Run> runs, uint32_t round) {
  tail_.clear();
  rows_.clear();
  items_.clear();
  full_.clear();
  tail_.reserve(runs.size());  // Rows point into it.
  for (const Int8Run& run : runs) {
    const uint32_t end = run.first_token + run.tokens;
    const uint32_t block = Int8TokensOf(run.first_token) + round * kInt8BlockTokens;
    if (block >= end) {
      continue;
    }
    const uint32_t first = std::max(block, run.first_token);
    const uint32_t tokens = std::min(block + kInt8BlockTokens, end) - first;
    const size_t row = first - run.first_token;
    tail_.push_back({.first_slot = run.tail_slot + first - block, .tokens = tokens});
    rows_.push_back({.k = run.k + row * run.kv_stride,
                     .v = run.v + row * run.kv_stride,
                     .stride = run.kv_stride,
                     .slots = {&tail_.back(), 1}});
    const uint32_t from = std::max(first, run.first_read());
    const uint32_t to = std::min(first + tokens, run.read_end());
    if (run.q != nullptr && from < to) {
      const size_t read = from - run.first_token;
      items_.push_back({.extents = run.slots,
                        .first_position = from,
                        .query_tokens = to - from,
                        .q = run.q + read * run.q_stride,
                        .q_stride = run.q_stride,
                        .out = run.out + read * run.out_stride,
                        .out_stride = run.out_stride,
                        .int8_tokens = block,
                        .tail_slot = run.tail_slot});
    }
    if (first + tokens == block + kInt8BlockTokens) {
      full_.push_back({.tail_slot = run.tail_slot, .slots = run.slots, .first = block});
    }
  }
  return !rows_.empty();
}

absl::Status Int8Runs::Run(KvDevice& device, uint32_t layer, HeadRange heads,
                           absl::Span<const Int8Run> runs) {
  for (uint32_t round = 0; Collect(runs, round); ++round) {
    LAMINA_RETURN_IF_ERROR(device.Store(layer, heads, rows_));
    if (!items_.empty()) {
      LAMINA_RETURN_IF_ERROR(device.Attend(layer, heads, items_));
    }
    LAMINA_RETURN_IF_ERROR(device.int8()->Close(layer, heads, full_));
  }
  return absl::OkStatus();
}

absl::Status Int8Runs::Store(KvDevice& device, uint32_t layer, HeadRange heads,
                             absl::Span<const Int8Run> rows) {
  Collect(rows, 0);
  return device.Store(layer, heads, rows_);
}

absl::Status Int8Runs::Close(KvDevice& device, uint32_t layer, HeadRange heads,
                             absl::Span<const Int8Run> rows) {
  Collect(rows, 0);
  return device.int8()->Close(layer, heads, full_);
}

}  // namespace lamina::kernels
